"""Steps of several sessions in one call: each ends as if it had run alone."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from tests.node.bench import (
    LAYERS,
    PROMPT,
    Bench,
    Gate,
    decode,
    missed,
    other_session,
    prefill,
    refused,
    waiting,
)

from meshnet.core.protocol.messages import Code, ForwardRequest, Mode, Reply, TokenReply
from meshnet.core.vocabulary import (
    Capabilities,
    MissReason,
    NoRoom,
    NumericalError,
    SamplingParams,
    SessionId,
    ShardStep,
    StepTorn,
)
from meshnet.simulation.toy_shard import ToyState, oracle
from meshnet.telemetry.events import Fault, ForwardServed

PROMPTS = {"a": (1, 2, 3), "b": (4, 5, 6), "c": (7, 8, 9)}


def expected(name: str) -> tuple[int, ...]:
    """The first two tokens of a session, by the model without cache or batch."""
    return oracle(PROMPTS[name], SamplingParams(), 2, LAYERS)


def next_decode(name: str) -> ForwardRequest:
    return replace(decode(3, expected(name)[0]), session=SessionId(name))


async def prefilled(node: Bench) -> None:
    for name, prompt in PROMPTS.items():
        reply = await node.ask(replace(prefill(prompt), session=SessionId(name)))
        assert ids(reply) == expected(name)[:1]


def ids(reply: Reply) -> tuple[int, ...]:
    assert isinstance(reply, TokenReply), reply
    assert reply.drawn is not None
    return reply.drawn.ids


@asynccontextmanager
async def occupied(node: Bench) -> AsyncIterator[asyncio.TaskGroup]:
    """Keep the device busy with another session's step while the body fills the queue."""
    gate = Gate(node)
    async with asyncio.TaskGroup() as group:
        group.create_task(node.ask(other_session("slow")))
        await gate.entered.wait()
        yield group
        gate.open()


async def all_decode(node: Bench, group: asyncio.TaskGroup) -> dict[str, asyncio.Task[Reply]]:
    tasks = {name: group.create_task(node.ask(next_decode(name))) for name in PROMPTS}
    await waiting(node.thread, len(tasks))
    return tasks


async def test_waiting_decodes_run_in_one_call_and_get_their_own_tokens(whole: Bench) -> None:
    await prefilled(whole)
    async with occupied(whole) as group:
        tasks = await all_decode(whole, group)

    assert [len(batch) for batch in whole.shard.batches] == [3]
    assert {name: ids(task.result()) for name, task in tasks.items()} == {
        name: expected(name)[1:] for name in PROMPTS
    }


async def test_a_prefill_runs_beside_decodes(whole: Bench) -> None:
    await prefilled(whole)
    async with occupied(whole) as group:
        tasks = await all_decode(whole, group)
        long = replace(prefill(PROMPT * 20), session=SessionId("long"))
        filled = group.create_task(whole.ask(long))
        await waiting(whole.thread, 4)

    assert [[step.length for step in batch] for batch in whole.shard.batches] == [[1, 1, 1, 60]]
    assert ids(filled.result()) == oracle(PROMPT * 20, SamplingParams(), 1, LAYERS)
    assert ids(tasks["c"].result()) == expected("c")[1:]


async def test_a_shard_that_cannot_batch_runs_one_by_one_and_owners_take_turns(
    whole: Bench,
) -> None:
    whole.shard.capabilities = Capabilities(kv_cache=True, multi_token=True)
    await prefilled(whole)
    ran = len(whole.shard.steps)
    owners = {"a": "much", "b": "much", "c": "little"}
    async with occupied(whole) as group:
        for name, owner in owners.items():
            group.create_task(whole.ask(replace(next_decode(name), owner=owner)))
            await asyncio.sleep(0)
        await waiting(whole.thread, 3)

    assert whole.shard.batches == []
    order = [step.tokens for step in whole.shard.steps[ran + 1 :]]
    assert order == [expected(name)[:1] for name in ("a", "c", "b")]


