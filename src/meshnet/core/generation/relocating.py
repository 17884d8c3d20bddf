"""A generation that leaves nodes which would like to be rid of it, between two tokens (ADR-0045).

    delivering ──leaving──▶ moving: a way is looked for ──it pays──▶ moving: taken over ──▶ asking,
                               │                                        │   over the new hops
                               └─none, too late: on as before           └─any failed: on as before

Until every new hop has said that it holds exactly the positions that all hops had confirmed,
nothing has changed: the old hops still hold the session, and a move that fails costs a pause. Where
a session cannot be moved, or that does not pay, its layers are filled again over the new route.

Invariant: what a session goes on with was confirmed by length and digest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from meshnet.core.generation.machine import Actions, Generation
from meshnet.core.generation.moves import FindMove, LetGo, Moved, MoveFound, TakenOver, TakeOver
from meshnet.core.generation.states import Delivering, Moving
from meshnet.core.generation.transcript import (
    Delivered,
    GenerationAction,
    GenerationEvent,
    NoRoute,
    RefillReason,
    Tick,
)
from meshnet.core.protocol.digest import PrefixDigest
from meshnet.core.protocol.limits import STEPS_OUT_MAX
from meshnet.core.protocol.moving import TakeRequest
from meshnet.core.routing.moving import Taking, moving_pays
from meshnet.core.vocabulary import Hop, HopLost, Route, SessionDescription

Event = GenerationEvent | MoveFound | TakenOver
NO_MORE_WINDOWS = Delivered(void=STEPS_OUT_MAX)
"""Every place for a window is taken, as it were."""


class RelocatingGeneration(Generation):
    """A `Generation` that is told, with every token, whether some hop is leaving."""

    _again_at = 0.0
    _failed = 0

    def handle(self, event: Event, now: float) -> Actions:
        match event, self._state:
            case Delivered(void, leaving=True), Delivering() as state if now >= self._again_at:
                return self._leave(state, void, now)
            case MoveFound(), Moving(route=None) as moving:
                return self._found(moving, event, now)
            case TakenOver(found), Moving(route=Route() as route) as moving:
                return self._taken(moving, route, found, now)
            case NoRoute(), Moving() as moving:
                return self._stay(moving, now)
            case Tick(), Moving(until=until) as moving if until <= now < self._recovery.until:
                return self._stay(moving, now)
            case ((MoveFound() | TakenOver()), _):
                return []
            case _:
                return super().handle(event, now)

    def _leave(self, state: Delivering, void: int, now: float) -> Actions:
        """Look for another way once nothing of the session is on its way, and all hops agree."""
        cached = self._sequence.cached()
        if state.pipeline is not None or void or cached is None:
            return super().handle(NO_MORE_WINDOWS, now)
        ids, _ = cached
        self._state = Moving(now, now + self._limits.move.find_s, ids)
        return [FindMove(self.route, len(ids))]

    def _found(self, state: Moving, found: MoveFound, now: float) -> Actions:
        if found.route.hops == self.route.hops:
            return self._stay(state, now)
        if not found.takings or not self._pays(found.takings, found.route, len(state.ids)):
            turn = self._recovery.refill(RefillReason.MOVED, "its nodes drain", now)
            self._questions.reroute(found.route)
            self._failed = 0
            return self._turn(turn, now)
        timeout_s = min(self._limits.move.take_s, self._recovery.until - now)
        orders = tuple((each.hop, self._order(state, each, timeout_s)) for each in found.takings)
        for hop, _ in orders:
            self._questions.touch(hop.node)
        moved_bytes = sum(taking.bytes for taking in found.takings)
        self._state = replace(
            state, until=now + timeout_s, route=found.route, orders=orders, bytes=moved_bytes
        )
        return [TakeOver(orders, timeout_s, self._limits.move.alive_s)]

    def _pays(self, takings: Sequence[Taking], route: Route, length: int) -> bool:
        if self._failed >= self._limits.move.tries_max:
            return False
        lost = sum(len(taking.hop.layers) for taking in takings)
        return moving_pays(
            takings,
            bytes_per_s=self._limits.move.bytes_per_s,
            positions=length * lost // route.hops[-1].layers.stop,
            positions_per_s=self._accounts.prefill_speed(self._sequence.prompt_length),
        )

    def _order(self, state: Moving, taking: Taking, timeout_s: float) -> TakeRequest:
        return TakeRequest(
            session=self._spec.session,
            giver=taking.giver,
            layers=taking.hop.layers,
            attempt=self._questions.attempt,
            tokens=state.ids,
            model=self.route.model,
            fingerprint=self.route.fingerprint,
            sampling=self._spec.sampling,
            deadline_ms=max(int(timeout_s * 1000), 1),
        )

    def _taken(
        self,
        state: Moving,
        route: Route,
        found: Sequence[SessionDescription | HopLost],
        now: float,
    ) -> Actions:
        prefix = PrefixDigest.of(state.ids).hex
        if len(found) != len(state.orders) or not all(
            isinstance(said, SessionDescription) and _confirms(said, hop, order, prefix)
            for (hop, order), said in zip(state.orders, found, strict=True)
        ):
            return self._stay(state, now)
        going = {hop.node for hop in route.hops}
        left = tuple(hop.node for hop in self.route.hops if hop.node not in going)
        self._questions.reroute(route)
        self._failed = 0
        told = Moved(len(state.orders), state.bytes, now - state.began_at)
        return [LetGo(self._spec.session, left), told, *self._go(now)]

    def _stay(self, state: Moving, now: float) -> Actions:
        """Go on as before, without what was taken over, and try again later."""
        self._again_at = now + self._limits.move.again_s
        if not state.orders:
            return self._go(now)
        self._failed += 1
        strays = tuple(hop.node for hop, _ in state.orders)
        return [LetGo(self._spec.session, strays), *self._go(now)]

    def _go(self, now: float) -> list[GenerationAction]:
        self._state = Delivering()
        return super().handle(Delivered(), now)


def _confirms(said: SessionDescription, hop: Hop, order: TakeRequest, prefix: str) -> bool:
    """Whether the hop holds its layers of exactly the positions meant."""
    expected = (order.session, hop.layers, len(order.tokens), prefix, order.attempt)
    return expected == (said.session, said.layers, said.length, said.prefix, said.attempt)
