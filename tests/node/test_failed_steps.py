"""A step that fails costs its session and nothing else."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest
from tests.node.bench import (
    SESSION,
    Bench,
    Gate,
    decode,
    failing,
    missed,
    other_session,
    prefill,
    refused,
    waiting,
)

from meshnet.core.protocol.messages import (
    Code,
    ForwardRequest,
    Mode,
    TokenReply,
)
from meshnet.core.vocabulary import (
    KVCacheMiss,
    MissReason,
    NumericalError,
    ShardStep,
    StepTorn,
)
from meshnet.simulation.toy_shard import (
    ToyState,
)
from meshnet.telemetry.events import Fault

FAILURES = {
    "torn": (lambda: StepTorn("torn"), Code.INTERNAL),
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
