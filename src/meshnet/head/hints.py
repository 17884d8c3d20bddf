"""Tell nodes that a session is over, without anybody waiting for it.

A hint outlives the request that caused it: the head's task group owns it, and its short
deadline bounds it. Nothing depends on a hint arriving; a node forgets by itself (ADR-0022).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress

from meshnet.core.generation.transcript import Release
from meshnet.core.vocabulary import HopLost, NodeId, SessionId
from meshnet.head.client import HopClient


class ReleaseHints:
    def __init__(self, client: HopClient, tasks: asyncio.TaskGroup, *, timeout_s: float) -> None:
        self._client, self._tasks, self._timeout_s = client, tasks, timeout_s
        self._stopped = False

    def send(
        self,
        release: Release,
        then: Callable[[], None],
        linger_on: Collection[NodeId] = (),
    ) -> None:
        """Start telling every node; call `then` when all have heard or were given up.

        The nodes of `linger_on` may keep the session for one that adopts it.
        """
        if self._stopped:
            return
        self._tasks.create_task(self._tell(release, then, linger_on))

    def stop(self) -> None:
        """Start no more: the task group is closing, and nodes forget by themselves."""
        self._stopped = True

    async def _tell(
        self, release: Release, then: Callable[[], None], linger_on: Collection[NodeId]
    ) -> None:
        async with asyncio.TaskGroup() as told:
            for node in release.nodes:
                told.create_task(self._tell_one(node, release.session, linger=node in linger_on))
        then()

    async def _tell_one(self, node: NodeId, session: SessionId, *, linger: bool) -> None:
        with suppress(HopLost, TimeoutError):
            async with asyncio.timeout(self._timeout_s):
                await self._client.release(node, session, self._timeout_s, linger=linger)
