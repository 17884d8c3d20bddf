"""What a registry knows, followed from here, whatever becomes of it meanwhile.

    snapshot ──▶ watch from its revision ──change──▶ seen
       ▲              └──ended, lost, or a while has passed──┘

Invariants
    * a change is seen at the latest `resync_s` after it was made, also if a watch fell silent;
    * while the registry is away, what was known of it stays: its death takes no member;
    * watches that end within SETTLED_S are asked for ever more rarely, whyever they end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from meshnet.core.vocabulary import Member, NodeId
from meshnet.mesh.registry.ports import (
    Change,
    Joined,
    Left,
    Registry,
    RegistryLost,
    RegistryRefused,
    Resync,
    Updated,
    Written,
)
from meshnet.telemetry.events import Record, RegistryAway

RETRY_MIN_S, RETRY_MAX_S = 0.2, 5.0
SETTLED_S = 1.0


@dataclass(frozen=True, slots=True)
class View:
    """The members, and which value was written just now; None: any may have been."""

    members: Mapping[NodeId, Member]
    written: frozenset[str] | None

    def may_have_written(self, key: str) -> bool:
        return self.written is None or key in self.written


class Following:
    """Tells `seen` of each change; it must not block."""

    def __init__(
        self,
        registry: Registry,
        seen: Callable[[View], None],
        *,
        resync_s: float,
        jitter: Callable[[], float],
        record: Record,
    ) -> None:
        """`jitter` draws from 0 to 1."""
        self._registry, self._seen, self._resync_s = registry, seen, resync_s
        self._jitter, self._record = jitter, record
        self._failures, self._is_told = 0, False
        self.trouble = ""
        """Why the registry cannot be followed now; empty: it is."""

    async def run(self) -> None:
        """Follow until cancelled. Raises nothing else."""
        while True:
            try:
                async with asyncio.timeout(self._resync_s * (0.75 + 0.25 * self._jitter())):
                    await self._follow()
            except TimeoutError:
                continue
            except (RegistryLost, RegistryRefused) as error:
                if not self._is_told:
                    self._record(RegistryAway(str(error)))
                self.trouble, self._is_told = str(error), True
            # A watch that always ends at once must not become a storm of snapshots.
            self._failures += 1
            pause_s = RETRY_MIN_S * 2 ** min(self._failures, 10)
            await asyncio.sleep(min(RETRY_MAX_S, pause_s) * (0.5 + 0.5 * self._jitter()))

    async def _follow(self) -> None:
        snapshot = await self._registry.snapshot()
        self.trouble = ""
        members = {node: leased.member for node, leased in snapshot.members.items()}
        self._seen(View(dict(members), None))
        settling = asyncio.get_running_loop().call_later(SETTLED_S, self._settle)
        try:
            async for change in self._registry.watch(snapshot.revision):
                if isinstance(change, Resync):
                    return
                self._seen(_applied(members, change))
        finally:
            settling.cancel()

    def _settle(self) -> None:
        self._failures, self._is_told = 0, False


def _applied(members: dict[NodeId, Member], change: Change) -> View:
    written: frozenset[str] = frozenset()
    match change:
        case Joined(member) | Updated(member):
            members[member.node] = member
        case Left(node):
            members.pop(node, None)
        case Written(key):
            written = frozenset({key})
    return View(dict(members), written)