async def test_a_session_without_an_owner_is_an_owner_of_its_own(whole: Bench) -> None:
    whole.shard.capabilities = Capabilities(kv_cache=True, multi_token=True)
    await prefilled(whole)
    ran = len(whole.shard.steps)
    async with occupied(whole) as group:
        for name, owner in (("a", None), ("b", None), ("c", "owner")):
            group.create_task(whole.ask(replace(next_decode(name), owner=owner)))
            await asyncio.sleep(0)
        await waiting(whole.thread, 3)

    order = [step.tokens for step in whole.shard.steps[ran + 1 :]]
    assert order == [expected(name)[:1] for name in ("a", "b", "c")]


async def test_a_node_that_is_one_of_two_stages_takes_half_of_its_sessions(whole: Bench) -> None:
    await prefilled(whole)
    async with occupied(whole) as group:
        for name in PROMPTS:
            group.create_task(whole.ask(replace(next_decode(name), stages=2)))
        await waiting(whole.thread, 3)

    assert [len(batch) for batch in whole.shard.batches] == [2]


async def test_stateless_steps_run_one_by_one(whole: Bench) -> None:
    async with occupied(whole) as group:
        for _ in range(2):
            group.create_task(whole.ask(ForwardRequest(Mode.STATELESS, tokens=PROMPT)))
        await waiting(whole.thread, 2)

    assert whole.shard.batches == []
    assert len(whole.shard.steps) == 3


async def test_a_caller_that_leaves_the_queue_is_not_in_the_batch(whole: Bench) -> None:
    await prefilled(whole)
    async with occupied(whole) as group:
        tasks = await all_decode(whole, group)
        tasks["b"].cancel()
        await asyncio.wait([tasks["b"]])

    assert [len(batch) for batch in whole.shard.batches] == [2]
    assert ids(tasks["a"].result()) == expected("a")[1:]
    assert ids(tasks["c"].result()) == expected("c")[1:]


async def test_a_caller_that_leaves_a_running_batch_hurts_nobody_and_keeps_its_session(
    whole: Bench,
) -> None:
    await prefilled(whole)
    async with asyncio.TaskGroup() as group:
        async with occupied(whole):
            tasks = await all_decode(whole, group)
            gate = Gate(whole)  # of the batch: the other gate opens now
        await gate.entered.wait()
        tasks["b"].cancel()
        await asyncio.sleep(0)
        assert not tasks["b"].done()
        gate.open()

    assert ids(tasks["a"].result()) == expected("a")[1:]
    held = whole.service.session(SessionId("b"))
    assert held is not None
    assert held.length == 4


async def test_a_step_that_was_overtaken_is_left_out_of_its_batch(whole: Bench) -> None:
    await prefilled(whole)
    async with occupied(whole) as group:
        tasks = await all_decode(whole, group)
        again = replace(prefill((9, 9), attempt=2), session=SessionId("b"))
        new = group.create_task(whole.ask(again))
        await waiting(whole.thread, 4)

    assert missed(tasks["b"].result()) is MissReason.SUPERSEDED
    assert [len(batch) for batch in whole.shard.batches] == [2]
    assert ids(new.result()) == oracle((9, 9), SamplingParams(), 1, LAYERS)


async def test_a_step_that_is_overtaken_in_a_running_batch_is_a_miss_and_the_others_are_not(
    whole: Bench,
) -> None:
    await prefilled(whole)
    async with asyncio.TaskGroup() as group:
        async with occupied(whole):
            tasks = await all_decode(whole, group)
            gate = Gate(whole)  # of the batch: the other gate opens now
        await gate.entered.wait()
        whole.service.release(SessionId("b"))
        gate.open()

    assert missed(tasks["b"].result()) is MissReason.SUPERSEDED
    assert ids(tasks["a"].result()) == expected("a")[1:]
    assert ids(tasks["c"].result()) == expected("c")[1:]


async def test_a_torn_batch_costs_each_of_its_sessions_and_nobody_else(whole: Bench) -> None:
    await prefilled(whole)
    whole.shard._fail_after = lambda: 2 if len(whole.shard.batches) == 1 else None
    async with occupied(whole) as group:
        tasks = await all_decode(whole, group)

    for name, task in tasks.items():
        refused(task.result(), Code.OUT_OF_MEMORY)
        assert whole.service.session(SessionId(name)) is None
    assert whole.service.session(SessionId("slow")) is not None
    whole.shard.batches.clear()
    again = replace(prefill(PROMPTS["a"], attempt=2), session=SessionId("a"))
    assert ids(await whole.ask(again)) == expected("a")[:1]


