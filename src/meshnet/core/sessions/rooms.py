"""Room for a session of one shard: a place among so many, and bytes within the device's bound.

Who goes is planned first, and evicted only if that suffices: what is refused changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic

from meshnet.core.sessions.budget import ByteBudget, Claim, Shelf, Victim, least_wanted
from meshnet.core.sessions.entry import C, EvictionReason, SessionCacheEntry
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

    def check_bound(self, bytes_needed: int) -> None:
        """Raise TooLarge for what fits on no empty device either."""
        if bytes_needed > self._budget.bytes_max:
            bound = f"a session of at most {self._budget.bytes_max} bytes of KV cache"
            raise TooLarge("tokens", bound, bytes_needed)

    def grow(self, entry: SessionCacheEntry[C], bytes_needed: int, now: float) -> None:
        """Find room for an old session's next positions, or preempt the session itself.

        Raises KVCacheMiss where it was preempted.
        """
        if bytes_needed <= entry.bytes:
            return
        claim = Claim(bytes_needed, entry.session, entry)
        victims = self._budget.victims(claim, (), now)
        if victims is None:
            self._shelf.remove(entry, EvictionReason.PREEMPTED)
            raise KVCacheMiss(MissReason.PREEMPTED, "older sessions need the bytes")
        _evict(victims)

    def place(
        self,
        session: SessionId,
        layers: LayerRange,
        bytes_needed: int,
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
        if entry is not None and bytes_needed <= entry.bytes:
            return entry
        out_of_the_way: list[Victim] = []
        if entry is None:
            elder = session if refilled else None
            out_of_the_way = self._count_victim(elder, now, anyone=anyone)
        elder = None if entry is None or entry.lent is not None else session
        claim = Claim(bytes_needed, elder, entry, anyone=anyone)
        victims = self._budget.victims(claim, out_of_the_way, now)
        if victims is None:
            raise NoRoom(
                f"no room for {bytes_needed} bytes: {self._budget.bytes} of "
                f"{self._budget.bytes_max} are taken",
                RETRY_AFTER_S,
            )
        _evict([*out_of_the_way, *victims])
        if entry is None:
            entry = SessionCacheEntry(session, layers, self._budget.next_created(), now)
            self._shelf.entries[session] = entry
        return entry

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
        victim.shelf.remove(victim.entry, victim.reason)
