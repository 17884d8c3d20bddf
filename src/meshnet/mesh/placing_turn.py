"""Which of several gateways tells members what to hold: one at a time, by turns.

    waiting ──nobody there, or not renewed for `ttl_s`──▶ placing ──renewed every third of it──┐
       ▲                                                    │  ▲───────────────────────────────┘
       └──────────another has it, or no answer for `ttl_s`──┘

The turn is a value like any other, written by compare-and-set, so any registry will do. No clocks
are compared: who waits counts from when it saw the value, who places from before it wrote it.

Invariants
    * who places has renewed its turn within `ttl_s`, so no two place;
    * who cannot see the value counts nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from meshnet.mesh.registry.ports import Registry, RegistryLost, RegistryRefused, Revision

TURN = "placer"
"""The key of the value."""
LEAVE_S = 2.0


class PlacingTurn:
    """Of one gateway; `name` is nobody else's."""

    def __init__(
        self, registry: Registry, name: str, *, ttl_s: float, clock: Callable[[], float]
    ) -> None:
        self._registry, self._name = registry, name.encode()
        self._ttl_s, self._clock = ttl_s, clock
        self._renewed_at = clock()
        self.held = False

    async def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do `work`, which does not end by itself, during each turn; until cancelled."""
        while True:
            await self._come()
            try:
                self.held = True
                async with asyncio.TaskGroup() as group:
                    working = group.create_task(_done(work))
                    await self._keep()
                    working.cancel()
            finally:
                self.held = False
                await self._give_back()

    async def _come(self) -> None:
        """Return once the turn is this gateway's."""
        seen: tuple[Revision, float] | None = None
        while True:
            began = self._clock()
            try:
                found = await self._registry.get(TURN)
                if found is not None and (seen is None or seen[0] != found.revision):
                    seen = found.revision, began
                waited = seen is not None and self._clock() - seen[1] >= self._ttl_s
                if (found is None or waited) and await self._registry.compare_and_set(
                    TURN, None if found is None else found.revision, self._name
                ):
                    self._renewed_at = began
                    return
            except (RegistryLost, RegistryRefused):
                seen = None
            await asyncio.sleep(self._ttl_s / 3)

    async def _keep(self) -> None:
        """Return once the turn is over."""
        while True:
            left_s = self._renewed_at + self._ttl_s - self._clock()
            if left_s <= 0:
                return
            await asyncio.sleep(min(left_s, self._ttl_s / 3))
            began = self._clock()
            with suppress(RegistryLost, RegistryRefused):
                try:
                    async with asyncio.timeout(self._renewed_at + self._ttl_s - began):
                        if not await self._written(self._name):
                            return
                except TimeoutError:
                    return
                self._renewed_at = began

    async def _give_back(self) -> None:
        """Let the next one have it at once, if the registry answers soon."""
        with suppress(RegistryLost, RegistryRefused, TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                await self._written(None)

    async def _written(self, value: bytes | None) -> bool:
        """Write over this gateway's own value; False: it is another's by now."""
        found = await self._registry.get(TURN)
        if found is None or found.value != self._name:
            return False
        return await self._registry.compare_and_set(TURN, found.revision, value)


async def _done(work: Callable[[], Awaitable[None]]) -> None:
    await work()
