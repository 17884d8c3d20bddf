"""A mesh of played machines: nodes that are slowed, behind proxies that delay, and their head.

head ──▶ proxy ──▶ node 1 (measured, then loaded)       the nodes know each other by their proxies
     ──▶ proxy ──▶ node 2 (after node 1 is ready) ...

Nodes start one after the other: each measures a machine on which nothing else starts.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from meshnet.cli.bench.plan_draw import Layout, Machine
from meshnet.cli.bench.sides import environment_of
from meshnet.cli.bench.workers import Worker
from meshnet.cli.composition import Composition, composed
from meshnet.cli.gateway_process import quiet_telemetry
from meshnet.cli.local_nodes import HOST, free_ports
from meshnet.cli.models import load_text
from meshnet.cli.settings import ENVIRONMENT_PREFIX, Settings
from meshnet.core.planning import Mesh
from meshnet.core.vocabulary import MeshnetError, ModelId, NodeId
from meshnet.engine.models.pull import LocalModel
from meshnet.mesh.launcher import ChildSpec, LocalLauncher
from meshnet.mesh.restart import RestartPolicy

LINKS_DEADLINE_S = 60.0
LOOK_S = 0.5


class NotMeasured(MeshnetError):
    """A node of the bench did not tell its capacity and its links in time."""


@dataclass(frozen=True, slots=True)
class PlayedMesh:
    """`nodes` are in the order of the layout's hops."""

    composition: Composition
    nodes: tuple[NodeId, ...]
    measured: Mesh
    pids: tuple[int, ...]


@asynccontextmanager
async def played(
    settings: Settings, source: LocalModel, machines: Sequence[Machine], layout: Layout
) -> AsyncIterator[PlayedMesh]:
    """Run the layout until the block is left; first all of it has measured itself."""
    record = quiet_telemetry(settings).record
    used = [machines[number] for number in layout.machines]
    ports = free_ports(len(used))
    async with AsyncExitStack() as stack:
        wires = Worker(["wires", *map(str, ports)], environment_of(settings, nodes=1, threads=1))
        stack.push_async_callback(wires.stop)
        near = [f"http://{HOST}:{port}" for port in (await wires.start())["ports"]]
        await wires.ask({"delays_s": [machine.delay_ms / 1e3 for machine in used]})
        pids = [wires.pid]
        for machine, layers, port in zip(used, layout.layers, ports, strict=True):
            words = ("node", f"{machine.slower:g}", str(layers), str(port))
            pids.append(await _node(stack, settings, words, port, near))
        own = settings.model_copy(update={"routes": "chain" if layout.chain else "star"})
        composition = await stack.enter_async_context(
            composed(
                own,
                ModelId(source.name),
                load_text(source),
                {f"node-{at}": url for at, url in enumerate(near, start=1)},
                record,
            )
        )
        nodes = tuple(map(NodeId, near))
        yield PlayedMesh(composition, nodes, await _measured(composition, nodes), tuple(pids))


async def _node(
    stack: AsyncExitStack,
    settings: Settings,
    words: Sequence[str],
    port: int,
    peers: Sequence[str],
) -> int:
    """Run a node until the stack is left; return its process, which is ready."""
    environment = {
        **environment_of(settings, nodes=1, threads=settings.threads or 1),
        f"{ENVIRONMENT_PREFIX}PEERS": ",".join(peers),
        f"{ENVIRONMENT_PREFIX}MEASURE": "1",
    }
    launcher = LocalLauncher(
        [ChildSpec(f"node-{port}", partial(_command, words), environment, port)],
        log_dir=Path(stack.enter_context(TemporaryDirectory(prefix="meshnet-plan-"))),
        record=quiet_telemetry(settings).record,
        policy=RestartPolicy(ready_timeout_s=settings.start_timeout_seconds),
    )
    await stack.enter_async_context(launcher.running())
    await launcher.ready()
    return launcher.children[0].pid


def _command(words: Sequence[str], port: int) -> Sequence[str]:
    return (sys.executable, "-m", "meshnet.cli.bench.worker", *words)


async def _measured(composition: Composition, nodes: Sequence[NodeId]) -> Mesh:
    """Wait until every node, and the head, has measured the ways to all others."""
    try:
        async with asyncio.timeout(LINKS_DEADLINE_S):
            while True:
                await composition.directory.refresh()
                mesh = composition.measured()
                known = [mesh.head, *(capacity.links for capacity in mesh.nodes.values())]
                measured = [{link.node for link in links} >= set(nodes) for links in known]
                if len(mesh.nodes) == len(nodes) and all(measured):
                    return mesh
                await asyncio.sleep(LOOK_S)
    except TimeoutError:
        raise NotMeasured(f"no links to all nodes within {LINKS_DEADLINE_S:g} s") from None
