"""Room for a session of one shard: a place among so many, and bytes within the device's bound.

Who goes is planned first, and evicted only if that suffices: what is refused changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Generic

from meshnet.core.sessions.budget import ByteBudget, Claim, Shelf, Victim, least_wanted
from meshnet.core.sessions.entry import C, EvictionReason, Need, SessionCacheEntry
from meshnet.core.vocabulary import (
    KVCacheMiss,
    LayerRange,
    MissReason,
    NoRoom,
    SessionId,
    TooLarge,
)

RETRY_AFTER_S = 0.5
"""A place frees by a release rather than by a pin running out, so those who wait ask often."""


class Rooms(Generic[C]):
    """At most `sessions_max` places on `shelf`, and its part of the device's `budget`."""

    def __init__(self, shelf: Shelf[C], budget: ByteBudget, sessions_max: int) -> None:
        self._shelf, self._budget, self._sessions_max = shelf, budget, sessions_max

    def check_bound(self, need: Need) -> None:
        """Raise TooLarge for what fits on no empty device either."""
        bytes_needed = need.of(shed=True)
        if bytes_needed > self._budget.bytes_max:
            bound = f"a session of at most {self._budget.bytes_max} bytes of KV cache"
            raise TooLarge("tokens", bound, bytes_needed)

    def grow(self, entry: SessionCacheEntry[C], need: Need, now: float) -> None:
        """Find room for an old session's next positions, or preempt the session itself.

        Raises KVCacheMiss where it was preempted.
        """
        if need.of(shed=entry.shed) <= entry.bytes:
            return
        claim = Claim(need.of(shed=entry.shed), entry.session, entry)
        victims, sheds = self._victims(claim, need, (), now)
        if victims is None:
            self._shelf.remove(entry, EvictionReason.PREEMPTED)
            raise KVCacheMiss(MissReason.PREEMPTED, "older sessions need the bytes")
        _evict(victims)
        if sheds:
            self._shelf.shed(entry)

    def place(
        self,
        session: SessionId,
        layers: LayerRange,
        need: Need,
        *,
        anyone: bool,
        now: float,
        refilled: bool = False,
    ) -> SessionCacheEntry[C]:
        """Return the session's entry, made if need be, with room for its bytes. Raises NoRoom.

        Args:
            anyone: take it from whoever was used least recently, pinned or not (ADR-0022).
            refilled: the session ran before, and has its age's right to a place.
        """
        entry = self._shelf.entries.get(session)
        shed = entry is not None and entry.shed
        if entry is not None and need.of(shed=shed) <= entry.bytes:
            return entry
        out_of_the_way: list[Victim] = []
        if entry is None:
            elder = session if refilled else None
            out_of_the_way = self._count_victim(elder, now, anyone=anyone)
        elder = None if entry is None or entry.lent is not None else session
        claim = Claim(need.of(shed=shed), elder, entry, anyone=anyone)
        victims, sheds = self._victims(claim, need, out_of_the_way, now)
        if victims is None:
            raise NoRoom(
                f"no room for {claim.bytes} bytes: {self._budget.bytes} of "
                f"{self._budget.bytes_max} are taken",
                RETRY_AFTER_S,
            )
        _evict([*out_of_the_way, *victims])
        if entry is None:
            entry = SessionCacheEntry(session, layers, self._budget.next_created(), now)
            self._shelf.entries[session] = entry
        if sheds:
            entry.lease = None  # of a step that is about to be superseded, if there is one
            self._shelf.shed(entry)
        return entry

    def _victims(
        self, claim: Claim, need: Need, gone: Sequence[Victim], now: float
    ) -> tuple[list[Victim] | None, bool]:
        """Say who goes, and whether the session does without what it can, so that nobody has to.

        It cannot while a step of it runs that goes on: that one keeps what it makes.
        """
        whole = self._budget.victims(claim, gone, now)
        less = need.of(shed=True)
        if less == claim.bytes or (whole is not None and not any(v.reason for v in whole)):
            return whole, False
        lean = self._budget.victims(replace(claim, bytes=less), gone, now)
        return lean, lean is not None

    def _count_victim(self, elder: SessionId | None, now: float, *, anyone: bool) -> list[Victim]:
        """Say who frees a place for one more session, if one is needed. Raises NoRoom.

        `elder` runs already and lost its place here. It takes that of a younger session, as it
        would take its bytes: if each kept what the other needs, neither would ever go on.
        """
        entries = self._shelf.entries.values()
        if len(entries) < self._sessions_max:
            return []
        if anyone:
            candidates = [entry for entry in entries if entry.lease is None] or list(entries)
        else:
            candidates = [entry for entry in entries if not self._shelf.pinned(entry, now)]
        if not candidates and elder is not None:
            younger = [e for e in entries if e.lease is None and e.session > elder]
            if younger:
                youngest = max(younger, key=lambda entry: entry.session)
                return [Victim(self._shelf, youngest, EvictionReason.PREEMPTED)]
        if not candidates:
            raise NoRoom(f"all {self._sessions_max} places are taken", RETRY_AFTER_S)
        victim = min(candidates, key=least_wanted)
        return [Victim(self._shelf, victim, EvictionReason.LRU)]


def _evict(victims: Sequence[Victim]) -> None:
    for victim in victims:
        victim.go()
