"""The registry of a simulated mesh: the real one, in a process that may be away.

    member ──way──▶ host ──▶ SqliteRegistry (in memory)
                      └──away──▶ RegistryLost, or silence until the caller's deadline

What an absence loses is drawn: nothing, or all that the registry knew, as a lost file would.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import TypeVar

from meshnet.core.vocabulary import Member, NodeId
from meshnet.mesh.registry.ports import (
    CALL_S,
    POLL_S,
    Change,
    RegistryLost,
    Resync,
    Revision,
    Snapshot,
    Versioned,
)
from meshnet.mesh.registry.sqlite import SqliteRegistry

T = TypeVar("T")
BORN_APART = 1_000_000
"""Between the first revisions of a registry and of the one that comes when it is lost."""

Answered = Callable[[str, object, object], None]
"""Told of each answer: what was asked, with what, and what came back."""


def nobody_counts(_kind: str, _asked: object, _answer: object) -> None:
    """Traffic is not counted."""


class RegistryHost:
    """The process that keeps the registry."""

    def __init__(self, rng: random.Random, answered: Answered = nobody_counts) -> None:
        self._rng, self.answered = rng, answered
        self._loop = asyncio.get_running_loop()
        self._absences = 0
        self._born = 1
        self.calls: Counter[str] = Counter()
        self.registry = self._begun()

    def _begun(self) -> SqliteRegistry:
        return SqliteRegistry(None, clock=self._loop.time, born=self._born)

    def leave(self, seconds: float, *, forgets: bool) -> None:
        """Answer nobody for a while."""
        self._absences += 1
        if forgets:
            self.registry.close()
            self._born += BORN_APART
            self.registry = self._begun()
        self._loop.call_later(seconds, self._return)

    def _return(self) -> None:
        self._absences -= 1

    async def ask(self, kind: str, ask: Callable[[SqliteRegistry], Awaitable[T]]) -> T:
        """Let the registry answer. Raises RegistryLost."""
        if self._absences:
            await self._lost()
        self.calls[kind] += 1
        answer = await ask(self.registry)
        if self._absences:
            await self._lost()
        return answer

    async def _lost(self) -> None:
        if self._rng.random() < 0.3:
            await asyncio.sleep(CALL_S)
        raise RegistryLost("the registry is away")


class SimRegistry:
    """A process's way to the registry: `way` takes what a message takes, one way."""

    def __init__(self, host: RegistryHost, way: Callable[[], Awaitable[None]]) -> None:
        self._host, self._way = host, way

    async def announce(self, member: Member, ttl_s: float) -> None:
        await self._ask("announce", member, lambda registry: registry.announce(member, ttl_s))

    async def leave(self, node: NodeId) -> None:
        await self._ask("leave", node, lambda registry: registry.leave(node))

    async def snapshot(self) -> Snapshot:
        return await self._ask("snapshot", None, lambda registry: registry.snapshot())

    async def watch(self, since: Revision) -> AsyncIterator[Change | Resync]:
        while True:
            changes = await self._ask("changes", None, partial(_changes, since=since))
            if changes is None:
                yield Resync()
                return
            for change in changes:
                since = change.revision
                yield change

    async def get(self, key: str) -> Versioned | None:
        return await self._ask("get", key, lambda registry: registry.get(key))

    async def compare_and_set(
        self, key: str, expected: Revision | None, value: bytes | None
    ) -> bool:
        return await self._ask(
            "set", value, lambda registry: registry.compare_and_set(key, expected, value)
        )

    async def _ask(
        self, kind: str, asked: object, ask: Callable[[SqliteRegistry], Awaitable[T]]
    ) -> T:
        await self._way()
        answer = await self._host.ask(kind, ask)
        self._host.answered(kind, asked, answer)
        await self._way()
        return answer


async def _changes(registry: SqliteRegistry, *, since: Revision) -> list[Change] | None:
    return await registry.changes(since, POLL_S)
