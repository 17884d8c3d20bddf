"""The registry that a gateway keeps itself: in memory, with a file for its next start.

Decides who is a member, what the values are, and what a watcher is told. Its file makes a restart
forget nothing, but time does not survive one: each lease then starts anew, since those
who held it could not have renewed it meanwhile.

Invariants
    * nothing is awaited while a change is half made;
    * a file that was lost is no earlier time: its successor begins at `born`, far from all that was
      told before;
    * the log of changes is bounded, and who asks for more than it holds is sent for a snapshot.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from meshnet.core.vocabulary import MEMBERS_MAX, Member, NodeId
from meshnet.mesh.registry.leases import Leases
from meshnet.mesh.registry.ports import (
    KEY_CHARS_MAX,
    TTL_MAX_S,
    TTL_MIN_S,
    VALUE_BYTES_MAX,
    VALUES_MAX,
    Change,
    Joined,
    Leased,
    Left,
    RegistryLost,
    RegistryRefused,
    Resync,
    Revision,
    Snapshot,
    Updated,
    Versioned,
    Written,
)
from meshnet.mesh.registry.sqlite_file import RegistryFile

LOG_MAX = 4096
CHANGES_MAX = 256
"""Told at once."""
_WATCH_S = 60.0
_MOMENT_S = 0.001
"""The shortest wait: a clock that is a hair short of a time must reach it."""


class SqliteRegistry:
    """Of one event loop. `close` ends what waits."""

    def __init__(self, path: Path | None, *, clock: Callable[[], float], born: int) -> None:
        """Keep the registry at `path`, or nowhere. Raises MeshnetError.

        `clock` is monotonic; `born` is another one in each process, by chance.
        """
        self._file = RegistryFile(path)
        self._clock = clock
        self._members = {member.node: (member, ttl_s) for member, ttl_s in self._file.members()}
        self._values = self._file.values()
        self._revision = self._file.revision(Revision(born))
        self._log: deque[Change] = deque(maxlen=LOG_MAX)
        self._log_after = self._revision
        self._leases = Leases()
        for member, ttl_s in self._members.values():
            self._leases.grant(member.node, ttl_s, clock())
        self._changed = asyncio.Event()
        self._closed = False

    @property
    def failure(self) -> str:
        """Why a restart would forget what changed since; empty: it would not."""
        return self._file.failure

    def close(self) -> None:
        """End every watch; all that is asked later is lost."""
        self._closed = True
        self._wake()
        self._file.close()

    async def announce(self, member: Member, ttl_s: float) -> None:
        self._settle()
        if not TTL_MIN_S <= ttl_s <= TTL_MAX_S:
            raise RegistryRefused(f"ttl_s: expected {TTL_MIN_S:g} to {TTL_MAX_S:g}, got {ttl_s:g}")
        known = self._members.get(member.node)
        if known is None and len(self._members) >= MEMBERS_MAX:
            raise RegistryRefused(f"members: expected at most {MEMBERS_MAX}, and all are there")
        self._leases.grant(member.node, ttl_s, self._clock())
        if known == (member, ttl_s):
            return
        self._members[member.node] = (member, ttl_s)
        revision = self._next()
        self._file.save_member(member, ttl_s, revision)
        self._tell((Joined if known is None else Updated)(member, revision))

    async def leave(self, node: NodeId) -> None:
        self._settle()
        if node in self._members:
            self._forget(node)

    async def snapshot(self) -> Snapshot:
        self._settle()
        now = self._clock()
        members = {
            node: Leased(member, self._leases.left_s(node, now))
            for node, (member, _) in self._members.items()
        }
        return Snapshot(members, self._revision)

    async def changes(self, since: Revision, wait_s: float) -> list[Change] | None:
        """Return what changed after `since`, the first of it; none within `wait_s`: an empty list.

        None: that is not known any more.
        """
        until = self._clock() + wait_s
        while True:
            self._settle()
            if not self._log_after <= since <= self._revision:
                return None
            found = [change for change in self._log if change.revision > since][:CHANGES_MAX]
            left_s = until - self._clock()
            if found or left_s <= 0:
                return found
            await self._wait(left_s)

    async def watch(self, since: Revision) -> AsyncIterator[Change | Resync]:
        while True:
            changes = await self.changes(since, _WATCH_S)
            if changes is None:
                yield Resync()
                return
            for change in changes:
                since = change.revision
                yield change

    async def get(self, key: str) -> Versioned | None:
        self._settle()
        return self._values.get(key)

    async def compare_and_set(
        self, key: str, expected: Revision | None, value: bytes | None
    ) -> bool:
        self._settle()
        held = self._values.get(key)
        self._check(key, value, new=held is None)
        if (None if held is None else held.revision) != expected:
            return False
        if value is None and held is None:
            return True
        revision = self._next()
        if value is None:
            del self._values[key]
            self._file.forget_value(key, revision)
        else:
            self._values[key] = Versioned(value, revision)
            self._file.save_value(key, value, revision)
        self._tell(Written(key, revision))
        return True

    def _check(self, key: str, value: bytes | None, *, new: bool) -> None:
        if not 0 < len(key) <= KEY_CHARS_MAX:
            raise RegistryRefused(f"key: expected 1 to {KEY_CHARS_MAX} characters, got {len(key)}")
        if value is not None and len(value) > VALUE_BYTES_MAX:
            raise RegistryRefused(f"{key}: expected at most {VALUE_BYTES_MAX} bytes")
        if value is not None and new and len(self._values) >= VALUES_MAX:
            raise RegistryRefused(f"values: expected at most {VALUES_MAX}, and all are there")

    def _settle(self) -> None:
        """Let those leave whose lease is over. Raises RegistryLost once closed."""
        if self._closed:
            raise RegistryLost("this registry is closed")
        for node in self._leases.ended(self._clock()):
            self._forget(node)

    def _forget(self, node: NodeId) -> None:
        del self._members[node]
        self._leases.drop(node)
        revision = self._next()
        self._file.forget_member(node, revision)
        self._tell(Left(node, revision))

    def _next(self) -> Revision:
        self._revision = Revision(self._revision + 1)
        return self._revision

    def _tell(self, change: Change) -> None:
        if len(self._log) == LOG_MAX:
            self._log_after = self._log[0].revision
        self._log.append(change)
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _wait(self, wait_s: float) -> None:
        """Return after the next change, the next end of a lease, or `wait_s`."""
        changed, next_end = self._changed, self._leases.next_end()
        if next_end is not None:
            wait_s = min(wait_s, next_end - self._clock())
        try:
            async with asyncio.timeout(max(_MOMENT_S, wait_s)):
                await changed.wait()
        except TimeoutError:
            return
