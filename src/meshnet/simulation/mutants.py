"""Wrong versions of the real code, each a small subclass, to show that the checkers see.

A mutant replaces one part of a cluster (`Parts`). Nothing in the real code knows of them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from meshnet.core.generation import questions
from meshnet.core.generation.machine import Generation
from meshnet.core.generation.pipeline import Entering, Pipeline
from meshnet.core.generation.transcript import (
    Emit,
    GenerationAction,
    GenerationEvent,
    Refilling,
    Replied,
)
from meshnet.core.protocol.messages import ActivationReply, ForwardRequest, Refusal, Reply
from meshnet.core.sessions import store as sessions_store
from meshnet.core.sessions.budget import ByteBudget
from meshnet.core.sessions.entry import EvictionReason, SessionCacheEntry
from meshnet.core.sessions.rooms import Rooms
from meshnet.core.sessions.store import SessionCacheStore
from meshnet.core.vocabulary import (
    Activation,
    SampledToken,
    SamplingParams,
    SessionId,
    ShardStep,
)
from meshnet.node.steps import Kept
from meshnet.simulation.audit import ToyLease
from meshnet.simulation.faults import CALM, STORM, Faults
from meshnet.simulation.toy_shard import Running, ToyShard, ToyState
from meshnet.simulation.world import Parts
from meshnet.wire.handing import Handing

Entry = SessionCacheEntry[Kept[ToyState]]
Real = SessionCacheStore[Kept[ToyState]]


class KeepsTornSession(Real):
    """Keeps a session after a torn step: its length did not change, after all."""

    def abandon(self, lease: ToyLease, reason: EvictionReason = EvictionReason.TORN) -> bool:
        if reason is EvictionReason.TORN and lease.state is not None:
            return self.withdraw(lease)
        return super().abandon(lease, reason)


class ChecksThenActs(Real):
    """Checks the length when asked and never takes the lease into account."""

    def decode(self, session: SessionId, **asked: Any) -> ToyLease:
        entry = self._shelf.entries.get(session)
        if entry is not None:
            entry.lease = None
        return super().decode(session, **asked)

    def _leased(self, lease: ToyLease) -> Entry | None:
        return self._shelf.entries.get(lease.session)


class StaleAbandonFreesNewer(Real):
    """Frees whatever the session holds now when a superseded step fails."""

    def abandon(self, lease: ToyLease, reason: EvictionReason = EvictionReason.TORN) -> bool:
        entry = self._shelf.entries.get(lease.session)
        if entry is None:
            return False
        self._shelf.remove(entry, reason)
        return True


class EvictsMostRecentlyUsed(Real):
    """Evicts the session that was used last."""

    def __init__(self, *, budget: ByteBudget, sessions_max: int, **limits: Any) -> None:
        super().__init__(budget=budget, sessions_max=sessions_max, **limits)
        self._rooms = _MostRecentlyUsedFirst(self._shelf, budget, sessions_max)


class _MostRecentlyUsedFirst(Rooms[Kept[ToyState]]):
    def _count_victim(self, elder: SessionId | None, now: float, *, anyone: bool) -> Any:
        entries = self._shelf.entries.values()
        used = {id(entry): entry.used_at for entry in entries}
        newest = max(used.values(), default=0.0)
        idle = [entry for entry in entries if anyone or not self._shelf.pinned(entry, now)]
        for entry in idle:
            entry.used_at = newest - used[id(entry)]
        try:
            return super()._count_victim(elder, newest + self._shelf.pin_s, anyone=anyone)
        finally:
            for entry in entries:
                entry.used_at = used[id(entry)]


class AcceptsLongerSessions(Real):
    """Takes a decode whenever the session is long enough: `<` in place of `!=`."""

    def decode(self, session: SessionId, *, past_length: int, **asked: Any) -> ToyLease:
        entry = self._shelf.entries.get(session)
        if entry is None or past_length >= entry.length:
            return super().decode(session, past_length=past_length, **asked)
        lease = super().decode(session, past_length=entry.length, **asked | {"prefix": None})
        after = past_length + asked["tokens"]
        entry.lease = replace(lease, length_before=entry.length, length_after=after)
        return entry.lease


class AcceptsOlderAttempts(Real):
    """Computes a late prefill of an attempt that is over."""

    def prefill(self, session: SessionId, **asked: Any) -> ToyLease:
        with (
            patch.object(sessions_store, "refuse_older", _refuse_nothing),
            patch.object(sessions_store, "refuse_duplicate", _refuse_nothing),
        ):
            return super().prefill(session, **asked)


class PinsForever(Real):
    """A session that was ever touched stays pinned until somebody releases it."""

    def __init__(self, *, pin_s: float, **limits: Any) -> None:
        super().__init__(pin_s=limits["ttl_s"], **limits)


class TrustsReleaseHints(Real):
    """Lets sessions go only when their head says so."""

    def __init__(self, *, ttl_s: float, **limits: Any) -> None:
        super().__init__(ttl_s=1e9, **limits)


class ForgetsTailHistory(ToyShard):
    """A refill's tail remembers the prompt only: what was generated is lost from its history."""

    def _running(self, step: ShardStep, state: ToyState | None) -> Running:
        prompt_length = step.sampling.prompt_length
        if step.past_length == 0 < step.layers.start and step.length > prompt_length > 0:
            step = replace(step, tokens=step.tokens[:prompt_length])
        return super()._running(step, state)


