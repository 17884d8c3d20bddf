"""What the store knows of one session, and the right to extend it by one step.

    absent --reserve--> place --prefill--> leased --commit--> resident --decode--> leased
                                              |                   |
                                              +--abandon--> absent <--evicted, released

A session whose head is done with it may linger, and be adopted by another (adopting.py).

Invariants
    * `state` is there exactly while positions are committed: between a prefill and its commit
      the old state is gone and the new one belongs to the running step;
    * `length` counts committed positions only, and is true of every layer of the shard.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from meshnet.core.protocol.digest import PrefixDigest
from meshnet.core.sessions.known_ids import KnownIds
from meshnet.core.vocabulary import LayerRange, SessionDescription, SessionId

C = TypeVar("C")


class EvictionReason(Enum):
    """Why a session is no longer in the store."""

    TTL = "ttl"
    LRU = "lru"
    """Its place was needed."""
    BYTES = "bytes"
    """Its bytes were needed, and nobody was waiting for it."""
    PREEMPTED = "preempted"
    """Its bytes were needed by an older session, or it could not grow beside older ones."""
    TORN = "torn"
    RELEASED = "released"


@dataclass(frozen=True, slots=True)
class Eviction:
    session: SessionId
    reason: EvictionReason


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes that a session takes; it can do without `spare` of them, but then sends nothing again.

    They are what left its last layer, kept for a hop that may be lost (ADR-0041).
    """

    bytes: int = 0
    spare: int = 0

    def of(self, *, shed: bool) -> int:
        return self.bytes - self.spare if shed else self.bytes


NOTHING = Need()


@dataclass(frozen=True, slots=True, eq=False)
class Lease(Generic[C]):
    """Exclusive right to extend one session by one step.

    It ends once, by commit, abandon or withdraw. `state` is None for a prefill, which starts
    from a fresh one.
    """

    session: SessionId
    layers: LayerRange
    length_before: int
    length_after: int
    state: C | None
    digest: PrefixDigest | None
    """Of the positions before the step; None where they came without ids."""
    after: Need
    truncate: bool = False
    """`state` holds more than `length_before` positions: the step shortens it first."""
    keeps: bool = True
    """What leaves the last layer is to be kept, if all before it was."""


@dataclass(frozen=True, slots=True)
class Lent:
    """What a session was before it was lent to the one that is to adopt it."""

    session: SessionId
    used_at: float
    reserved: Need
    attempt: int | None


@dataclass(slots=True, eq=False)
class SessionCacheEntry(Generic[C]):
    """One session on one shard. `created` numbers the sessions of a device as they came."""

    session: SessionId
    layers: LayerRange
    created: int
    used_at: float
    attempt: int | None = None
    prefilled: bool = False
    """A prefill of `attempt` was leased: another one is a late duplicate."""
    length: int = 0
    ids: KnownIds | None = None
    """None where a step came without ids: nothing can be proved then."""
    state: C | None = None
    lease: Lease[C] | None = None
    reserved: Need = NOTHING
    held: Need = NOTHING
    """Of the state as it was committed."""
    shed: bool = False
    """It gave up what it can do without, for want of room."""
    lingers: bool = False
    """Its head is done with it: nobody is likely to miss it."""
    lent: Lent | None = None
    """It goes by the name of its heir, which has not adopted it yet."""

    @property
    def digest(self) -> PrefixDigest | None:
        return None if self.ids is None else self.ids.digest

    @property
    def bytes(self) -> int:
        """What counts against the device's bound: the promise, the present, or the running step."""
        return self._bytes(shed=self.shed)

    @property
    def spare_bytes(self) -> int:
        """What would be free if the session gave up what it can do without; 0 while a step runs."""
        if self.shed or self.lease is not None:
            return 0
        return self._bytes(shed=False) - self._bytes(shed=True)

    def _bytes(self, *, shed: bool) -> int:
        leased = NOTHING if self.lease is None else self.lease.after
        return max(self.reserved.of(shed=shed), self.held.of(shed=shed), leased.of(shed=shed))

    def pinned(self, now: float, pin_s: float) -> bool:
        """Whether somebody is likely to come back for this session soon."""
        return self.lease is not None or (not self.lingers and now - self.used_at < pin_s)

    def touch(self, attempt: int | None, now: float) -> None:
        """A step of `attempt` goes on with it: from now on steps of older ones do not."""
        self.used_at = now
        if attempt is not None and self.attempt is not None:
            self.attempt = attempt

    def describe(self) -> SessionDescription:
        return SessionDescription(
            session=self.session,
            layers=self.layers,
            length=self.length,
            prefix=None if self.digest is None else self.digest.hex,
            attempt=self.attempt,
            kv_bytes=self.bytes,
            replayable=self.length if self.held.spare else 0,
        )
