"""The node's half of ADR-0022: whose decode can be served, who gets a place, who has to go.

The store decides; the node obeys. Caches are opaque to it, time is an argument (monotonic
seconds), and every rule here can be checked in microseconds.

Invariants
    * at most one lease per session: two steps never extend one cache at once;
    * a prefill supersedes the lease still out, whose end then changes nothing;
    * at most `sessions_max` sessions; TTL and LRU are evaluated on every access;
    * what is refused changes nothing: room is planned first and made only if it suffices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Generic

from meshnet.core.protocol.digest import PrefixDigest
from meshnet.core.sessions import adopting
from meshnet.core.sessions.budget import ByteBudget, Shelf
from meshnet.core.sessions.checks import (
    check_kept,
    check_prefix,
    continued,
    extensible,
    refuse_duplicate,
    refuse_ended,
    refuse_older,
)
from meshnet.core.sessions.entry import (
    NOTHING,
    C,
    Eviction,
    EvictionReason,
    Lease,
    Need,
    SessionCacheEntry,
)
from meshnet.core.sessions.integrity import check_integrity
from meshnet.core.sessions.known_ids import KnownIds
from meshnet.core.sessions.rooms import Rooms
from meshnet.core.vocabulary import LayerRange, NoRoom, SessionDescription, SessionId

FIRST_ATTEMPT = 1
"""A session's later attempts are refills of a generation that has run before."""