async def test_an_error_of_one_step_is_its_own(whole: Bench) -> None:
    await prefilled(whole)
    whole.shard.answers = lambda results: [results[0], NumericalError("nan"), results[2]]
    async with occupied(whole) as group:
        tasks = await all_decode(whole, group)

    refused(tasks["b"].result(), Code.NUMERICAL_ERROR)
    assert whole.service.session(SessionId("b")) is None
    assert ids(tasks["a"].result()) == expected("a")[1:]
    assert ids(tasks["c"].result()) == expected("c")[1:]


async def test_a_bug_in_a_batch_is_told_and_the_node_lives(whole: Bench) -> None:
    await prefilled(whole)
    whole.shard.answers = lambda results: [results[0] for _ in range(1 // 0)]
    async with occupied(whole) as group:
        tasks = await all_decode(whole, group)

    for task in tasks.values():
        refused(task.result(), Code.INTERNAL)
    faults = [event for event in whole.events if isinstance(event, Fault)]
    assert "ZeroDivisionError" in faults[0].traceback
    assert ids(await whole.prefilled()) != ()


async def test_a_step_whose_deadline_passes_in_the_queue_is_left_out(whole: Bench) -> None:
    await prefilled(whole)
    async with occupied(whole) as group:
        late = group.create_task(whole.ask(replace(next_decode("a"), deadline_ms=50)))
        others = [group.create_task(whole.ask(next_decode(name))) for name in "bc"]
        await waiting(whole.thread, 3)
        whole.clock.now += 1.0

    refused(late.result(), Code.DEADLINE)
    assert [len(batch) for batch in whole.shard.batches] == [2]
    assert [ids(task.result()) for task in others] == [expected(name)[1:] for name in "bc"]
    assert ids(await whole.ask(next_decode("a"))) == expected("a")[1:]


async def test_the_time_of_a_batch_is_counted_once_and_told_to_each(whole: Bench) -> None:
    await prefilled(whole)
    before = whole.service.describe().compute_s
    async with occupied(whole) as group:
        await all_decode(whole, group)
        whole.events.clear()
        whole.clock.now += 2.0

        def slowly(results: list[object]) -> list[object]:
            whole.clock.now += 0.3
            return results

        whole.shard.answers = slowly  # type: ignore[assignment]

    told = [event for event in whole.events if isinstance(event, ForwardServed)]
    assert [(event.batch, event.queue_s, event.compute_s) for event in told[1:]] == [
        (3, 2.0, pytest.approx(0.3))
    ] * 3
    spent = whole.service.describe().compute_s - before
    assert spent == pytest.approx(2.0 + 0.3)


async def test_steps_that_still_wait_when_the_thread_stops_are_refused_and_lose_no_session(
    whole: Bench,
) -> None:
    await prefilled(whole)
    async with occupied(whole) as group:
        tasks = await all_decode(whole, group)
        assert not whole.thread.close(deadline_s=0.0)

    for name, task in tasks.items():
        refused(task.result(), Code.NO_ROOM)
        assert whole.service.session(SessionId(name)) is not None
    with pytest.raises(NoRoom):
        await whole.thread.run(lambda: None)


@pytest.mark.parametrize("error", [NumericalError, StepTorn])
async def test_nothing_holds_the_state_of_a_session_whose_step_failed_in_a_batch(
    whole: Bench, error: type[NumericalError] | type[StepTorn]
) -> None:
    """Without the garbage collector: a session's tensors must not wait for it."""
    seen: list[weakref.ref[list[int]]] = []

    class History(list[int]):
        """A list that can be watched."""

    def watch(step: ShardStep, state: ToyState | None) -> None:
        assert state is not None
        state.history = History()
        seen.append(weakref.ref(state.history))

    def fail(results: list[object]) -> list[object]:
        try:
            raise error("in a batch")
        except StepTorn:
            raise
        except NumericalError as one:
            return [one.without_frames() for _ in results]

    whole.shard.hook = watch
    await prefilled(whole)
    whole.shard.answers = fail  # type: ignore[assignment]
    gc.disable()
    try:
        async with occupied(whole) as group:
            await all_decode(whole, group)

        await whole.ask(ForwardRequest(Mode.STATELESS, tokens=(1,)))
        assert [history() for history in seen] == [None] * 3
    finally:
        gc.enable()
