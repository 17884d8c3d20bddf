"""Sessions that leave a node for another with their cache."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.node.bench import (
    LAYERS,
    PROMPT,
    SESSION,
    Bench,
    BenchThread,
    decode,
    prefill,
    refused,
)
from tests.node.test_giving import asked

from meshnet.core.protocol.digest import PrefixDigest
from meshnet.core.protocol.messages import (
    Code,
    ForwardRequest,
    Refusal,
    TokenReply,
)
from meshnet.core.protocol.moving import LayerReply, LayerRequest, TakeRequest
from meshnet.core.vocabulary import (
    HopLost,
    LayerRange,
    NodeId,
    SamplingParams,
    SessionDescription,
    SessionId,
    ShardDescription,
)
from meshnet.node.service import NodeService
from meshnet.node.shards import NodeLimits
from meshnet.simulation.toy_shard import TOY_MODEL, ToyShard, ToyState, oracle
from meshnet.telemetry.events import SessionTaken

GIVER = NodeId("giver")
WHOLE = LayerRange(0, LAYERS)
SAMPLING = SamplingParams(temperature=1.0, seed=7, repetition_penalty=1.3)


class Line:
    """The way to a giver in this process. `change` is done to what it sends."""

    def __init__(self, giver: NodeService[ToyState]) -> None:
        self.giver = giver
        self.asked: list[LayerRequest] = []
        self.sizes: list[int] = []

    async def layer(
        self, node: NodeId, request: LayerRequest, timeout_s: float, *, bytes_max: int
    ) -> LayerReply | Refusal:
        self.asked.append(request)
        if node != GIVER:
            raise HopLost(f"{node}: none of this node's peers")
        reply = self.change(await self.giver.moves.give(request))
        if isinstance(reply, LayerReply):
            self.sizes.append(len(reply.held.data))
            assert len(reply.held.data) <= bytes_max
        return reply

    def change(self, reply: LayerReply | Refusal) -> LayerReply | Refusal:
        return reply


@pytest.fixture
def other() -> Iterator[BenchThread]:
    compute = BenchThread(jobs_max=4)
    yield compute
    assert compute.close(deadline_s=30.0)


def receiver(
    thread: BenchThread, line: Line, layers: LayerRange = WHOLE, **limits: float
) -> NodeService[ToyState]:
    return NodeService(
        node=NodeId("receiver"),
        pid=1,
        shards=[ToyShard(layers, layers_total=LAYERS)],
        compute=thread,
        limits=NodeLimits(**{"kv_bytes_max": 2**20, **limits}),  # type: ignore[arg-type]
        clock=thread.clock,
        givers=line,
    )


def order(tokens: tuple[int, ...] = PROMPT, layers: LayerRange = WHOLE) -> TakeRequest:
    return TakeRequest(
        SESSION, GIVER, layers, 1, tokens, TOY_MODEL, "toy", SAMPLING, deadline_ms=60_000
    )


def sampled(request: ForwardRequest) -> ForwardRequest:
    return replace(request, sampling=SAMPLING)


def drawn(reply: object) -> int:
    assert isinstance(reply, TokenReply), reply
    assert reply.drawn is not None
    return reply.drawn.ids[0]


async def test_a_session_goes_on_where_it_was_taken_to(whole: Bench, other: BenchThread) -> None:
    line = Line(whole.service)
    there = receiver(other, line)
    first = drawn(await whole.ask(sampled(prefill())))

    taken = await there.moves.take(order())

    ids = (*PROMPT, first)
    digest = PrefixDigest.of(PROMPT)
    assert isinstance(taken, SessionDescription)
    assert (taken.length, taken.prefix, taken.attempt) == (len(PROMPT), digest.hex, 1)
    assert [request.layer for request in line.asked] == list(range(LAYERS))
    step = replace(decode(len(PROMPT), first), prefix=digest.hex)
    second = drawn(await there.forward(step))
    third = drawn(await there.forward(decode(len(ids), second)))
    assert (first, second, third) == oracle(PROMPT, SAMPLING, 3, LAYERS)
    there.check_integrity()


async def test_a_giver_keeps_its_session(whole: Bench, other: BenchThread) -> None:
    first = drawn(await whole.ask(sampled(prefill())))
    await receiver(other, Line(whole.service)).moves.take(order())

    assert (
        drawn(await whole.ask(decode(len(PROMPT), first)))
        == (oracle(PROMPT, SAMPLING, 2, LAYERS)[1])
    )


async def test_two_receivers_share_the_layers_of_one_giver(
    whole: Bench, other: BenchThread
) -> None:
    first = drawn(await whole.ask(sampled(prefill())))
    line = Line(whole.service)
    halves = [LayerRange(0, 2), LayerRange(2, LAYERS)]
    nodes = [receiver(other, line, layers) for layers in halves]

    taken = await asyncio.gather(
        *(node.moves.take(order(layers=layers)) for node, layers in zip(nodes, halves, strict=True))
    )

    assert [each.layers for each in taken if isinstance(each, SessionDescription)] == halves
    step = decode(len(PROMPT), first)
    passed = await nodes[0].forward(replace(step, layers=halves[0]))
    tail = replace(step, layers=halves[1], activation=passed.activation)  # type: ignore[union-attr]
    assert drawn(await nodes[1].forward(tail)) == oracle(PROMPT, SAMPLING, 2, LAYERS)[1]


async def test_what_was_guessed_is_left_behind(whole: Bench, other: BenchThread) -> None:
    first = drawn(await whole.ask(sampled(prefill())))
    second = oracle(PROMPT, SAMPLING, 2, LAYERS)[1]
    wrong = (second + 1) % 32
    step = decode(len(PROMPT), first, wrong)
    await whole.ask(replace(step, drafts=1))

    there = receiver(other, Line(whole.service))
    taken = await there.moves.take(order((*PROMPT, first)))

    assert isinstance(taken, SessionDescription)
    assert taken.length == len(PROMPT) + 1
    third = drawn(await there.forward(decode(len(PROMPT) + 1, second)))
    assert third == oracle(PROMPT, SAMPLING, 3, LAYERS)[2]


class Changed(Line):
    """A giver that is wrong about one thing."""

    def __init__(self, giver: NodeService[ToyState], **fields: object) -> None:
        super().__init__(giver)
        self.fields = fields

    def change(self, reply: LayerReply | Refusal) -> LayerReply | Refusal:
        return replace(reply, **self.fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "fields",
    [
        {"layer": 3},
        {"length": 2},
        {"prefix": "0" * 16},
        {"attempt": 2},
        {"fingerprint": "x"},
        {"arithmetic": "other"},
    ],
)
async def test_a_layer_of_anything_else_is_not_taken(
    whole: Bench, other: BenchThread, fields: dict[str, object]
) -> None:
    await whole.prefilled()
    there = receiver(other, Changed(whole.service, **fields))

    refused(await there.moves.take(order()), Code.HOP_FAILED)

    refused(await there.forward(decode(len(PROMPT), 1)), Code.CACHE_MISS)


class Older(Line):
    """A giver whose last layer is one position behind."""

    def change(self, reply: LayerReply | Refusal) -> LayerReply | Refusal:
        assert isinstance(reply, LayerReply)
        if reply.layer < LAYERS - 1:
            return reply
        (spec,) = reply.held.tensors
        shape = (spec.shape[0] - 1, *spec.shape[1:])
        data = bytes(reply.held.data)[: -spec.nbytes // spec.shape[0]]
        return replace(
            reply, held=replace(reply.held, tensors=(replace(spec, shape=shape),), data=data)
        )


async def test_a_session_is_taken_whole_or_not_at_all(whole: Bench, other: BenchThread) -> None:
    await whole.prefilled()
    there = receiver(other, Older(whole.service))

    refused(await there.moves.take(order()), Code.BAD_REQUEST)

    left = there.session(SESSION)
    assert left is not None
    assert left.length == 0
    refused(await there.forward(decode(len(PROMPT), 1)), Code.CACHE_MISS)
    assert isinstance(await there.forward(prefill()), TokenReply)
    there.check_integrity()


async def test_a_giver_that_is_no_peer_is_not_asked(whole: Bench, other: BenchThread) -> None:
    there = receiver(other, Line(whole.service))

    refusal = refused(
        await there.moves.take(replace(order(), giver=NodeId("stranger"))), Code.HOP_FAILED
    )

    assert "peers" in refusal.message


async def test_a_session_is_taken_only_where_there_is_room(
    whole: Bench, other: BenchThread
) -> None:
    await whole.prefilled()
    line = Line(whole.service)
    there = receiver(other, line, kv_bytes_max=10)

    refused(await there.moves.take(order()), Code.TOO_LARGE)

    assert line.asked == []


async def test_a_newer_prefill_overtakes_what_is_being_taken(
    whole: Bench, other: BenchThread
) -> None:
    await whole.prefilled()

    class Slow(Line):
        async def layer(self, *given: object, **more: object) -> LayerReply | Refusal:  # type: ignore[override]
            if len(self.asked) == 2:
                await there.forward(prefill(attempt=2))
            return await super().layer(*given, **more)  # type: ignore[arg-type]

    there = receiver(other, Slow(whole.service))

    refused(await there.moves.take(order()), Code.STALE_ATTEMPT)

    held = there.session(SESSION)
    assert held is not None
    assert (held.length, held.attempt) == (len(PROMPT), 2)


async def test_a_session_that_does_not_come_in_time_is_given_up(
    whole: Bench, other: BenchThread
) -> None:
    await whole.prefilled()

    class Silent(Line):
        async def layer(self, *given: object, **more: object) -> LayerReply | Refusal:  # type: ignore[override]
            return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    there = receiver(other, Silent(whole.service))

    refused(await there.moves.take(replace(order(), deadline_ms=1)), Code.DEADLINE)

    assert not there.kv_sessions(TOY_MODEL).running(SESSION)


async def test_a_giver_that_is_gone_is_not_waited_for_until_all_should_have_come(
    whole: Bench, other: BenchThread
) -> None:
    await whole.prefilled()
    waits: list[float] = []

    class Noting(Line):
        async def layer(
            self, node: NodeId, request: LayerRequest, timeout_s: float, *, bytes_max: int
        ) -> LayerReply | Refusal:
            waits.append(timeout_s)
            return await super().layer(node, request, timeout_s, bytes_max=bytes_max)

    await receiver(other, Noting(whole.service)).moves.take(order())

    assert len(waits) == LAYERS
    assert max(waits) < order().deadline_ms / 1000 / 3


class Unmoving(ToyShard):
    """A shard of a kind whose sessions nobody can export."""

    @property
    def description(self) -> ShardDescription:
        told = super().description
        return replace(told, capabilities=replace(told.capabilities, moves=False))


async def test_a_shard_that_cannot_move_sessions_says_so(other: BenchThread) -> None:
    there = NodeService(
        node=NodeId("n"),
        pid=1,
        shards=[Unmoving(WHOLE, layers_total=LAYERS)],
        compute=other,
        limits=NodeLimits(kv_bytes_max=2**20),
        clock=other.clock,
    )
    await there.forward(prefill())

    refused(await there.moves.take(replace(order(), session=SessionId("t"))), Code.NOT_FOUND)
    refused(await there.moves.give(asked()), Code.NOT_FOUND)


async def test_the_bytes_that_came_are_told(whole: Bench, other: BenchThread) -> None:
    await whole.prefilled()
    line = Line(whole.service)
    events: list[object] = []
    there = receiver(other, line)
    there.moves._record = events.append

    await there.moves.take(order())

    assert events == [SessionTaken(SESSION, LAYERS, sum(line.sizes), 0.0)]


async def test_layers_come_no_faster_than_they_may(
    whole: Bench, other: BenchThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    await whole.prefilled()
    line = Line(whole.service)
    there = receiver(other, line, move_bytes_per_s=1000.0)
    paused: list[float] = []

    async def pause(seconds: float) -> None:
        paused.append(seconds)

    monkeypatch.setattr("meshnet.node.moving.asyncio.sleep", pause)

    await there.moves.take(order())

    assert paused == [size / 1000.0 for size in line.sizes]