class SessionCacheStore(Generic[C]):
    """The sessions of one shard. Not thread-safe, except for `holds`."""

    def __init__(
        self,
        *,
        budget: ByteBudget,
        sessions_max: int = 8,
        ttl_s: float = 600.0,
        pin_s: float = 5.0,
        drop_spare: Callable[[C], None] | None = None,
    ) -> None:
        """`drop_spare` lets a state give up what its session can do without (`Need`)."""
        if sessions_max < 1 or ttl_s <= 0 or not 0 <= pin_s <= ttl_s:
            raise ValueError(
                "expected sessions_max >= 1 and ttl_s >= pin_s >= 0, "
                f"got {sessions_max}, {ttl_s}, {pin_s}"
            )
        self._budget = budget
        self._sessions_max = sessions_max
        self._shelf: Shelf[C] = Shelf(ttl_s=ttl_s, pin_s=pin_s, drop_spare=drop_spare)
        self._rooms = Rooms(self._shelf, budget, sessions_max)
        budget.add(self._shelf)

    def reserve(
        self,
        session: SessionId,
        *,
        layers: LayerRange,
        bytes_needed: int,
        attempt: int | None,
        now: float,
        spare_bytes: int = 0,
        adopt: SessionId | None = None,
    ) -> None:
        """Take a place and promise it `bytes_needed` bytes; it counts as touched now.

        Args:
            spare_bytes: those of them that the session can do without.
            adopt: the place and the bytes of this session will do, if it is here.

        Raises:
            NoRoom: no place or bytes now; TooLarge: never; StaleAttempt: also once it lingers.
        """
        self._budget.expire(now)
        adopting.refuse_lent(self._shelf, session)
        entry = self._shelf.entries.get(session)
        if entry is not None:
            refuse_ended(entry)
            refuse_older(entry, attempt)
        need = Need(bytes_needed, spare_bytes)
        self._rooms.check_bound(need)
        borrows = (
            entry is None
            and adopt is not None
            and adopting.lend(self._shelf, adopt, session, layers)
        )
        try:
            room = Need(bytes_needed) if _steps(entry) else need
            entry = self._rooms.place(session, layers, room, anyone=False, now=now)
        except NoRoom:
            if borrows:
                adopting.give_back(self._shelf, self._shelf.entries[session])
            raise
        entry.used_at, entry.reserved = now, need
        if not entry.prefilled:
            entry.layers = layers if entry.lent is None else entry.layers
            entry.attempt = entry.attempt if attempt is None else attempt

    def prefill(
        self,
        session: SessionId,
        *,
        layers: LayerRange,
        tokens: int,
        attempt: int | None,
        wire: int,
        bytes_needed: int,
        now: float,
        spare_bytes: int = 0,
    ) -> Lease[C]:
        """Start `session` afresh, superseding whatever step of it still runs.

        Args:
            wire: 0 for an ADR-0022 head, which knows no refusal: the least recently used
                session makes room, pinned or not.
            bytes_needed: bytes the session will hold after this step.
            spare_bytes: those of them that it can do without.

        Raises:
            StaleAttempt: a newer attempt, or a prefill of this one, was here before.
            NoRoom: no place or bytes now; TooLarge: never.
        """
        self._budget.expire(now)
        adopting.refuse_lent(self._shelf, session)
        entry = self._shelf.entries.get(session)
        if entry is not None:
            refuse_older(entry, attempt)
            refuse_duplicate(entry, attempt)
        need = Need(bytes_needed, spare_bytes)
        self._rooms.check_bound(need)
        entry = self._rooms.place(
            session,
            layers,
            need,
            anyone=wire == 0,
            refilled=attempt is not None and attempt > FIRST_ATTEMPT,
            now=now,
        )
        entry.layers, entry.attempt, entry.prefilled = layers, attempt, True
        entry.length, entry.ids, entry.state, entry.held = 0, None, None, NOTHING
        entry.used_at, entry.lingers, entry.lent = now, False, None
        entry.lease = Lease(
            session, layers, 0, tokens, None, PrefixDigest(), need, keeps=not entry.shed
        )
        return entry.lease

    def decode(
        self,
        session: SessionId,
        *,
        layers: LayerRange,
        past_length: int,
        tokens: int,
        prefix: str | None,
        attempt: int | None,
        bytes_needed: int,
        now: float,
        spare_bytes: int = 0,
        truncate: bool = False,
        adopt: SessionId | None = None,
    ) -> Lease[C]:
        """Lease `session` for `tokens` more positions.

        Args:
            past_length: positions the head believes are cached here.
            prefix: digest of their ids; absent means ADR-0022's rule, length only.
            attempt: a later one than the session's goes on with it, if `prefix` proves its ids.
            bytes_needed: bytes the session will hold after this step.
            spare_bytes: those of them that it can do without.
            truncate: a longer session may be shortened, if `prefix` is that of its ids.
            adopt: the session that goes on as `session`, if `prefix` is that of its ids.

        Raises:
            KVCacheMiss: it cannot be served; the head answers with one prefill.
            TooLarge: the session outgrew the whole bound; no prefill helps.
        """
        self._budget.expire(now)
        if adopt is None:
            entry = extensible(self._shelf.entries.get(session), layers, attempt, prefix)
        else:
            entry = adopting.adoptable(self._shelf, session, adopt, layers, attempt)
        check_prefix(entry, past_length, prefix, truncate=truncate)
        need = Need(bytes_needed, spare_bytes)
        self._rooms.check_bound(need)
        if adopt is not None:
            adopting.take_over(self._shelf, entry, session, attempt)
        self._rooms.grow(entry, need, now)
        entry.touch(attempt, now)
        entry.lease = Lease(
            session,
            layers,
            past_length,
            past_length + tokens,
            entry.state,
            None if entry.ids is None else entry.ids.prefix(past_length),
            need,
            truncate=past_length < entry.length,
            keeps=not entry.shed,
        )
        return entry.lease

    def commit(
        self,
        lease: Lease[C],
        *,
        state: C,
        ids: Sequence[int],
        state_bytes: int,
        now: float,
        spare_bytes: int = 0,
    ) -> bool:
        """Record that every layer now holds the leased positions, and what they take.

        Bytes beyond what was estimated are granted; the next step that grows pays for them.

        Args:
            ids: of the new positions; empty if the head sent none, and then no digest is kept.
            spare_bytes: those of `state_bytes` that keep what left the last layer.

        Returns:
            False: superseded. The result must be discarded; the cache here is another step's.
        """
        self._budget.expire(now)
        entry = self._leased(lease)
        if entry is None:
            return False
        if lease.digest is None or len(ids) != lease.length_after - lease.length_before:
            entry.ids = None
        else:
            entry.ids = entry.ids or KnownIds()
            entry.ids.replace_from(lease.digest, ids)
        entry.length, entry.state = lease.length_after, state
        entry.held = Need(state_bytes, spare_bytes)
        entry.lease, entry.used_at = None, now
        return True

    def abandon(self, lease: Lease[C], reason: EvictionReason = EvictionReason.TORN) -> bool:
        """Forget the session: a step that failed midway leaves layers of unequal length.

        False: superseded; the cache here belongs to another step and stays.
        """
        entry = self._leased(lease)
        if entry is None:
            return False
        self._shelf.remove(entry, reason)
        return True

    def withdraw(self, lease: Lease[C]) -> bool:
        """Give a lease back whose step never started: the session is as it was before.

        A prefill leaves an empty place, and may be sent again. False: superseded.
        """
        entry = self._leased(lease)
        if entry is None:
            return False
        entry.lease = None
        if lease.state is None:
            entry.prefilled = False
        return True

    def release(self, session: SessionId, now: float, *, linger: bool = False) -> bool:
        """Let go of a session its head no longer needs, running step or not. False: not here.

        It is forgotten, or with `linger` kept until somebody needs its room. What was only lent
        is what it was before; one that was lent to another may hear late that it lingers.
        """
        self._budget.expire(now)
        entry = self._shelf.entries.get(session)
        if entry is None:
            return not linger and adopting.forget_lent(self._shelf, session)
        if entry.lent is not None:
            adopting.give_back(self._shelf, entry)
        elif linger and entry.state is not None and entry.lease is None:
            entry.lingers, entry.reserved = True, NOTHING
        else:
            self._shelf.remove(entry, EvictionReason.RELEASED)
        return True

    def busy(self, now: float) -> int:
        """How many sessions somebody is likely to come back for soon."""
        self._budget.expire(now)
        return sum(self._shelf.pinned(entry, now) for entry in self._shelf.entries.values())

    def forget_lingering(self, now: float) -> None:
        """Forget the sessions that their heads are done with, and that nobody was lent."""
        self._budget.expire(now)
        for entry in [entry for entry in self._shelf.entries.values() if entry.lingers]:
            self._shelf.remove(entry, EvictionReason.RELEASED)

    def replay(
        self,
        session: SessionId,
        *,
        layers: LayerRange,
        past_length: int,
        ids: Sequence[int],
        prefix: str,
        attempt: int | None,
        now: float,
    ) -> C:
        """Return the state of a session that kept what left its layers for positions of `ids`.

        They begin at `past_length`, before which are those of `prefix`. Nothing is changed, but it
        counts as touched now. Raises KVCacheMiss.
        """
        self._budget.expire(now)
        entry = continued(self._shelf.entries.get(session), layers, attempt, prefix)
        check_kept(entry, past_length, ids, prefix)
        assert entry.state is not None, "it holds positions"
        entry.used_at = now
        return entry.state

    def describe(self, session: SessionId, now: float) -> SessionDescription | None:
        self._budget.expire(now)
        entry = self._shelf.entries.get(session)
        return None if entry is None else entry.describe()

    def holds(self, lease: Lease[C]) -> bool:
        """Whether the step of `lease` is still wanted. One look-up; any thread may ask."""
        return self._leased(lease) is not None

    def running(self, session: SessionId) -> bool:
        """Whether a lease of the session is out."""
        entry = self._shelf.entries.get(session)
        return entry is not None and entry.lease is not None

    def sessions(self, now: float) -> tuple[SessionDescription, ...]:
        self._budget.expire(now)
        return tuple(entry.describe() for entry in self._shelf.entries.values())

    @property
    def evictions(self) -> Counter[EvictionReason]:
        """How many sessions left, by reason, since the start."""
        return Counter(self._shelf.evictions)

    def take_evictions(self) -> list[Eviction]:
        """Hand over who left since the last call, the latest few hundred at most."""
        taken = list(self._shelf.recent)
        self._shelf.recent.clear()
        return taken

    def close(self) -> None:
        """Forget every session; the shard was unloaded."""
        self._budget.remove(self._shelf)
        self._shelf.entries.clear()

    def check_integrity(self) -> None:
        """Assert what must hold between any two calls."""
        check_integrity(self._shelf.entries, self._sessions_max)

    def _leased(self, lease: Lease[C]) -> SessionCacheEntry[C] | None:
        entry = self._shelf.entries.get(lease.session)
        return entry if entry is not None and entry.lease is lease else None


def _steps(entry: SessionCacheEntry[C] | None) -> bool:
    """Whether a step runs that goes on keeping what leaves its layers."""
    return entry is not None and entry.lease is not None and not entry.shed
