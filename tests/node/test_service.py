"""What a node answers, on toy shards and a real compute thread."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from meshnet.core.protocol.digest import PrefixDigest
from meshnet.core.protocol.messages import (
    ActivationReply,
    Code,
    ForwardRequest,
    Mode,
    Refusal,
    Reply,
    Reserved,
    ReserveRequest,
    TokenReply,
)
from meshnet.core.vocabulary import (
    HIDDEN,
    Activation,
    Capabilities,
    DType,
    KVCacheMiss,
    LayerRange,
    MissReason,
    ModelId,
    NodeId,
    NumericalError,
    SampledToken,
    SamplingParams,
    SessionId,
    ShardDescription,
    ShardStep,
    StepTorn,
    TensorSpec,
)
from meshnet.node.compute import ComputeThread
from meshnet.node.service import NodeService
from meshnet.node.shards import NodeLimits
from meshnet.simulation.toy_shard import (
    HIDDEN_SIZE,
    LAYER_BYTES_PER_TOKEN,
    ROW_BYTES,
    VOCABULARY,
    ToyShard,
    ToyState,
    embed,
    oracle,
    pack_rows,
)
from meshnet.telemetry.events import Event, Fault, ForwardServed, SessionEvicted, SessionsHeld

LAYERS = 4
SESSION = SessionId("s")
PROMPT = (3, 1, 4)


class Clock:
    """Seconds that pass only when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class ShardWithHook(ToyShard):
    """A toy shard that calls `hook` on the compute thread before (and `after`) each step."""

    def __init__(self, layers: LayerRange, **options: object) -> None:
        super().__init__(layers, layers_total=LAYERS, **options)  # type: ignore[arg-type]
        self.hook: Callable[[ShardStep, ToyState | None], None] = lambda step, state: None
        self.after: Callable[[], None] = lambda: None
        self.capabilities = super().description.capabilities
        self.steps: list[ShardStep] = []

    @property
    def description(self) -> ShardDescription:
        return replace(super().description, capabilities=self.capabilities)

    def run(self, step: ShardStep, state: ToyState | None) -> Activation | SampledToken | None:
        self.steps.append(step)
        self.hook(step, state)
        result = super().run(step, state)
        self.after()
        return result


class Bench:
    """One node with one shard, and everything that a test turns."""

    def __init__(self, thread: ComputeThread, layers: LayerRange, **options: object) -> None:
        self.clock = Clock()
        self.events: list[Event] = []
        self.shard = ShardWithHook(layers, **options)
        self.thread = thread
        self.service = self.serve(NodeLimits(kv_bytes_max=2**20))

    def serve(self, limits: NodeLimits, *more: ToyShard) -> NodeService[ToyState]:
        return NodeService(
            node=NodeId("n"),
            pid=1,
            shards=[self.shard, *more],
            compute=self.thread,
            limits=limits,
            clock=self.clock,
            record=self.events.append,
        )

    async def ask(self, request: ForwardRequest) -> Reply:
        reply = await self.service.forward(request)
        self.service.check_integrity()
        return reply

    async def prefilled(self, **fields: object) -> Reply:
        return await self.ask(replace(prefill(), **fields))  # type: ignore[arg-type]

    def evicted(self) -> list[str]:
        return [event.reason for event in self.events if isinstance(event, SessionEvicted)]


@pytest.fixture
def thread() -> Iterator[ComputeThread]:
    compute = ComputeThread(name="test-compute", jobs_max=4)
    yield compute
    assert compute.close(deadline_s=30.0)


@pytest.fixture
def whole(thread: ComputeThread) -> Bench:
    """A node that holds every layer: head and tail in one."""
    return Bench(thread, LayerRange(0, LAYERS))


@pytest.fixture
def middle(thread: ComputeThread) -> Bench:
    return Bench(thread, LayerRange(1, 3))


@pytest.fixture
def tail(thread: ComputeThread) -> Bench:
    return Bench(thread, LayerRange(2, LAYERS))


