"""How long until all layers are served again when something dies in a mesh that Ray keeps.

    .venv-ray/bin/python -m tools.ray_bench [--health default] [--deaths 5] [--out DIR]

process   the node's process gets SIGKILL: its actor starts it again
actor     Ray's worker gets SIGKILL, its node ends with it: Ray starts both again
machine   all that runs on a machine gets SIGKILL at once: Ray takes the spare one

Two nodes, and a spare machine, of a tiny random model: what is measured is noticing and starting,
not loading. A chat streams all the while. Told are the longest gap between two tokens of it, the
time until a new chat was answered whole, and until two nodes serve again. Exits 1 if one text was
wrong. Ray reads its health checks once in a process: one run for each.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from asyncio import to_thread
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
from tests.cluster.api import answered, expected_text, streamed, until
from tests.models import tiny_llama
from tests.ray.cluster import TUNED, RayMachines, RayMesh, ray_machines, ray_mesh

from meshnet.cli.bench.paired import spread
from meshnet.cli.bench.results import provenance, result_path, write_result

PROMPT, TOKENS, AT = "Who goes there?", 240, 20
WAYS = ("process", "actor", "machine")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--health", choices=("tuned", "default"), default="tuned")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--deaths", type=int, default=5, help="of each way")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    asked = parser.parse_args()
    checks = TUNED if asked.health == "tuned" else {}
    load = [round(os.getloadavg()[0], 1)]
    with tempfile.TemporaryDirectory() as folder, ray_machines(3, health=checks) as machines:
        model = tiny_llama(Path(folder) / "tiny")
        with ray_mesh(model, Path(folder), machines, lease_s=10) as mesh:
            deaths = [_measured(mesh, machines, way) for way in asked.ways * asked.deaths]
    load.append(round(os.getloadavg()[0], 1))
    result = {
        **provenance("tiny", "fp32", 1),
        "command": "python -m tools.ray_bench " + " ".join(sys.argv[1:]),
        "ray": version("ray"),
        "health": checks or "default",
        "load": load,
        "lease_s": 10,
        "deaths": deaths,
        **{way: _spreads(deaths, way) for way in asked.ways},
    }
    print(json.dumps(result, indent=2))
    print(write_result(result_path(asked.out, "tiny", f"ray-{asked.health}"), result))
    return 0 if all(death["right"] for death in deaths) else 1


def _measured(mesh: RayMesh, machines: RayMachines, way: str) -> dict[str, Any]:
    """Measure one death in a mesh of its own: after a loss, who is left may hold all layers."""
    up = mesh.up().wait_ready()
    told = asyncio.run(_death(mesh, machines, way))
    print(told, flush=True)
    up.stop()
    if way == "machine":
        machines.add()
    return told


async def _death(mesh: RayMesh, machines: RayMachines, way: str) -> dict[str, Any]:
    pid = max(mesh.pids().values())
    kill = _killer(machines, way, pid)
    told: dict[str, Any] = {"way": way}

    async def follow() -> None:
        killed = time.monotonic()
        await to_thread(kill)
        text = await answered(mesh.url, PROMPT, AT)
        told["answered_s"] = round(time.monotonic() - killed, 2)
        told["right"] = text == expected_text(mesh.model, PROMPT, AT)
        await until(partial(_whole, mesh, pid), "two nodes serve", deadline_s=240)
        told["whole_s"] = round(time.monotonic() - killed, 2)

    async with asyncio.TaskGroup() as group:

        def seen(count: int) -> None:
            if count == AT:
                group.create_task(follow())

        chat = await streamed(mesh.url, PROMPT, TOKENS, seen=seen)
    told["gap_s"] = round(chat.worst_gap_s, 2)
    told["right"] &= not chat.errors and chat.text == expected_text(mesh.model, PROMPT, TOKENS)
    return told


def _whole(mesh: RayMesh, without: int) -> bool:
    pids = mesh.pids().values()
    return mesh.ready() and len(pids) == 2 and without not in pids


def _killer(machines: RayMachines, way: str, pid: int) -> Callable[[], None]:
    if way == "process":
        return partial(os.kill, pid, signal.SIGKILL)
    if way == "machine":
        return partial(machines.unplug, machines.holding(pid))
    worker = psutil.Process(pid).parent()
    assert worker is not None
    return worker.kill


def _spreads(deaths: list[dict[str, Any]], way: str) -> dict[str, Any]:
    own = [death for death in deaths if death["way"] == way]
    return {name: spread([death[name] for death in own]) for name in
            ("gap_s", "answered_s", "whole_s")}  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
