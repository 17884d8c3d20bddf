"""`meshnet up --ray ADDRESS`: the gateway here, the nodes on the machines of a Ray cluster.

    gateway (API, registry, who holds what) ◀──join── node ◀──child── RayShard ◀──placed── Ray

Which layers a node holds is decided as in every mesh whose nodes join; Ray decides on which machine
a node runs, and starts it again.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from contextlib import closing

from meshnet.cli.composition import RESTART_WAIT_S, composed
from meshnet.cli.credentials import refuse_open_mesh
from meshnet.cli.gateway_process import serve_api
from meshnet.cli.mesh_gateway import MeshGateway, mesh_gateway, size_of
from meshnet.cli.models import load_text
from meshnet.cli.ray_shard import RayShard, unauthenticated
from meshnet.cli.ray_specs import gateway_url, refuse_unreachable, shard_specs
from meshnet.cli.serving import run_loop, stop_on_signals
from meshnet.cli.settings import Settings, SettingsError
from meshnet.cli.telling import Telling
from meshnet.core.routing.placement import ModelSize
from meshnet.core.vocabulary import ModelId
from meshnet.engine.models.pull import LocalModel
from meshnet.mesh.grouped import unwrapped
from meshnet.mesh.ray_launcher import RayLauncher, connected
from meshnet.telemetry.events import Record

LOOK_S = 0.1


def up_on_ray(
    settings: Settings,
    source: LocalModel,
    address: str,
    nodes: int,
    tell_ready: Callable[[str], None],
) -> None:
    """Run the mesh until asked to stop. Raises MeshnetError."""
    refuse_open_mesh(settings, "a gateway that nodes can join")
    settings = settings.model_copy(update={"nodes_min": nodes})
    with connected(address) as (here, machines):
        if problem := unauthenticated(os.environ):
            raise SettingsError(f"--ray {address}: {problem}")
        refuse_unreachable(settings, here, machines)
        run_loop(lambda: _up(settings, source, here, tell_ready))


async def _up(
    settings: Settings, source: LocalModel, here: str, tell_ready: Callable[[str], None]
) -> None:
    with closing(Telling(settings)) as telling, stop_on_signals() as stop:
        telemetry = telling.telemetry
        text = await asyncio.to_thread(load_text, source)
        async with (
            composed(
                settings,
                ModelId(source.name),
                text,
                {},
                telemetry.record,
                route_wait_s=RESTART_WAIT_S,
                through=telling.watching,
            ) as composition,
            mesh_gateway(settings, composition, source, telemetry.record, elsewhere=None) as mesh,
        ):
            listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            size, tell = size_of(composition, source, settings.weights), telemetry.record
            served = (settings, composition, telemetry, telling.live, stop)
            with unwrapped():
                async with asyncio.TaskGroup() as group:
                    launch = _launched(settings, size, here, listening, mesh, tell, tell_ready)
                    launching = group.create_task(launch)
                    await serve_api(*served, listening.set_result, mesh)
                    launching.cancel()


async def _launched(
    settings: Settings,
    size: ModelSize,
    here: str,
    listening: asyncio.Future[str],
    mesh: MeshGateway,
    record: Record,
    tell_ready: Callable[[str], None],
) -> None:
    """Keep the nodes on their machines until cancelled; tell once that all layers are served."""
    url = await listening
    join = gateway_url(settings, url, here)
    specs = shard_specs(settings, size, join)
    name = f"meshnet {size.model} {join}"
    print(f"placing {len(specs)} nodes of {size.model} by Ray", file=sys.stderr)
    launcher = RayLauncher(
        RayShard, specs, name=name, record=record, place_timeout_s=settings.start_timeout_seconds
    )
    async with launcher.running():
        await launcher.ready()
        while not mesh.readiness().ready:  # noqa: ASYNC110  # what is known of routes tells nobody
            await asyncio.sleep(LOOK_S)
        tell_ready(url)
        await asyncio.Event().wait()