def prefill(tokens: tuple[int, ...] = PROMPT, *, attempt: int | None = 1) -> ForwardRequest:
    return ForwardRequest(Mode.PREFILL, SESSION, attempt=attempt, wire=1, tokens=tokens)


def decode(past: int, *tokens: int, attempt: int | None = 1) -> ForwardRequest:
    return ForwardRequest(
        Mode.DECODE, SESSION, past_length=past, attempt=attempt, wire=1, tokens=tokens
    )


def rows(count: int) -> Activation:
    return pack_rows([embed(row) for row in range(count)])


def refused(reply: object, code: Code) -> Refusal:
    assert isinstance(reply, Refusal), reply
    assert reply.code is code, reply
    return reply


def missed(reply: object) -> MissReason | None:
    return refused(reply, Code.CACHE_MISS).reason


async def generate(bench: Bench, count: int) -> list[int]:
    reply = await bench.prefilled()
    tokens = list(PROMPT)
    for _ in range(count):
        assert isinstance(reply, TokenReply)
        assert reply.token is not None
        assert reply.cached == len(tokens)
        tokens.append(reply.token.token_id)
        prefix = PrefixDigest.of(tokens[:-1]).hex
        reply = await bench.ask(replace(decode(len(tokens) - 1, tokens[-1]), prefix=prefix))
    return tokens[len(PROMPT) :]


async def test_prefill_and_decodes_give_the_tokens_of_the_uncached_model(whole: Bench) -> None:
    generated = await generate(whole, 8)

    assert tuple(generated) == oracle(PROMPT, SamplingParams(), 8, LAYERS)


async def test_a_decode_without_sampling_parameters_is_drawn_as_its_prefill_said(
    whole: Bench,
) -> None:
    """They travel with what starts a state (architecture, section 4); greedy would be wrong."""
    sampling = SamplingParams(temperature=2.0, seed=1, prompt_length=len(PROMPT))
    expected = oracle(PROMPT, sampling, 2, LAYERS)

    first = await whole.prefilled(sampling=sampling)
    second = await whole.ask(decode(len(PROMPT), expected[0]))

    assert isinstance(first, TokenReply)
    assert isinstance(second, TokenReply)
    assert first.token is not None
    assert second.token is not None
    assert (first.token.token_id, second.token.token_id) == expected
    greedy = oracle((*PROMPT, expected[0]), SamplingParams(), 1, LAYERS)
    assert greedy != expected[1:], "choose another seed: greedy would pass"


async def test_a_step_without_a_mode_is_stateless_and_confirms_nothing(whole: Bench) -> None:
    reply = await whole.ask(ForwardRequest(Mode.STATELESS, tokens=PROMPT))

    assert isinstance(reply, TokenReply)
    assert reply.token is not None
    assert (reply.token.token_id,) == oracle(PROMPT, SamplingParams(), 1, LAYERS)
    assert reply.cached is None
    assert whole.service.session(SESSION) is None


async def test_the_tail_tells_the_text_of_its_token(whole: Bench) -> None:
    reply = await whole.prefilled()

    assert isinstance(reply, TokenReply)
    assert reply.token is not None
    assert reply.text == whole.shard.text_of(reply.token.token_id)


async def test_a_tail_that_is_asked_for_no_token_draws_none(whole: Bench) -> None:
    reply = await whole.prefilled(want_token=False)

    assert reply == TokenReply(None, "", cached=len(PROMPT))


async def test_the_body_of_an_adr_0022_head_is_read_in_the_shards_dtype(middle: Bench) -> None:
    described = await middle.ask(ForwardRequest(Mode.PREFILL, SESSION, activation=rows(3)))
    raw = ForwardRequest(Mode.PREFILL, SESSION, raw=bytes(rows(3).data))

    reply = await middle.ask(raw)

    assert isinstance(reply, ActivationReply)
    assert reply == described
    assert reply.cached == 3


