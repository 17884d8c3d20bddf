"""A session store that is watched: each rule it must keep is judged from outside.

The auditor keeps its own small book (who was touched when, which attempt was
granted, which leases are out) and never asks the store what it decided.
"""

from __future__ import annotations

from typing import Any, ClassVar

from meshnet.core.sessions.entry import EvictionReason, Lease
from meshnet.core.sessions.store import SessionCacheStore
from meshnet.core.vocabulary import KVCacheMiss, SessionId
from meshnet.node.steps import Kept
from meshnet.simulation.toy_shard import ToyState

Store = SessionCacheStore[Kept[ToyState]]
ToyLease = Lease[Kept[ToyState]]


class AuditedStore(Store):
    """Complains about a second lease, an old attempt, a torn session kept, a wrong victim."""

    complaints: ClassVar[list[str]]

    def __init__(self, **limits: Any) -> None:
        super().__init__(**limits)
        self._out: dict[SessionId, ToyLease] = {}
        self._attempts: dict[SessionId, int] = {}
        self._touched: dict[SessionId, float] = {}
        self._over: set[SessionId] = set()

    def reserve(self, session: SessionId, **asked: Any) -> None:
        before = set(self._shelf.entries)
        super().reserve(session, **asked)
        self._settle(before, session, asked["now"])

    def prefill(self, session: SessionId, **asked: Any) -> ToyLease:
        before = set(self._shelf.entries)
        newest, attempt = self._attempts.get(session), asked["attempt"]
        lease = super().prefill(session, **asked)
        if newest is not None and attempt is not None and attempt < newest:
            self.complaints.append(f"{session}: prefill of attempt {attempt} after {newest}")
        if attempt is not None:
            self._attempts[session] = attempt
        self._out[session] = lease
        self._settle(before, session, asked["now"])
        return lease

    def decode(self, session: SessionId, **asked: Any) -> ToyLease:
        before = set(self._shelf.entries)
        try:
            lease = super().decode(session, **asked)
        except KVCacheMiss:
            self._forget_absent()  # one that found no bytes to grow was preempted
            raise
        if (old := asked.get("adopt")) is not None:
            if old in self._shelf.entries:
                self.complaints.append(f"{session}: {old} lives on, though adopted")
            if old in self._out:
                self.complaints.append(f"{session}: adopted {old}, of which a step ran")
            self._attempts[session] = asked["attempt"]
        newest, attempt = self._attempts.get(session), asked["attempt"]
        if attempt is not None and newest is not None:
            if attempt < newest:
                self.complaints.append(f"{session}: decode of attempt {attempt} after {newest}")
            self._attempts[session] = max(attempt, newest)
        if session in self._out:
            self.complaints.append(f"{session}: two leases at once")
        self._out[session] = lease
        self._settle(before, session, asked["now"])
        return lease

    def replay(self, session: SessionId, **asked: Any) -> Kept[ToyState]:
        kept = super().replay(session, **asked)
        self._touched[session] = asked["now"]
        return kept

    def commit(self, lease: ToyLease, **result: Any) -> bool:
        before = set(self._shelf.entries)
        committed = super().commit(lease, **result)
        self._end(lease)
        if committed:
            self._settle(before, lease.session, result["now"])
        return committed

    def abandon(self, lease: ToyLease, reason: EvictionReason = EvictionReason.TORN) -> bool:
        entry = self._shelf.entries.get(lease.session)
        stale = entry is not None and self._out.get(lease.session) is not lease
        abandoned = super().abandon(lease, reason)
        if stale and lease.session not in self._shelf.entries:
            self.complaints.append(f"{lease.session}: a superseded step freed the newer cache")
        if not stale and reason is EvictionReason.TORN and lease.session in self._shelf.entries:
            self.complaints.append(f"{lease.session}: kept though its step tore")
        self._end(lease)
        self._forget_absent()
        return abandoned

    def withdraw(self, lease: ToyLease) -> bool:
        withdrawn = super().withdraw(lease)
        self._end(lease)
        return withdrawn

    def release(self, session: SessionId, now: float, *, linger: bool = False) -> bool:
        released = super().release(session, now, linger=linger)
        self._forget_absent()
        self._over |= set(self._shelf.entries) - set(self._touched)  # lent, and given back
        if linger and session in self._shelf.entries:
            self._over.add(session)
        return released

    def _end(self, lease: ToyLease) -> None:
        if self._out.get(lease.session) is lease:
            del self._out[lease.session]

    def _settle(self, before: set[SessionId], session: SessionId, now: float) -> None:
        """Judge who was evicted by a call that touched `session`, then write the touch down."""
        self._judge_victims(before, session, now)
        self._forget_absent()
        self._touched[session] = now
        self._over.discard(session)
        try:
            self.check_integrity()
        except AssertionError as broken:
            self.complaints.append(f"{session}: integrity broken {broken}")

    def _judge_victims(self, before: set[SessionId], session: SessionId, now: float) -> None:
        present = self._shelf.entries
        taken = [eviction for eviction in self._shelf.recent if eviction.session in before]
        for eviction in taken:
            if eviction.reason is not EvictionReason.LRU or eviction.session in present:
                continue
            victim = self._wanted(eviction.session, now)
            idle = [
                other
                for other in present
                if other != session and other not in self._out and other not in self._shelf.streams
            ]
            older = [other for other in idle if self._wanted(other, now) < victim]
            if older and eviction.session in self._touched:
                what = f"{eviction.session}: evicted though {older[0]} was idle longer"
                self.complaints.append(what)

    def _wanted(self, session: SessionId, now: float) -> tuple[bool, float]:
        """Who is over goes first, then who was not touched for longest."""
        return session not in self._over, self._touched.get(session, now)

    def _forget_absent(self) -> None:
        self._over &= set(self._shelf.entries)
        for session in [known for known in self._touched if known not in self._shelf.entries]:
            del self._touched[session]
            self._attempts.pop(session, None)
            self._out.pop(session, None)


def audited(store: type[Store], complaints: list[str]) -> type[AuditedStore]:
    """Return `store`, watched. A mutant goes in as a subclass of the real store."""
    made = type(f"Audited{store.__name__}", (AuditedStore, store), {"complaints": complaints})
    assert issubclass(made, AuditedStore)
    return made
