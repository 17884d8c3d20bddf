"""Who of this head's requests asks the nodes for a place: one, in order of arrival.

Only the front of the queue polls, so a head with a hundred waiting requests costs the nodes
no more than a head with one, and nobody is overtaken. The front is woken when a generation of
this head has given its places back.

Invariants
    * at most one request is at the front;
    * at most `waiting_max` wait behind it; the next one is refused at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from meshnet.core.generation.transcript import FailureCode
from meshnet.head.seam import GenerationFailed


class AdmissionQueue:
    def __init__(self, *, waiting_max: int) -> None:
        self._waiting_max = waiting_max
        self._waiting = 0
        self._front = asyncio.Lock()
        self._freed = asyncio.Event()

    @property
    def waiting(self) -> int:
        """Requests behind the front."""
        return self._waiting

    @asynccontextmanager
    async def front(self, timeout_s: float) -> AsyncIterator[None]:
        """Hold the front of the queue. Raises GenerationFailed: too many wait, or too long."""
        await self._come_to_front(timeout_s)
        self._freed.clear()  # what was freed before is found by the first round
        try:
            yield
        finally:
            self._front.release()

    async def place_freed(self) -> None:
        """Return when places were given back since the front last waited here."""
        await self._freed.wait()
        self._freed.clear()

    def tell_place_freed(self) -> None:
        self._freed.set()

    async def _come_to_front(self, timeout_s: float) -> None:
        if self._waiting >= self._waiting_max and (self._waiting or self._front.locked()):
            raise GenerationFailed(
                FailureCode.OVERLOADED, f"{self._waiting} requests wait already", 1.0
            )
        self._waiting += 1
        try:
            async with asyncio.timeout(max(timeout_s, 0.0)):
                await self._front.acquire()
        except TimeoutError:
            raise GenerationFailed(
                FailureCode.OVERLOADED, f"no place within {timeout_s:.3g} s", 1.0
            ) from None
        finally:
            self._waiting -= 1