async def test_a_raw_body_that_is_no_whole_number_of_rows_is_refused(middle: Bench) -> None:
    raw = bytes(rows(3).data)[:-1]

    refused(await middle.ask(ForwardRequest(Mode.STATELESS, raw=raw)), Code.BAD_REQUEST)


def hidden(dtype: DType, *shape: int) -> Activation:
    spec = TensorSpec(HIDDEN, dtype, shape)
    return Activation((spec,), bytes(spec.nbytes))


BAD_ACTIVATIONS = {
    "rank": hidden(DType.FP32, 3, HIDDEN_SIZE),
    "batch": hidden(DType.FP32, 2, 3, HIDDEN_SIZE),
    "hidden size": hidden(DType.FP32, 1, 3, HIDDEN_SIZE + 1),
    "more ids than positions": hidden(DType.FP32, 1, 2, HIDDEN_SIZE),
}


@pytest.mark.parametrize("what", BAD_ACTIVATIONS)
async def test_an_activation_that_does_not_fit_the_shard_is_refused_unrun(
    middle: Bench, what: str
) -> None:
    request = replace(prefill(), activation=BAD_ACTIVATIONS[what])

    refused(await middle.ask(request), Code.BAD_REQUEST)

    assert middle.shard.steps == []
    assert middle.service.describe().kv_bytes == 0


BAD_REQUESTS = {
    "no ids": prefill(()),
    "id beyond the vocabulary": prefill((VOCABULARY,)),
    "id below zero": prefill((-1,)),
    "an activation for layer 0": replace(prefill(), activation=rows(3)),
    "a raw body for layer 0": replace(prefill(), raw=bytes(ROW_BYTES)),
    "past length of a prefill": replace(prefill(), past_length=1),
    "past length below zero": decode(-1, 1),
    "positions beyond the context": decode(4095, 1, 2),
    "no session": ForwardRequest(Mode.PREFILL, tokens=PROMPT),
}


@pytest.mark.parametrize("what", BAD_REQUESTS)
async def test_a_wrong_field_is_refused_before_anything_is_allocated(
    whole: Bench, what: str
) -> None:
    refused(await whole.ask(BAD_REQUESTS[what]), Code.BAD_REQUEST)

    assert whole.shard.steps == []
    assert whole.service.session(SESSION) is None


async def test_a_hop_that_embeds_nothing_needs_an_activation(middle: Bench) -> None:
    refused(await middle.ask(prefill()), Code.BAD_REQUEST)


async def test_several_positions_decode_only_where_the_self_test_passed(whole: Bench) -> None:
    """Pit C6."""
    await whole.prefilled()
    whole.shard.capabilities = Capabilities(kv_cache=True, multi_token=False)

    refused(await whole.ask(decode(3, 5, 6)), Code.BAD_REQUEST)
    single = await whole.ask(decode(3, 5))

    assert isinstance(single, TokenReply)
    assert single.cached == 4


async def test_a_second_prefill_chunk_is_a_decode_of_several_positions(whole: Bench) -> None:
    await whole.prefilled(tokens=PROMPT[:1], want_token=False)

    reply = await whole.ask(decode(1, *PROMPT[1:]))

    assert isinstance(reply, TokenReply)
    assert reply.token is not None
    assert (reply.token.token_id,) == oracle(PROMPT, SamplingParams(), 1, LAYERS)


async def test_layers_that_are_not_here_are_not_found(middle: Bench) -> None:
    request = replace(prefill(), layers=LayerRange(2, 4), activation=rows(3))

    refused(await middle.ask(request), Code.NOT_FOUND)


async def test_a_part_of_the_held_layers_can_be_run(middle: Bench) -> None:
    part = replace(prefill(), layers=LayerRange(2, 3), activation=rows(3))

    reply = await middle.ask(part)

    assert isinstance(reply, ActivationReply)
    assert middle.shard.steps[0].layers == LayerRange(2, 3)