class DrawsFromRunningGenerator(ToyShard):
    """Draws from a generator that goes on from token to token, seeded once per shard."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._generator = random.Random(0)

    def _draw(
        self, row: int, position: int, history: Sequence[int], sampling: SamplingParams
    ) -> SampledToken:
        running = replace(sampling, seed=self._generator.getrandbits(64))
        return super()._draw(row, position, history, running)


class SwapsRowsInBatch(ToyShard):
    """Gives the rows of a batch back to its sessions in another order than they came in."""

    def _split(self, rows: list[int], batch: Sequence[Running]) -> list[list[int]]:
        if len({len(running.rows) for running in batch}) > 1:
            return super()._split(rows, batch)
        return super()._split(rows, batch)[::-1]


class TrustsSilentHops(Generation):
    """Takes an answer without a confirmed length for a confirmation."""

    def handle(self, event: GenerationEvent, now: float) -> list[GenerationAction]:
        if isinstance(event, Replied) and not isinstance(event.reply, Refusal):
            asking = self._open_question(event.ref)
            if asking is not None and event.reply.cached is None:
                reply = replace(event.reply, cached=asking.step.length_after)
                event = replace(event, reply=reply)
        return super().handle(event, now)


class EmitsTwiceAfterRefill(Generation):
    """Emits the last token again when its session is filled again."""

    _last: Emit | None = None

    def handle(self, event: GenerationEvent, now: float) -> list[GenerationAction]:
        actions = super().handle(event, now)
        for action in actions:
            if isinstance(action, Emit):
                self._last = action
        again = [self._last] if self._last and any(map(_is_refill, actions)) else []
        return [*again, *actions]


class HandsOnTheStepBefore(Handing):
    """Sends the next hop the activation that it sent it last, where that has the same shape."""

    _last: Activation | None = None

    async def serve(self, number: int, step: ForwardRequest, run: Any) -> None:
        async def late(step: ForwardRequest) -> Reply:
            reply: Reply = await run(step)
            if not isinstance(reply, ActivationReply):
                return reply
            before, self._last = self._last, reply.activation
            if before is None or before.tensors != reply.activation.tensors:
                return reply
            return replace(reply, activation=before)

        await super().serve(number, step, late)


class SwapsChunksAtOneHop(Generation):
    """Puts what waits before the first hop to it in another order, the last chunk aside."""

    def handle(self, event: GenerationEvent, now: float) -> list[GenerationAction]:
        with patch.object(questions, "Pipeline", _Swapping):
            return super().handle(event, now)


class _Swapping(Pipeline):
    def ready(self) -> Iterator[Entering]:
        first = self._before[0]
        if len(first) > 2:
            first[0], first[1] = first[1], first[0]
        return super().ready()


def _is_refill(action: GenerationAction) -> bool:
    return isinstance(action, Refilling)


def _refuse_nothing(*_: object) -> None:
    """Any attempt is welcome."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A wrong part, and the faults that bring it to light."""

    name: str
    parts: Parts
    faults: Faults = STORM


DOUBLING = Faults(duplicated=0.3, out_of_memory=0.1)
"""A second copy of a decode finds what the first one left behind."""

TEARING = replace(STORM, out_of_memory=0.4, pause_every_s=0.7, crash_every_s=0.0)
"""Steps fail while processes stop, so that a newer prefill overtakes a step about to fail."""

DYING_HEADS = Faults(lost=0.03, head_crash=1.0)
"""Nobody releases or keeps a dead head's sessions, and no node restarts and forgets them."""

STALLING = Faults(stalled=0.8, stall_max_s=40.0)
"""Clients stop reading, so sessions go untouched at different times."""

MUTANTS = (
    Mutant("keep after a torn step", Parts(store=KeepsTornSession), DOUBLING),
    Mutant("check-then-act", Parts(store=ChecksThenActs)),
    Mutant("stale abandon frees the new cache", Parts(store=StaleAbandonFreesNewer), TEARING),
    Mutant("LRU order", Parts(store=EvictsMostRecentlyUsed), STALLING),
    Mutant("`!=` weakened", Parts(store=AcceptsLongerSessions), DOUBLING),
    Mutant("late prefill of an old attempt", Parts(store=AcceptsOlderAttempts)),
    Mutant("old middle node trusted", Parts(generation=TrustsSilentHops), CALM),
    Mutant("pin without expiry", Parts(store=PinsForever), DYING_HEADS),
    Mutant("tail history lost on refill", Parts(shard=ForgetsTailHistory)),
    Mutant("running generator", Parts(shard=DrawsFromRunningGenerator), CALM),
    Mutant("rows swapped in a batch", Parts(shard=SwapsRowsInBatch), CALM),
    Mutant("release hint trusted", Parts(store=TrustsReleaseHints)),
    Mutant("an older activation handed on", Parts(handing=HandsOnTheStepBefore), CALM),
    Mutant("chunks swapped at one hop", Parts(generation=SwapsChunksAtOneHop)),
    Mutant("token emitted twice after a refill", Parts(generation=EmitsTwiceAfterRefill)),
)
