"""How many bytes of KV cache a device holds over all its models, and who goes first.

Whoever needs bytes takes them, in this order:

    0. what sessions can do without: kept activations, of the least wanted session first (ADR-0041);
    1. unpinned sessions, those that linger before the others, least recently used first;
    2. sessions *younger* than the one that grows, the youngest first, those that run no step
       before those that do (a running step then finds itself superseded).

Seniority is the order of session ids, which heads begin with the time: it is the same on every
node, whatever arrived where first. (Were it each node's own, two sessions could each be the elder
on one node and preempt each other forever.) A session can only be preempted by an older one, so
the oldest always progresses, and each session that finishes makes another the oldest: sessions
that together exceed the bound finish one after the other. A session that was preempted has no
room before one that was older has left, since only what is there may grow.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic

from meshnet.core.sessions.entry import C, Eviction, EvictionReason, Need, SessionCacheEntry
from meshnet.core.sessions.streams import OpenStreams
from meshnet.core.vocabulary import SessionId

EVICTIONS_KEPT = 256
"""Evictions remembered for telemetry until somebody asks; the counters miss none."""


class Shelf(Generic[C]):
    """The sessions of one shard, and why others are no longer there."""

    def __init__(
        self, *, ttl_s: float, pin_s: float, drop_spare: Callable[[C], None] | None = None
    ) -> None:
        self._drop_spare = drop_spare
        self.entries: dict[SessionId, SessionCacheEntry[C]] = {}
        self.ttl_s = ttl_s
        self.pin_s = pin_s
        self.streams = OpenStreams()
        self.evictions: Counter[EvictionReason] = Counter()
        self.recent: deque[Eviction] = deque(maxlen=EVICTIONS_KEPT)

    def remove(self, entry: SessionCacheEntry[C], reason: EvictionReason) -> None:
        del self.entries[entry.session]
        self.evictions[reason] += 1
        self.recent.append(Eviction(entry.session, reason))

    def shed(self, entry: SessionCacheEntry[C]) -> None:
        """Let `entry`, of which no step runs, give up what it can do without, for good."""
        assert entry.lease is None, f"{entry.session}: a step of it runs"
        entry.shed, entry.held = True, Need(entry.held.of(shed=True))
        if entry.state is not None and self._drop_spare is not None:
            self._drop_spare(entry.state)

    def rename(self, entry: SessionCacheEntry[C], session: SessionId) -> None:
        """Let `entry` answer to `session`, under which there is nothing else, and to that only."""
        del self.entries[entry.session]
        assert session not in self.entries, f"{session}: there is one already"
        entry.session = session
        self.entries[session] = entry

    def pinned(self, entry: SessionCacheEntry[C], now: float) -> bool:
        """Whether a step of it runs, its stream is open, or it was touched a moment ago."""
        return entry.pinned(now, self.pin_s) or entry.session in self.streams

    def expire(self, now: float) -> None:
        """Forget what nobody used for longer than `ttl_s`; a running step is use."""
        for entry in list(self.entries.values()):
            if entry.lease is None and now - entry.used_at > self.ttl_s:
                self.remove(entry, EvictionReason.TTL)


@dataclass(frozen=True, slots=True)
class Victim:
    """A session that has to go, where it is, and why; no reason: only what it can do without."""

    shelf: Shelf[Any]
    entry: SessionCacheEntry[Any]
    reason: EvictionReason | None

    def go(self) -> None:
        if self.reason is None:
            self.shelf.shed(self.entry)
        else:
            self.shelf.remove(self.entry, self.reason)


@dataclass(frozen=True, slots=True)
class Claim:
    """Bytes that one session asks for. Nobody younger than `elder` is in its way.

    `elder` None is a session that has no right to a place yet: it preempts nobody.
    `anyone` is ADR-0022's rule: the least recently used goes, pinned or not, of any age.
    """

    bytes: int
    elder: SessionId | None
    keep: SessionCacheEntry[Any] | None
    anyone: bool = False


class ByteBudget:
    """The bound that all shards of one device share."""

    def __init__(self, bytes_max: int) -> None:
        if bytes_max < 1:
            raise ValueError(f"bytes_max: expected at least 1, got {bytes_max}")
        self.bytes_max = bytes_max
        self.streams = OpenStreams()
        self._shelves: list[Shelf[Any]] = []
        self._created = 0

    def add(self, shelf: Shelf[Any]) -> None:
        shelf.streams = self.streams
        self._shelves.append(shelf)

    def remove(self, shelf: Shelf[Any]) -> None:
        """Forget a shard that was unloaded, with all its sessions."""
        self._shelves.remove(shelf)

    @property
    def bytes(self) -> int:
        """Bytes in use or promised on the device."""
        return sum(entry.bytes for _, entry in self._all())

    @property
    def sessions(self) -> int:
        """How many sessions all shards hold."""
        return sum([len(shelf.entries) for shelf in self._shelves])

    def next_created(self) -> int:
        self._created += 1
        return self._created

    def expire(self, now: float) -> None:
        for shelf in self._shelves:
            shelf.expire(now)

    def victims(self, claim: Claim, gone: Sequence[Victim], now: float) -> list[Victim] | None:
        """Say who goes, beside `gone`, so that `claim` fits; None if it cannot fit now."""
        leaving = {id(victim.entry) for victim in gone}
        shed: dict[int, int] = {}
        missing = self.bytes + claim.bytes - self.bytes_max
        missing -= sum(victim.entry.bytes for victim in gone)
        missing -= claim.keep.bytes if claim.keep is not None else 0
        chosen: list[Victim] = []
        for shelf, entry in self._sheddable(claim):
            if missing <= 0:
                break
            if id(entry) not in leaving:
                chosen.append(Victim(shelf, entry, None))
                shed[id(entry)] = entry.spare_bytes
                missing -= entry.spare_bytes
        for victim in self._in_order(claim, now):
            if missing <= 0:
                break
            if id(victim.entry) not in leaving:
                chosen.append(victim)
                missing -= victim.entry.bytes - shed.get(id(victim.entry), 0)
        return chosen if missing <= 0 else None

    def _sheddable(self, claim: Claim) -> list[tuple[Shelf[Any], SessionCacheEntry[Any]]]:
        able = [held for held in self._all() if held[1].spare_bytes and held[1] is not claim.keep]
        return sorted(able, key=_least_recent_leased_last)

    def _in_order(self, claim: Claim, now: float) -> Iterator[Victim]:
        others = [(shelf, entry) for shelf, entry in self._all() if entry is not claim.keep]
        idle = [(shelf, entry) for shelf, entry in others if not shelf.pinned(entry, now)]
        for shelf, entry in sorted(idle, key=_least_recent_leased_last):
            yield Victim(shelf, entry, EvictionReason.BYTES)
        busy = [(shelf, entry) for shelf, entry in others if shelf.pinned(entry, now)]
        if claim.anyone:
            for shelf, entry in sorted(busy, key=_least_recent_leased_last):
                yield Victim(shelf, entry, EvictionReason.BYTES)
            return
        busy.sort(key=lambda held: held[1].session, reverse=True)
        for shelf, entry in sorted(busy, key=_leased_last):
            if claim.elder is not None and entry.session > claim.elder:
                yield Victim(shelf, entry, EvictionReason.PREEMPTED)

    def _all(self) -> Iterator[tuple[Shelf[Any], SessionCacheEntry[Any]]]:
        for shelf in self._shelves:
            for entry in shelf.entries.values():
                yield shelf, entry


def _least_recent_leased_last(
    held: tuple[Shelf[Any], SessionCacheEntry[Any]],
) -> tuple[bool, bool, float, int]:
    return held[1].lease is not None, *least_wanted(held[1])


def least_wanted(entry: SessionCacheEntry[Any]) -> tuple[bool, float, int]:
    """Sort by who goes first among sessions that nobody is likely to come back for soon."""
    return not entry.lingers, entry.used_at, entry.created


def _leased_last(held: tuple[Shelf[Any], SessionCacheEntry[Any]]) -> bool:
    return held[1].lease is not None