async def test_layers_that_share_state_cannot_be_cut_apart(thread: ComputeThread) -> None:
    class Sharing(ShardWithHook):
        @property
        def description(self) -> ShardDescription:
            return replace(super().description, inseparable=(LayerRange(1, 3),))

    bench = Bench(thread, LayerRange(0, LAYERS))
    bench.shard = Sharing(LayerRange(0, LAYERS))
    bench.service = bench.serve(NodeLimits(kv_bytes_max=2**20))

    cut = await bench.ask(replace(prefill(), layers=LayerRange(0, 2)))
    before = await bench.ask(replace(prefill(), layers=LayerRange(0, 1)))

    refused(cut, Code.NOT_FOUND)
    assert isinstance(before, ActivationReply)


async def test_another_start_layer_is_a_miss(middle: Bench) -> None:
    await middle.prefilled(activation=rows(3))

    reply = await middle.ask(replace(decode(3, 1), layers=LayerRange(2, 3), activation=rows(1)))

    assert missed(reply) is MissReason.START_LAYER


async def test_an_unknown_session_is_a_miss(whole: Bench) -> None:
    assert missed(await whole.ask(decode(3, 1))) is MissReason.UNKNOWN_SESSION


async def test_another_past_length_is_a_miss(whole: Bench) -> None:
    await whole.prefilled()

    assert missed(await whole.ask(decode(2, 1))) is MissReason.PAST_LENGTH


async def test_equal_length_but_other_ids_is_a_miss(whole: Bench) -> None:
    """Pit C7."""
    await whole.prefilled()
    other = PrefixDigest.of((3, 1, 5)).hex

    assert missed(await whole.ask(replace(decode(3, 1), prefix=other))) is MissReason.PREFIX


async def test_a_late_prefill_of_an_older_attempt_is_never_run(whole: Bench) -> None:
    await whole.prefilled(attempt=2)

    refused(await whole.ask(prefill(attempt=1)), Code.STALE_ATTEMPT)

    assert len(whole.shard.steps) == 1


async def test_a_decode_where_caching_is_off_is_a_miss(whole: Bench) -> None:
    """Pit A71: running one position statelessly would answer garbage with 200 (ADR-0022)."""
    whole.shard.capabilities = Capabilities(kv_cache=False, multi_token=False)

    assert missed(await whole.ask(decode(3, 1))) is MissReason.CACHING_OFF
    assert whole.shard.steps == []


async def test_a_prefill_where_caching_is_off_runs_and_confirms_no_length(whole: Bench) -> None:
    whole.shard.capabilities = Capabilities(kv_cache=False, multi_token=False)

    reply = await whole.prefilled()

    assert isinstance(reply, TokenReply)
    assert reply.cached is None
    assert whole.service.session(SESSION) is None


def turn_caching_off(shard: ShardWithHook) -> Callable[[], None]:
    def turn() -> None:
        shard.capabilities = Capabilities(kv_cache=False, multi_token=False)

    return turn


async def test_a_first_prefill_that_fills_no_cache_is_answered_and_forgotten(whole: Bench) -> None:
    whole.shard.after = turn_caching_off(whole.shard)

    reply = await whole.prefilled()

    assert isinstance(reply, TokenReply)
    assert reply.cached is None
    assert whole.service.session(SESSION) is None


async def test_a_decode_that_finds_out_that_nothing_was_cached_is_a_miss(whole: Bench) -> None:
    await whole.prefilled()
    whole.shard.after = turn_caching_off(whole.shard)

    assert missed(await whole.ask(decode(3, 1))) is MissReason.CACHING_OFF
    assert whole.service.session(SESSION) is None


def failing(error: Callable[[], Exception]) -> Callable[[ShardStep, ToyState | None], None]:
    def fail(step: ShardStep, state: ToyState | None) -> None:
        raise error()

    return fail


