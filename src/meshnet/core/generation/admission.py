"""A place on every hop or on none, before the first prefill (ADR-0029).

    idle -started-> asking node 0 -reserved-> asking node 1 ... -> admitted
                      |  refused: release all, ask on another known route
                      +--> waiting -tick, place freed-> asking node 0
                      |  lost, moved: release all
                      +--> rerouting -rerouted-> asking node 0

Nodes are asked in the order of their ids, whatever the order of the route, and what was granted is
given back before any wait: two heads never hold a place each and wait for the other's.
Where other nodes could serve as well, their routes are asked for and tried in turn; the routes
known are learnt anew every few waits, since nodes come and go while others are full.
A route that cannot cache holds no places and is admitted at once.

Invariants
    * while the machine waits it holds nothing;
    * every node that was asked since the last Release is named in the next one, answered or
      not, unless the machine ends with Admitted;
    * exactly one Admitted or Fail ends an admission that is not cancelled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

from meshnet.core.generation.limits import AdmissionLimits
from meshnet.core.generation.refusals import Verdict, failure_of, verdict_of
from meshnet.core.generation.transcript import (
    AdmissionAction,
    AdmissionEvent,
    Admitted,
    Answered,
    Cancelled,
    Fail,
    FailureCode,
    NoRoute,
    PlaceFreed,
    Release,
    Reroute,
    Rerouted,
    Reserve,
    Started,
    Tick,
    Unanswered,
)
from meshnet.core.protocol.messages import Mode, Refusal, Reserved, ReserveRequest
from meshnet.core.vocabulary import Hop, NodeId, Route, SessionId

Actions = list[AdmissionAction]

WAITS_PER_LOOK = 8
"""Other routes are looked for at the first refusal, and then once in so many waits."""
ROUTES_KNOWN_MAX = 8


@dataclass(frozen=True, slots=True)
class AdmissionSpec:
    session: SessionId
    tokens: int
    deadline_at: float
    adopt: SessionId | None = None
    """The session that the first route holds: its places are as good as free ones."""


@dataclass(frozen=True, slots=True)
class _Idle:
    pass


@dataclass(frozen=True, slots=True)
class _Asking:
    reserve: Reserve
    index: int
    until: float


@dataclass(frozen=True, slots=True)
class _Waiting:
    until: float


@dataclass(frozen=True, slots=True)
class _Rerouting:
    """`ask_at` None: a Reroute is being carried out; else the time to ask for the next."""

    ask: Reroute
    ask_at: float | None


@dataclass(frozen=True, slots=True)
class _Done:
    pass


_State = _Idle | _Asking | _Waiting | _Rerouting | _Done


class Admission:
    """Reserve room for one generation. `route` None: none was known when the request came."""

    def __init__(
        self,
        spec: AdmissionSpec,
        route: Route | None,
        *,
        limits: AdmissionLimits,
        jitter: Callable[[], float],
    ) -> None:
        self._spec, self._limits, self._jitter = spec, limits, jitter
        self._order: tuple[Hop, ...] = ()
        self._route = self._first_route = route
        self._known: list[Route] = [] if route is None else [route]
        self._untried: list[Route] = []
        self._held: dict[NodeId, None] = {}
        self._asked = self._waits = self._detours = 0
        self._route_by: float | None = None
        self._last: Fail = Fail(FailureCode.TIMEOUT, "the request's deadline has passed")
        self._state: _State = _Idle()

    @property
    def done(self) -> bool:
        return isinstance(self._state, _Done)

    def deadline(self) -> float | None:
        match self._state:
            case _Done():
                return None
            case _Asking(until=until) | _Waiting(until=until):
                own: float | None = until
            case _Rerouting(ask_at=ask_at):
                own = ask_at
            case _:
                own = None
        times = (own, self._route_by, self._spec.deadline_at)
        return min(time for time in times if time is not None)

    def handle(self, event: AdmissionEvent, now: float) -> Actions:
        if isinstance(self._state, _Done):
            return []
        match event:
            case Started():
                return self._started(now)
            case Answered(ref, answer):
                asking = self._open_question(ref)
                return [] if asking is None else self._answered(asking, answer, now)
            case Unanswered(ref, reason):
                asking = self._open_question(ref)
                return [] if asking is None else self._lose(asking, reason, now)
            case PlaceFreed():
                return self._round(now) if isinstance(self._state, _Waiting) else []
            case Rerouted(route):
                return self._rerouted(route, now)
            case NoRoute(message):
                return self._no_route(message, now)
            case Tick():
                return self._tick(now)
            case Cancelled():
                return self._end([])
            case _:
                assert_never(event)

    # --- events -------------------------------------------------------------------------------

    def _started(self, now: float) -> Actions:
        if not isinstance(self._state, _Idle):
            return []
        if self._route is None:
            return self._reroute(None, "no route is known", now)
        return self._round(now)

    def _answered(self, asking: _Asking, answer: Reserved | Refusal, now: float) -> Actions:
        self._route_by = None
        if isinstance(answer, Reserved):
            return self._ask(asking.index + 1, now)
        node = asking.reserve.hop.node
        message = f"{node}: {answer.message}"
        match verdict_of(answer, Mode.DECODE):
            case Verdict.FATAL | Verdict.NUMERICAL:
                return self._end([Fail(failure_of(answer), message, answer.retry_after_s)])
            case Verdict.MOVED:
                return self._reroute(None, message, now)
            case _:
                self._last = Fail(FailureCode.OVERLOADED, message, answer.retry_after_s)
                return self._full(asking.reserve.hop, message, now)

    def _rerouted(self, route: Route, now: float) -> Actions:
        if not isinstance(self._state, _Rerouting):
            return []
        if self._state.ask.lost:
            self._known = [route]
        elif route in self._known:
            return self._wait(now)
        else:
            self._known.append(route)
        return self._try(route, now)

    def _no_route(self, message: str, now: float) -> Actions:
        if not isinstance(self._state, _Rerouting) or self._state.ask_at is not None:
            return []
        self._last = Fail(FailureCode.NO_ROUTE, message)
        if self._route_by is None:
            self._route_by = now + self._limits.route_wait_s
        self._state = _Rerouting(self._state.ask, now + self._detour_s())
        return []

    def _tick(self, now: float) -> Actions:
        if now >= self._spec.deadline_at:
            return self._end([self._last])
        if self._route_by is not None and now >= self._route_by:
            return self._end([self._last])
        match self._state:
            case _Asking(until=until) if now >= until:
                return self._lose(self._state, "no answer to a reservation", now)
            case _Waiting(until) if now >= until:
                return self._round(now)
            case _Rerouting(ask, ask_at) if ask_at is not None and now >= ask_at:
                self._state = _Rerouting(ask, None)
                return [ask]
            case _:
                return []

    # --- moves --------------------------------------------------------------------------------

    def _round(self, now: float) -> Actions:
        """Try every route known, the one asked last before the others."""
        assert self._route is not None
        self._untried = [route for route in self._known if route != self._route]
        return self._try(self._route, now)

    def _try(self, route: Route, now: float) -> Actions:
        self._route = route
        hops = route.hops if route.kv_cache else ()
        self._order = tuple(sorted(hops, key=lambda hop: (hop.node, hop.layers)))
        return self._ask(0, now)

    def _ask(self, index: int, now: float) -> Actions:
        assert self._route is not None
        if index == len(self._order):
            self._state = _Done()
            return [Admitted(self._route)]
        timeout_s = min(self._limits.reserve_timeout_s, self._spec.deadline_at - now)
        if timeout_s <= 0.0:
            return self._end([self._last])
        hop = self._order[index]
        request = ReserveRequest(
            session=self._spec.session,
            tokens=self._spec.tokens,
            model=self._route.model,
            layers=hop.layers,
            adopt=self._spec.adopt if self._route == self._first_route else None,
        )
        self._asked += 1
        self._held[hop.node] = None
        reserve = Reserve(self._asked, hop, request, timeout_s)
        self._state = _Asking(reserve, index, now + timeout_s)
        return [reserve]

    def _full(self, hop: Hop, why: str, now: float) -> Actions:
        if self._untried:
            return [*self._give_back(), *self._try(self._untried.pop(0), now)]
        if self._waits % WAITS_PER_LOOK == 0 and len(self._known) < ROUTES_KNOWN_MAX:
            ask = Reroute(hop, why, lost=False)
            self._state = _Rerouting(ask, None)
            return [*self._give_back(), ask]
        return self._wait(now)

    def _wait(self, now: float) -> Actions:
        delay_s = self._limits.poll.delay_s(self._waits, jitter=self._jitter())
        self._waits += 1
        self._state = _Waiting(now + delay_s)
        return self._give_back()

    def _lose(self, asking: _Asking, reason: str, now: float) -> Actions:
        hop = asking.reserve.hop
        return self._reroute(hop, f"{hop.node}: {reason}", now)

    def _reroute(self, lost: Hop | None, why: str, now: float) -> Actions:
        self._last = Fail(FailureCode.NO_ROUTE, why)
        if self._route_by is None:
            self._route_by = now + self._limits.route_wait_s
        ask = Reroute(lost, why)
        if self._detours == 0:
            self._detours = 1
            self._state = _Rerouting(ask, None)
            return [*self._give_back(), ask]
        self._state = _Rerouting(ask, now + self._detour_s())
        return self._give_back()

    def _detour_s(self) -> float:
        delay_s = self._limits.reroute.delay_s(self._detours, jitter=self._jitter())
        self._detours += 1
        return delay_s

    def _give_back(self) -> Actions:
        if not self._held:
            return []
        release = Release(self._spec.session, tuple(self._held))
        self._held = {}
        return [release]

    def _end(self, last: Actions) -> Actions:
        self._state = _Done()
        return [*self._give_back(), *last]

    def _open_question(self, ref: int) -> _Asking | None:
        state = self._state
        return state if isinstance(state, _Asking) and state.reserve.ref == ref else None
