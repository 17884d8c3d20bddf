"""Drive one Generation: carry out its actions, feed back what happened. No rule of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from meshnet.core.generation.moves import FindMove, LetGo, Moved, TakeOver
from meshnet.core.generation.relocating import Event, RelocatingGeneration
from meshnet.core.generation.transcript import (
    Alive,
    Cancelled,
    Delivered,
    Emit,
    Fail,
    Finish,
    Forward,
    GenerationAction,
    Locate,
    Lost,
    Overtaken,
    Refilling,
    Release,
    Replied,
    Reroute,
    Started,
    Tick,
)
from meshnet.core.vocabulary import Hop, SessionId
from meshnet.head.background import Background
from meshnet.head.calls import Calls
from meshnet.head.keeping import Places
from meshnet.head.limit import WaitLimit
from meshnet.head.observation import Observation
from meshnet.head.seam import FinishEvent, GenerationFailed, TokenEvent
from meshnet.head.side_by_side import SideBySide

Item = TokenEvent | FinishEvent
Asked = Forward | Locate | Reroute | FindMove | TakeOver


class GenerationRun:
    def __init__(
        self,
        machine: RelocatingGeneration,
        *,
        session: SessionId,
        calls: Calls,
        places: Places,
        background: Background,
        release: Callable[[Release], None],
        clock: Callable[[], float],
        seen: Observation,
    ) -> None:
        self._machine, self._session, self._calls = machine, session, calls
        self._places, self._release, self._clock, self._seen = places, release, clock, seen
        self._limit = WaitLimit(machine.deadline, clock)
        self._side_by_side = SideBySide(machine, places, self._ask, background)
        self._started = False

    @property
    def done(self) -> bool:
        return self._machine.done

    @property
    def reused(self) -> int:
        return self._machine.reused

    async def advance(self) -> list[Item]:
        """Go on until something is new for the consumer, who has taken all there was before.

        Raises GenerationFailed. Cancelling it cancels the calls in flight.
        """
        begin = self._taken() if self._started else Started()
        self._started = True
        actions: Sequence[GenerationAction] = self._handle(begin)
        while True:
            items, asked = self._carry_out(actions)
            if items:
                return items
            alone = self._alone(asked)
            event = await (self._happening(asked) if alone is None else self._answer(alone))
            actions = self._handle(event)

    def _taken(self) -> Delivered:
        return Delivered(self._side_by_side.void, self._calls.leaving(self._machine.route))

    def close(self) -> None:
        """End it, whatever state it is in; ending twice is harmless."""
        self._side_by_side.close()
        self._limit.close()
        self._places.close()
        self._carry_out(self._handle(Cancelled()))
        self._seen.ended(self._machine.stats(self._clock()))

    def _carry_out(self, actions: Sequence[GenerationAction]) -> tuple[list[Item], list[Asked]]:
        items: list[Item] = []
        asked: list[Asked] = []
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
                case Overtaken(refs):
                    self._side_by_side.overtake(refs)
                case LetGo(session, nodes):
                    self._release(Release(session, nodes))
                case Moved():
                    self._seen.moved(action)
                case Forward() | Locate() | Reroute() | FindMove() | TakeOver():
                    asked.append(action)
        return items, asked

    def _handle(self, event: Event) -> list[GenerationAction]:
        return self._machine.handle(event, self._clock())

    def _alone(self, asked: Sequence[Asked]) -> Forward | None:
        """Return the only question, if it is one and nothing else is under way."""
        if len(asked) != 1 or self._side_by_side.busy:
            return None
        (only,) = asked
        return only if isinstance(only, Forward) else None

    async def _happening(self, asked: Sequence[Asked]) -> Event:
        self._side_by_side.tidy()
        forwards = [each for each in asked if isinstance(each, Forward)]
        if len(forwards) > 1 or self._side_by_side.waiting:
            return await self._side_by_side.next(forwards, self._clock)
        if forwards:
            return await self._answer(forwards[0])
        deadline = self._machine.deadline()
        match asked:
            case [Locate() as locate]:
                return await self._calls.by(deadline, self._calls.locate(locate))
            case [Reroute() as reroute]:
                self._seen.rerouting(reroute)
                return await self._calls.by(deadline, self._calls.reroute(reroute))
            case [FindMove() as find]:
                return await self._calls.by(deadline, self._calls.find_move(find))
            case [TakeOver() as take]:
                return await self._calls.by(deadline, self._calls.take_over(take))
            case _:
                return await self._calls.by(deadline, self._calls.nothing())

    async def _answer(self, asked: Forward) -> Event:
        """Carry out the only open question, in this task."""
        limit = self._limit

        def heard(hop: Hop) -> None:
            if hop in asked.hops and not limit.reached:
                self._handle(Alive(asked.ref))

        ended: Event = Tick()
        # What is silent for so long, from now on, is what the machine wants to hear of.
        limit.begin(asked.silence_s)
        try:
            with self._places.kept(
                asked.request.mode, lambda: asked.hops, self._machine.route.hops, heard
            ):
                ended = await self._ask(asked)
        except asyncio.CancelledError:
            if not limit.end():
                raise
        finally:
            limit.end()
        return ended

    async def _ask(self, asked: Forward) -> Replied | Lost:
        self._seen.forwarding(asked.request)
        last = self._machine.route.hops[-1]
        is_last = last in asked.chain if asked.chain else asked.hop == last
        event = await self._calls.forward(asked)
        self._places.told(asked, event, is_last=is_last)
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