FAILURES = {
    "torn": (lambda: StepTorn("torn"), Code.NOT_READY),
    "device out of memory": (lambda: StepTorn("oom", out_of_memory=True), Code.OUT_OF_MEMORY),
    "host out of memory": (lambda: MemoryError(), Code.OUT_OF_MEMORY),
    "not a number": (lambda: NumericalError("nan"), Code.NUMERICAL_ERROR),
    "position limit": (lambda: KVCacheMiss(MissReason.POSITION_LIMIT, "crossed"), Code.CACHE_MISS),
    "a bug": (lambda: ZeroDivisionError("bug"), Code.INTERNAL),
}


@pytest.mark.parametrize("what", FAILURES)
async def test_a_step_that_fails_costs_the_session_and_not_the_node(
    whole: Bench, what: str
) -> None:
    """Pit A69."""
    error, code = FAILURES[what]
    await whole.prefilled()
    whole.shard.hook = failing(error)

    refused(await whole.ask(decode(3, 1)), code)

    whole.shard.hook = lambda step, state: None
    assert missed(await whole.ask(decode(3, 1))) is MissReason.UNKNOWN_SESSION
    assert isinstance(await whole.prefilled(attempt=2), TokenReply)
    assert whole.evicted() == ["torn"]


async def test_a_bug_in_a_step_is_told_once_with_its_traceback(whole: Bench) -> None:
    whole.shard.hook = failing(lambda: ZeroDivisionError("bug"))

    await whole.prefilled()

    (fault,) = [event for event in whole.events if isinstance(event, Fault)]
    assert "ZeroDivisionError: bug" in fault.traceback


async def test_a_spent_step_is_dropped_unrun(whole: Bench) -> None:
    refused(await whole.prefilled(deadline_ms=0), Code.DEADLINE)

    assert whole.shard.steps == []


class Gate:
    """Holds the compute thread inside a step until the test lets it go on."""

    def __init__(self, bench: Bench) -> None:
        self.entered = asyncio.Event()
        self._open = threading.Event()
        self._loop = asyncio.get_running_loop()
        bench.shard.hook = self._hold

    def _hold(self, step: ShardStep, state: ToyState | None) -> None:
        self._loop.call_soon_threadsafe(self.entered.set)
        assert self._open.wait(60)

    def open(self) -> None:
        self._open.set()


async def waiting(thread: ComputeThread, jobs: int) -> None:
    while thread.waiting < jobs:  # noqa: ASYNC110  # another thread counts; it sets no event
        await asyncio.sleep(0)


def other_session(name: str) -> ForwardRequest:
    return replace(prefill(), session=SessionId(name))


async def test_a_step_whose_deadline_passes_in_the_queue_leaves_its_session_intact(
    whole: Bench,
) -> None:
    await whole.prefilled()
    gate = Gate(whole)
    async with asyncio.TaskGroup() as group:
        group.create_task(whole.ask(other_session("slow")))
        await gate.entered.wait()
        late = group.create_task(whole.ask(replace(decode(3, 1), deadline_ms=50)))
        await waiting(whole.thread, 1)
        whole.clock.now += 1.0
        gate.open()

    refused(late.result(), Code.DEADLINE)
    again = await whole.ask(decode(3, 1))
    assert isinstance(again, TokenReply)
    assert again.cached == 4


async def test_a_caller_that_leaves_the_queue_is_never_run(whole: Bench) -> None:
    await whole.prefilled()
    ran = len(whole.shard.steps)
    gate = Gate(whole)
    async with asyncio.TaskGroup() as group:
        group.create_task(whole.ask(other_session("slow")))
        await gate.entered.wait()
        gone = group.create_task(whole.ask(decode(3, 1)))
        await waiting(whole.thread, 1)
        gone.cancel()
        await asyncio.wait([gone])
        assert whole.service.session(SESSION) is None
        gate.open()

    assert gone.cancelled()
    assert len(whole.shard.steps) == ran + 1


async def test_a_running_step_is_committed_when_its_caller_has_left(whole: Bench) -> None:
    gate = Gate(whole)
    async with asyncio.TaskGroup() as group:
        gone = group.create_task(whole.ask(prefill()))
        await gate.entered.wait()
        gone.cancel()
        await asyncio.sleep(0)
        assert not gone.done()
        gate.open()

    assert gone.cancelled()
    held = whole.service.session(SESSION)
    assert held is not None
    assert held.length == len(PROMPT)


