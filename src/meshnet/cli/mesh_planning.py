"""The first layout of a mesh, by the planner: `meshnet plan` in a process of its own.

Only it knows what a layer weighs, and for that it needs the library that the gateway does not load.

Invariant: a plan that cannot be made, or not in time, is no plan; layers are then shared by memory.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from meshnet.cli.composition import Composition
from meshnet.cli.local_nodes import settings_environment
from meshnet.cli.plan_file import mesh_values
from meshnet.cli.settings import Settings
from meshnet.core.planning import Mesh
from meshnet.core.vocabulary import LayerRange, Member, NodeId

PLAN_S = 120.0


def mesh_of_members(composition: Composition, members: Collection[Member]) -> Mesh:
    """Return what these members measured, with the ways that are known by now."""
    measured = composition.measured()
    nodes = {
        member.node: measured.nodes.get(member.node, member.capacity)
        for member in members
        if member.capacity.speeds
    }
    return replace(measured, nodes=nodes)


async def planned(
    settings: Settings, mesh: Mesh, *, deadline_s: float = PLAN_S
) -> Mapping[NodeId, LayerRange]:
    """Return who should hold what of the settings' model; empty: there is no plan."""
    if not mesh.nodes:
        return {}
    try:
        with tempfile.TemporaryDirectory(prefix="meshnet-plan-") as directory:
            path = Path(directory) / "nodes.json"
            path.write_text(json.dumps(mesh_values(mesh)), encoding="utf-8")
            told = await _told(settings, path, deadline_s)
        hops = json.loads(told)["hops"]
        return {NodeId(hop["node"]): LayerRange(*hop["layers"]) for hop in hops}
    except (ValueError, KeyError, TypeError, OSError):  # OSError: a full disk, no process more
        return {}


async def _told(settings: Settings, nodes: Path, deadline_s: float) -> bytes:
    """Return what the planner prints; nothing, where it fails or takes too long."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "meshnet", "plan", "--nodes", str(nodes), "--json"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, **settings_environment(settings)},
    )
    try:
        async with asyncio.timeout(deadline_s):
            told, _ = await process.communicate()
            return told
    except TimeoutError:
        return b""
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
