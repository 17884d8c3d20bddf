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
    bytes_after: int
    truncate: bool = False
    """`state` holds more than `length_before` positions: the step shortens it first."""


@dataclass(frozen=True, slots=True)
class Lent:
    """What a session was before it was lent to the one that is to adopt it."""

    session: SessionId
    used_at: float
    reserved_bytes: int
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
    reserved_bytes: int = 0
    state_bytes: int = 0
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
        leased_bytes = 0 if self.lease is None else self.lease.bytes_after
        return max(self.reserved_bytes, self.state_bytes, leased_bytes)

    def pinned(self, now: float, pin_s: float) -> bool:
        """Whether somebody is likely to come back for this session soon."""
        return self.lease is not None or (not self.lingers and now - self.used_at < pin_s)

    def describe(self) -> SessionDescription:
        return SessionDescription(
            session=self.session,
            layers=self.layers,
            length=self.length,
            prefix=None if self.digest is None else self.digest.hex,
            attempt=self.attempt,
            kv_bytes=self.bytes,
        )