async def test_a_running_step_that_fails_is_forgotten_when_its_caller_has_left(
    whole: Bench,
) -> None:
    gate = Gate(whole)
    whole.shard.after = lambda: (_ for _ in ()).throw(StepTorn("torn"))
    async with asyncio.TaskGroup() as group:
        gone = group.create_task(whole.ask(prefill()))
        await gate.entered.wait()
        gone.cancel()
        gate.open()

    assert gone.cancelled()
    assert whole.service.session(SESSION) is None


async def test_a_decode_overtaken_by_a_prefill_is_a_miss_and_keeps_the_new_session(
    whole: Bench,
) -> None:
    """Pit C3."""
    await whole.prefilled()
    gate = Gate(whole)
    async with asyncio.TaskGroup() as group:
        old = group.create_task(whole.ask(decode(3, 1)))
        await gate.entered.wait()
        new = group.create_task(whole.ask(prefill((7, 8), attempt=2)))
        await waiting(whole.thread, 1)
        gate.open()

    assert missed(old.result()) is MissReason.SUPERSEDED
    assert isinstance(new.result(), TokenReply)
    held = whole.service.session(SESSION)
    assert held is not None
    assert (held.length, held.prefix) == (2, PrefixDigest.of((7, 8)).hex)


async def test_a_prefill_overtaken_in_the_queue_is_stale_and_not_run(whole: Bench) -> None:
    gate = Gate(whole)
    async with asyncio.TaskGroup() as group:
        group.create_task(whole.ask(other_session("slow")))
        await gate.entered.wait()
        old = group.create_task(whole.ask(prefill(attempt=1)))
        await waiting(whole.thread, 1)
        group.create_task(whole.ask(prefill((7, 8), attempt=2)))
        await waiting(whole.thread, 2)
        gate.open()

    refused(old.result(), Code.STALE_ATTEMPT)
    assert [step.tokens for step in whole.shard.steps] == [PROMPT, (7, 8)]


async def test_a_prefill_whose_session_was_taken_away_is_told_to_wait(whole: Bench) -> None:
    """412 would tell its head that nobody waits for it."""
    gate = Gate(whole)
    async with asyncio.TaskGroup() as group:
        old = group.create_task(whole.ask(prefill()))
        await gate.entered.wait()
        whole.service.release(SESSION)
        gate.open()

    refused(old.result(), Code.NO_ROOM)
    assert whole.service.session(SESSION) is None


async def test_a_session_whose_step_runs_is_busy(whole: Bench) -> None:
    """Pit C3."""
    await whole.prefilled()
    gate = Gate(whole)
    async with asyncio.TaskGroup() as group:
        first = group.create_task(whole.ask(decode(3, 1)))
        await gate.entered.wait()
        second = await whole.ask(decode(3, 1))
        gate.open()

    assert missed(second) is MissReason.BUSY
    assert isinstance(first.result(), TokenReply)


async def test_a_full_queue_is_refused_and_costs_no_session(whole: Bench) -> None:
    await whole.prefilled()
    gate = Gate(whole)
    async with asyncio.TaskGroup() as group:
        for number in range(5):
            group.create_task(whole.ask(other_session(f"busy {number}")))
            await gate.entered.wait()
        await waiting(whole.thread, 4)
        decoded = await whole.ask(decode(3, 1))
        stateless = await whole.ask(ForwardRequest(Mode.STATELESS, tokens=PROMPT))
        gate.open()

    refused(decoded, Code.NO_ROOM)
    refused(stateless, Code.NO_ROOM)
    assert isinstance(await whole.ask(decode(3, 1)), TokenReply)


