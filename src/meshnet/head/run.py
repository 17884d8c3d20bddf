"""Drive one Generation: carry out its actions, feed back what happened. No rule of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from meshnet.core.generation.machine import Generation
from meshnet.core.generation.transcript import (
    Alive,
    Cancelled,
    Delivered,
    Emit,
    Fail,
    Finish,
    Forward,
    GenerationAction,
    GenerationEvent,
    Refilling,
    Release,
    Reroute,
    Started,
    Tick,
)
from meshnet.core.vocabulary import Hop, SessionId
from meshnet.head.calls import Calls
from meshnet.head.keeping import Places
from meshnet.head.observation import Observation
from meshnet.head.seam import FinishEvent, GenerationFailed, TokenEvent

Item = TokenEvent | FinishEvent


class GenerationRun:
    def __init__(
        self,
        machine: Generation,
        *,
        session: SessionId,
        calls: Calls,
        places: Places,
        release: Callable[[Release], None],
        clock: Callable[[], float],
        seen: Observation,
    ) -> None:
        self._machine, self._session, self._calls = machine, session, calls
        self._places, self._release, self._clock, self._seen = places, release, clock, seen
        self._next: GenerationEvent = Started()

    @property
    def done(self) -> bool:
        return self._machine.done

    @property
    def reused(self) -> int:
        return self._machine.reused

    async def advance(self) -> list[Item]:
        """Go on until something is new for the consumer, who has taken all there was before.

        Raises GenerationFailed. Cancelling it cancels the call in flight.
        """
        event = self._next
        while True:
            items, asked = self._carry_out(self._machine.handle(event, self._clock()))
            if items:
                self._next = Delivered()
                return items
            event = await self._happening(asked)

    def close(self) -> None:
        """End it, whatever state it is in; ending twice is harmless."""
        self._carry_out(self._machine.handle(Cancelled(), self._clock()))
        self._seen.ended(self._machine.stats(self._clock()))

    def _carry_out(
        self, actions: Sequence[GenerationAction]
    ) -> tuple[list[Item], Forward | Reroute | None]:
        items: list[Item] = []
        asked: Forward | Reroute | None = None
        for action in actions:
            match action:
                case Emit(token):
                    self._seen.token()
                    items.append(TokenEvent(token, self._machine.reused))
                case Finish():
                    self._seen.finished(action.reason.value)
                    items.append(self._finish(action))
                case Fail(code, message, retry_after_s):
                    self._seen.failed(code.value)
                    raise GenerationFailed(code, message, retry_after_s)
                case Release():
                    self._seen.releasing()
                    self._release(action)
                case Refilling():
                    self._seen.refilling(action)
                case Forward() | Reroute():
                    asked = action
        return items, asked

    async def _happening(self, asked: Forward | Reroute | None) -> GenerationEvent:
        deadline = self._machine.deadline()
        match asked:
            case Forward():
                self._seen.forwarding(asked.request)
                return await self._answer(asked)
            case Reroute():
                return await self._calls.by(deadline, self._calls.reroute(asked))
            case None:
                return await self._calls.by(deadline, self._calls.nothing())

    async def _answer(self, asked: Forward) -> GenerationEvent:
        try:
            async with asyncio.timeout_at(self._machine.deadline()) as limit:

                def heard(hop: Hop) -> None:
                    if hop == asked.hop and not limit.expired():
                        self._machine.handle(Alive(asked.ref), self._clock())
                        limit.reschedule(self._machine.deadline())

                hops = self._machine.route.hops
                with self._places.kept(asked, hops, heard):
                    event = await self._calls.forward(asked)
        except TimeoutError:
            return Tick()
        self._places.told(asked, event, is_last=asked.hop == hops[-1])
        return event

    def _finish(self, finish: Finish) -> FinishEvent:
        stats = finish.stats
        return FinishEvent(
            reason=finish.reason,
            session=self._session,
            prompt_tokens=stats.prompt_tokens,
            completion_tokens=stats.completion_tokens,
            prefills=stats.prefills,
            refills=stats.refills,
            ttft_s=self._seen.ttft_s,
            duration_s=self._seen.duration_s,
            hops=stats.hops,
            guessed=stats.guessed,
            accepted=stats.accepted,
            cached_tokens=stats.reused,
        )
