"""Carry out several questions of one generation at the same time: those of a long prompt's chunks.

Answers are told in the order in which they ended, since what a refused step closes is not lost.
The calls live no longer than `run`: whoever cancels it cancels them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass

from meshnet.core.generation.machine import Generation
from meshnet.core.generation.transcript import (
    Alive,
    Forward,
    GenerationAction,
    GenerationEvent,
    Lost,
    Replied,
    StepRef,
    Tick,
)
from meshnet.core.protocol.messages import Mode
from meshnet.core.vocabulary import Hop
from meshnet.head.keeping import Places

Ask = Callable[[Forward], Coroutine[None, None, Replied | Lost]]


@dataclass(frozen=True, slots=True)
class _Call:
    hops: tuple[Hop, ...]
    task: asyncio.Task[None]


class SideBySide:
    def __init__(
        self, machine: Generation, places: Places, ask: Ask, clock: Callable[[], float]
    ) -> None:
        self._machine, self._places, self._ask, self._clock = machine, places, ask, clock
        self._calls: dict[StepRef, _Call] = {}
        self._ended: asyncio.Queue[Replied | Lost] = asyncio.Queue()

    async def run(self, asked: Sequence[GenerationAction]) -> Sequence[GenerationAction]:
        """Carry out `asked` and what follows while that is more questions beside the open ones.

        Return what is to be done then: no call is open any more.
        """
        actions, hops = asked, self._machine.route.hops
        self._calls, self._ended = {}, asyncio.Queue()
        async with asyncio.TaskGroup() as tasks:
            with self._places.kept(Mode.DECODE, self._hops, hops, self._heard):
                while self._goes_on(actions):
                    for each in actions:
                        assert isinstance(each, Forward)
                        task = tasks.create_task(self._call(each))
                        self._calls[each.ref] = _Call(each.hops, task)
                    actions = self._machine.handle(await self._event(), self._clock())
                    if not self._calls:
                        break
                for call in self._calls.values():
                    call.task.cancel()
        return actions

    def _goes_on(self, actions: Sequence[GenerationAction]) -> bool:
        more = all(isinstance(action, Forward) for action in actions)
        return more and all(map(self._machine.asks, self._calls))

    async def _call(self, asked: Forward) -> None:
        self._ended.put_nowait(await self._ask(asked))

    async def _event(self) -> GenerationEvent:
        try:
            async with asyncio.timeout_at(self._machine.deadline()):
                event = await self._ended.get()
        except TimeoutError:
            return Tick()
        del self._calls[event.ref]
        return event

    def _hops(self) -> list[Hop]:
        return [hop for call in self._calls.values() for hop in call.hops]

    def _heard(self, hop: Hop) -> None:
        for ref in [ref for ref, call in self._calls.items() if hop in call.hops]:
            self._machine.handle(Alive(ref), self._clock())