@pytest.mark.parametrize("ending", ["released", "torn", "superseded", "cancelled"])
async def test_nothing_holds_the_state_of_a_session_that_is_gone(whole: Bench, ending: str) -> None:
    seen: list[weakref.ref[list[int]]] = []

    class History(list[int]):
        """A list that can be watched."""

    def watch(step: ShardStep, state: ToyState | None) -> None:
        if state is not None and not seen:
            state.history = History()
            seen.append(weakref.ref(state.history))

    whole.shard.hook = watch
    await whole.prefilled()
    gc.disable()
    try:
        if ending == "released":
            whole.service.release(SESSION)
        elif ending == "torn":
            whole.shard.hook = failing(lambda: StepTorn("torn"))
            await whole.ask(decode(3, 1))
        elif ending == "superseded":
            await whole.ask(prefill(attempt=2))
        else:
            gate = Gate(whole)
            async with asyncio.TaskGroup() as group:
                group.create_task(whole.ask(other_session("slow")))
                await gate.entered.wait()
                gone = group.create_task(whole.ask(decode(3, 1)))
                await waiting(whole.thread, 1)
                gone.cancel()
                await asyncio.wait([gone])
                gate.open()

        await whole.ask(ForwardRequest(Mode.STATELESS, tokens=(1,)))
        assert seen[0]() is None
    finally:
        gc.enable()


async def test_a_reservation_takes_bytes_and_a_release_gives_them_back(whole: Bench) -> None:
    reserved = await whole.service.reserve(ReserveRequest(SESSION, 10))
    taken = whole.service.describe()

    whole.service.release(SESSION, ModelId("unknown"))
    kept = whole.service.describe()
    whole.service.release(SESSION)

    assert reserved == Reserved(SESSION, 10)
    assert (taken.sessions, taken.kv_bytes) == (1, 10 * LAYERS * LAYER_BYTES_PER_TOKEN)
    assert kept.sessions == 1
    assert whole.service.describe().kv_bytes == 0


async def test_a_reservation_never_asks_for_more_than_the_context(whole: Bench) -> None:
    whole.service = whole.serve(NodeLimits(kv_bytes_max=4096 * LAYERS * LAYER_BYTES_PER_TOKEN))

    assert isinstance(await whole.service.reserve(ReserveRequest(SESSION, 9999)), Reserved)


async def test_reservations_beyond_the_places_are_told_to_come_again(whole: Bench) -> None:
    whole.service = whole.serve(NodeLimits(kv_bytes_max=2**20, sessions_max=1))
    await whole.service.reserve(ReserveRequest(SESSION, 10))

    reply = await whole.service.reserve(ReserveRequest(SessionId("t"), 10))

    wait_s = refused(reply, Code.NO_ROOM).retry_after_s
    assert wait_s is not None
    assert wait_s > 0


async def test_a_session_that_can_never_fit_is_too_large(whole: Bench) -> None:
    whole.service = whole.serve(NodeLimits(kv_bytes_max=10))

    refused(await whole.service.reserve(ReserveRequest(SESSION, 10)), Code.TOO_LARGE)
    refused(await whole.prefilled(), Code.TOO_LARGE)


async def test_a_reservation_of_nothing_is_a_wrong_field(whole: Bench) -> None:
    refused(await whole.service.reserve(ReserveRequest(SESSION, 0)), Code.BAD_REQUEST)


async def test_a_shard_that_does_not_cache_reserves_nothing(whole: Bench) -> None:
    whole.shard.capabilities = Capabilities(kv_cache=False, multi_token=False)

    assert isinstance(await whole.service.reserve(ReserveRequest(SESSION, 10)), Reserved)

    assert whole.service.describe().sessions == 0


async def test_a_node_that_is_not_ready_says_so(whole: Bench) -> None:
    whole.service.ready = False

    refused(await whole.prefilled(), Code.NOT_READY)
    refused(await whole.service.reserve(ReserveRequest(SESSION, 10)), Code.NOT_READY)
    assert whole.service.describe().ready is False


def second_model() -> ToyShard:
    return ToyShard(LayerRange(0, 1), layers_total=1, model=ModelId("other"))


