"""Several calls of one generation: what is told when they end together, and what is left alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from tests.core.generation.talk import LIMITS, SESSION, Talk
from tests.head.cluster import Cluster

from meshnet.core.generation.transcript import Forward, Lost, Replied, StepRef, Tick
from meshnet.head.background import Background
from meshnet.head.keeping import PlaceKeeper
from meshnet.head.side_by_side import SideBySide
from meshnet.simulation.toy_shard import TOY_MODEL

CHUNKED = replace(LIMITS, prefill_chunk=4)


class Beside:
    """`go_on` lets all calls end; `cancelled` are those that ended otherwise."""

    def __init__(self, talk: Talk, tasks: asyncio.TaskGroup) -> None:
        background = Background(tasks)
        keeper = PlaceKeeper(Cluster(), background, every_s=1000.0)
        places = keeper.places(SESSION, TOY_MODEL, 20)
        self.talk, self.go_on = talk, asyncio.Event()
        self.cancelled: list[StepRef] = []
        self.calls = SideBySide(talk.machine, places, self.ask, background)

    def clock(self) -> float:
        return self.talk.now

    async def ask(self, asked: Forward) -> Replied | Lost:
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.cancelled.append(asked.ref)
            raise
        return Replied(asked.ref, self.talk.right_answer(to=asked))


@asynccontextmanager
async def two_open() -> AsyncIterator[Beside]:
    """A long prompt, of which the second hop is asked for one chunk and the first for another."""
    talk = Talk(prompt=tuple(range(20)), limits=CHUNKED)
    talk.reply(talk.right_answer())
    async with asyncio.TaskGroup() as tasks:
        beside = Beside(talk, tasks)
        yield beside
        beside.calls.close()


async def test_of_answers_that_come_together_each_is_told():
    async with two_open() as beside:
        beside.go_on.set()
        asked = beside.talk.waiting

        first = await beside.calls.next(asked, beside.clock)
        assert beside.calls.waiting, "another is there, though its call has ended"
        second = await beside.calls.next((), beside.clock)

    assert [first, second] == [Replied(e.ref, beside.talk.right_answer(to=e)) for e in asked]


async def test_calls_of_closed_questions_are_cancelled_but_for_those_that_were_overtaken():
    async with two_open() as beside:
        first, second = (each.ref for each in beside.talk.waiting)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await beside.calls.next(beside.talk.waiting, beside.clock)
        beside.calls.overtake([first])
        beside.talk.lose()

        beside.calls.tidy()
        await asyncio.sleep(0)
        assert beside.cancelled == [second]
        assert not beside.calls.waiting
        beside.calls.close()
        await asyncio.sleep(0)
        assert set(beside.cancelled) == {first, second}


async def test_an_overtaken_call_that_has_ended_is_forgotten():
    async with two_open() as beside:
        first, second = (each.ref for each in beside.talk.waiting)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await beside.calls.next(beside.talk.waiting, beside.clock)
        beside.calls.overtake([first, second])
        beside.talk.lose()
        beside.calls.tidy()
        assert beside.calls.busy

        beside.go_on.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        beside.calls.tidy()

        assert not beside.calls.busy
        assert beside.cancelled == []


async def test_time_passes_where_nobody_answers():
    async with two_open() as beside:
        deadline = beside.talk.machine.deadline()
        assert deadline is not None
        beside.talk.now = deadline

        assert await beside.calls.next(beside.talk.waiting, beside.clock) == Tick()


async def test_an_error_of_a_call_is_raised_where_it_is_waited_for():
    async with two_open() as beside:
        beside.go_on.set()
        beside.talk.right_answer = fail  # type: ignore[assignment]

        with pytest.raises(ZeroDivisionError):
            await beside.calls.next(beside.talk.waiting, beside.clock)


def fail(**_: object) -> None:
    raise ZeroDivisionError("a bug")
