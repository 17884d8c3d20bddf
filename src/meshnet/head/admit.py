"""Drive one Admission: carry out its actions, feed back what happened. No rule of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from meshnet.core.generation.admission import Admission
from meshnet.core.generation.transcript import (
    AdmissionAction,
    AdmissionEvent,
    Admitted,
    Answered,
    Cancelled,
    Fail,
    PlaceFreed,
    Release,
    Reroute,
    Reserve,
    Started,
    Unanswered,
)
from meshnet.core.vocabulary import Route
from meshnet.head.calls import Calls
from meshnet.head.observation import Observation
from meshnet.head.seam import GenerationFailed


class AdmissionRun:
    """`place_freed` returns when it is worth asking again before the machine's own time.

    `give_back` sends hints and calls back when all were heard or given up. Only then is the next
    reservation sent: a late hint of one round would free the place won in the next.
    """

    def __init__(
        self,
        machine: Admission,
        *,
        calls: Calls,
        place_freed: Callable[[], Awaitable[None]],
        give_back: Callable[[Release, Callable[[], None]], None],
        clock: Callable[[], float],
        seen: Observation,
    ) -> None:
        self._machine, self._calls, self._place_freed = machine, calls, place_freed
        self._give_back, self._clock, self._seen = give_back, clock, seen
        self._given_back = asyncio.Event()
        self._given_back.set()

    async def admit(self) -> Route:
        """Return the route on which every hop holds a place. Raises GenerationFailed."""
        event: AdmissionEvent = Started()
        try:
            while True:
                route, asked = self._carry_out(self._machine.handle(event, self._clock()))
                if route is not None:
                    return route
                event = await self._happening(asked)
        finally:
            self._carry_out(self._machine.handle(Cancelled(), self._clock()))

    def _carry_out(
        self, actions: Sequence[AdmissionAction]
    ) -> tuple[Route | None, Reserve | Reroute | None]:
        admitted: Route | None = None
        asked: Reserve | Reroute | None = None
        for action in actions:
            match action:
                case Admitted(route):
                    admitted = route
                case Fail(code, message, retry_after_s):
                    raise GenerationFailed(code, message, retry_after_s)
                case Release():
                    self._seen.releasing()
                    self._given_back = asyncio.Event()
                    self._give_back(action, self._given_back.set)
                case Reserve() | Reroute():
                    asked = action
        return admitted, asked

    async def _happening(self, asked: Reserve | Reroute | None) -> AdmissionEvent:
        deadline = self._machine.deadline()
        match asked:
            case Reserve():
                self._seen.reserving()
                return await self._calls.by(deadline, self._reserve(asked))
            case Reroute():
                return await self._calls.by(deadline, self._calls.reroute(asked))
            case None:
                return await self._calls.by(deadline, self._woken())

    async def _reserve(self, asked: Reserve) -> Answered | Unanswered:
        await self._given_back.wait()
        return await self._calls.reserve(asked)

    async def _woken(self) -> PlaceFreed:
        await self._place_freed()
        return PlaceFreed()