async def test_a_node_with_two_models_needs_to_be_told_which(whole: Bench) -> None:
    limits = NodeLimits(kv_bytes_max=2**20, shards_max=2)
    whole.service = whole.serve(limits, second_model())

    refused(await whole.prefilled(), Code.BAD_REQUEST)
    refused(await whole.prefilled(model=ModelId("third")), Code.NOT_FOUND)
    reply = await whole.prefilled(model=ModelId("other"))

    assert isinstance(reply, TokenReply)
    assert reply.token is not None
    assert (reply.token.token_id,) == oracle(PROMPT, SamplingParams(), 1, 1)
    assert whole.service.session(SESSION) is not None
    whole.service.release(SESSION, ModelId("other"))
    assert whole.service.session(SESSION) is None


def test_a_node_loads_no_more_shards_than_it_may(whole: Bench) -> None:
    with pytest.raises(ValueError, match="max_loaded_shards"):
        whole.service.add(second_model())


def test_a_node_holds_one_shard_of_a_model(whole: Bench) -> None:
    with pytest.raises(ValueError, match="already"):
        whole.service.add(whole.shard)


async def test_two_models_share_the_bytes_of_their_device(whole: Bench) -> None:
    per_token = LAYERS * LAYER_BYTES_PER_TOKEN
    limits = NodeLimits(kv_bytes_max=10 * per_token, shards_max=2)
    whole.service = whole.serve(limits, second_model())
    model = whole.shard.description.model
    await whole.service.reserve(ReserveRequest(SESSION, 10, model=model))

    full = await whole.service.reserve(ReserveRequest(SessionId("t"), 1, ModelId("other")))
    whole.clock.now += 5.0
    room = await whole.service.reserve(ReserveRequest(SessionId("t"), 1, ModelId("other")))

    refused(full, Code.NO_ROOM)
    assert isinstance(room, Reserved)


async def test_a_shard_counts_its_steps_tokens_and_seconds_by_the_given_clock(
    whole: Bench,
) -> None:
    def pass_time() -> None:
        whole.clock.now += 0.25

    whole.shard.after = pass_time

    reply = await whole.prefilled()
    await whole.ask(decode(3, 1))

    assert isinstance(reply, TokenReply)
    assert reply.compute_us == 250_000
    (work,) = whole.service.work()
    assert (work.steps, work.tokens, work.compute_s) == (2, 4, 0.5)
    described = whole.service.describe()
    assert (described.steps, described.compute_s) == (2, 0.5)
    assert described.kv_bytes == 4 * LAYERS * LAYER_BYTES_PER_TOKEN


async def test_every_request_is_told_with_its_outcome_and_without_its_ids(whole: Bench) -> None:
    await whole.prefilled(trace="r1")
    await whole.ask(decode(9, 1))

    served = [event for event in whole.events if isinstance(event, ForwardServed)]
    assert [(event.mode, event.outcome, event.request) for event in served] == [
        ("prefill", "ok", "r1"),
        ("decode", "cache_miss", None),
    ]
    assert SessionsHeld(1, 3 * LAYERS * LAYER_BYTES_PER_TOKEN) in whole.events


async def test_sessions_end_by_time_and_the_node_tells_it(whole: Bench) -> None:
    """Pit C15."""
    await whole.prefilled()
    whole.clock.now += 601.0

    assert missed(await whole.ask(decode(3, 1))) is MissReason.UNKNOWN_SESSION

    assert whole.evicted() == ["ttl"]


async def test_the_history_of_the_tail_is_its_ids_so_far(tail: Bench) -> None:
    histories: list[list[int]] = []

    def look(step: ShardStep, state: ToyState | None) -> None:
        if state is not None:
            histories.append(list(state.history))

    tail.shard.hook = look
    await tail.prefilled(activation=rows(3))
    await tail.ask(replace(decode(3, 7), activation=rows(1)))
    await tail.ask(replace(decode(4, 8), activation=rows(1)))

    assert histories == [[], [3, 1, 4], [3, 1, 4, 7]]
