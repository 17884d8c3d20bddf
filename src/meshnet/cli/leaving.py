"""How a node leaves: its chats first, then itself.

    serving ──told to drain──▶ draining ──nobody has a chat there──▶ ends
       ▲ └──SIGTERM, joined──▶     │  └──────drain_seconds──────────▶ ends
       └────────told to go on──────┘

Invariant: a node that drains ends within `drain_seconds`, whoever still has sessions there.
"""

from __future__ import annotations

import asyncio
from typing import Any

from meshnet.cli.joining import MeshPlace
from meshnet.node.service import NodeService

POLL_S = 0.05


class Leaving:
    """Of one node process; `place` is where it announces itself, if it joined a mesh."""

    def __init__(
        self,
        service: NodeService[Any],
        place: MeshPlace | None,
        *,
        deadline_s: float,
        poll_s: float = POLL_S,
    ) -> None:
        self._moves, self._place = service.moves, place
        self._deadline_s, self._poll_s = deadline_s, poll_s

    async def run(self, stop: asyncio.Event) -> None:
        """Set `stop` once the node was told to drain, and has."""
        while True:
            await self._moves.closing.wait()
            if self._place is not None:
                self._place.drain()
            if await self._emptied():
                stop.set()
                return
            if self._place is not None:
                self._place.drain(undo=True)

    async def last(self) -> None:
        """Let the chats of a joined node go elsewhere, if it ends without having drained."""
        if self._place is not None and not self._moves.draining and self._moves.busy:
            self._moves.drain()
            await self._emptied()

    async def _emptied(self) -> bool:
        """Wait until nobody has a chat here, or for `deadline_s`. False: it shall go on."""
        clock = asyncio.get_running_loop().time
        until = clock() + self._deadline_s
        while self._moves.draining:
            if not self._moves.busy or clock() >= until:
                return True
            await asyncio.sleep(self._poll_s)
        return False
