"""What becomes of a step that waits, runs, or loses its caller while others come."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from tests.node.bench import (
    PROMPT,
    SESSION,
    Bench,
    Gate,
    decode,
    missed,
    other_session,
    prefill,
    refused,
    waiting,
)

from meshnet.core.protocol.digest import PrefixDigest
from meshnet.core.protocol.messages import (
    Code,
    ForwardRequest,
    Mode,
    TokenReply,
)
from meshnet.core.vocabulary import (
    MissReason,
    StepTorn,
)


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
