"""A head over this machine's own node processes, once all of them are ready."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from meshnet.cli.composition import RESTART_WAIT_S, Composition, composed
from meshnet.cli.models import load_text
from meshnet.cli.settings import Settings
from meshnet.core.vocabulary import ModelId
from meshnet.engine.models.pull import LocalModel
from meshnet.head import HopClient
from meshnet.mesh.launcher import LocalLauncher
from meshnet.telemetry.events import Record


@asynccontextmanager
async def local_mesh(
    settings: Settings,
    source: LocalModel,
    launcher: LocalLauncher,
    record: Record,
    stop: asyncio.Event,
    *,
    through: Callable[[HopClient], HopClient] = lambda client: client,
) -> AsyncIterator[Composition | None]:
    """Run the nodes and a head over them until the block is left; None if `stop` came first."""
    async with launcher.running():
        text = await asyncio.to_thread(load_text, source)
        if not await _ready_or_stopped(launcher, stop):
            yield None
            return
        async with composed(
            settings,
            ModelId(source.name),
            text,
            {child.name: child.url for child in launcher.children},
            record,
            route_wait_s=RESTART_WAIT_S,
            through=through,
        ) as composition:
            yield composition


async def _ready_or_stopped(launcher: LocalLauncher, stop: asyncio.Event) -> bool:
    """Return True once every node is ready, False if `stop` came first."""
    async with asyncio.TaskGroup() as group:
        ready = group.create_task(launcher.ready())
        stopped = group.create_task(stop.wait())
        await asyncio.wait((ready, stopped), return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        stopped.cancel()
    return not stop.is_set()
