"""One member's place in a registry, kept for as long as `keep` runs.

    announced ──a third of the lease──▶ announced again ──...
        └──no answer──▶ asked again, sooner and sooner later ──the lease is over──▶ lost
                                              └──an answer──▶ announced: nothing was to be told

Invariants
    * a registry that forgot the member knows it again within a third of the lease;
    * many members that were announced at one moment do not stay in step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from meshnet.core.vocabulary import Member
from meshnet.mesh.registry.ports import Registry, RegistryLost, RegistryRefused
from meshnet.telemetry.events import Record, RegistryAway

RETRY_MIN_S = 0.25
LEAVE_S = 2.0


class Lease:
    """`member` as it was announced last, or will be at once."""

    def __init__(
        self,
        registry: Registry,
        member: Member,
        *,
        ttl_s: float,
        clock: Callable[[], float],
        jitter: Callable[[], float],
        record: Record,
    ) -> None:
        """`jitter` draws from 0 to 1."""
        self._record = record
        self._registry, self._member, self._ttl_s = registry, member, ttl_s
        self._clock, self._jitter = clock, jitter
        self._news = asyncio.Event()
        self.announced = asyncio.Event()
        """Set once the registry has answered."""
        self.lost = asyncio.Event()
        """Set while no registry has answered for a whole lease: others think it gone."""
        self.trouble = ""
        """What went wrong last; empty: nothing since."""

    @property
    def member(self) -> Member:
        return self._member

    def update(self, member: Member) -> None:
        """Announce the member as it is now."""
        if member != self._member:
            self._member = member
            self._news.set()

    async def keep(self) -> None:
        """Announce until cancelled. Raises RegistryRefused, if it was never announced before."""
        renewed_at, failures = self._clock(), 0
        while True:
            self._news.clear()
            try:
                await self._registry.announce(self._member, self._ttl_s)
            except (RegistryLost, RegistryRefused) as error:
                if isinstance(error, RegistryRefused) and not self.announced.is_set():
                    raise
                self.trouble, failures = str(error), failures + 1
                if self._clock() - renewed_at >= self._ttl_s and not self.lost.is_set():
                    self.lost.set()
                    self._record(RegistryAway(self.trouble))
            else:
                renewed_at, failures, self.trouble = self._clock(), 0, ""
                self.announced.set()
                self.lost.clear()
            await self._pause(failures)

    async def leave(self) -> None:
        """Tell the registry that the member is gone, if it answers soon."""
        with suppress(RegistryLost, RegistryRefused, TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                await self._registry.leave(self._member.node)

    async def _pause(self, failures: int) -> None:
        """Wait for the next announcement; after a failure news do not make it come sooner."""
        renew_s = self._ttl_s / 3
        if failures:
            await asyncio.sleep(min(renew_s, RETRY_MIN_S * 2 ** min(failures, 10)) * self._spread())
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(renew_s * self._spread()):
                await self._news.wait()

    def _spread(self) -> float:
        return 0.75 + 0.25 * self._jitter()
