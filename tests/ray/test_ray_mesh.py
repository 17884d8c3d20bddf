"""Meshes whose nodes Ray keeps: whatever dies, no stream is wrong."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from asyncio import to_thread
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.cluster.api import Told, expected_text, streamed, until
from tests.cluster.joining import MESH_TOKEN, free_port
from tests.processes import MeshnetProcess, command
from tests.ray.cluster import QUIET, RayMachines, RayMesh, ray_machines, ray_mesh

import meshnet

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

PROMPTS = ("Who goes there?", "Nobody, it seems.")
TOKENS = 240


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of meshnet that the machines load, and that a test can upgrade."""
    copy = tmp_path_factory.mktemp("installed") / "meshnet"
    shutil.copytree(Path(meshnet.__file__).parent, copy)
    return copy


@pytest.fixture(scope="module")
def machines(installed: Path) -> Iterator[RayMachines]:
    path = f"{installed.parent}{os.pathsep}{QUIET['PYTHONPATH']}"
    with ray_machines(3, PYTHONPATH=path) as started:
        yield started


@pytest.fixture(scope="module")
def mesh(
    machines: RayMachines, tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RayMesh]:
    with ray_mesh(tiny_model_dir, tmp_path_factory.mktemp("mesh"), machines) as made:
        made.up().wait_ready()
        yield made


async def streams_while(mesh: RayMesh, act: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Stream two chats and act in the middle of the first; fail unless both are right."""
    async with asyncio.TaskGroup() as group:

        def seen(count: int) -> None:
            if count == 20:
                group.create_task(act())

        streams = [
            group.create_task(streamed(mesh.url, prompt, TOKENS, seen=told))
            for prompt, told in zip(PROMPTS, (seen, lambda _: None), strict=True)
        ]
    for prompt, stream in zip(PROMPTS, streams, strict=True):
        assert_right(mesh, prompt, stream.result())


def assert_right(mesh: RayMesh, prompt: str, told: Told) -> None:
    assert told.errors == []
    assert told.text == expected_text(mesh.model, prompt, TOKENS)


async def served_by(mesh: RayMesh, count: int, *, without: int = 0) -> None:
    """Wait until all layers are served, by so many nodes, and by that process no longer."""

    def served() -> bool:
        pids = mesh.pids().values()
        return mesh.ready() and len(pids) == count and without not in pids

    await until(served, f"{count} nodes serve", deadline_s=180)


async def test_a_node_that_is_killed_is_back_at_its_url_and_no_stream_is_wrong(mesh: RayMesh):
    url, pid = next(iter(mesh.pids().items()))

    await streams_while(mesh, partial(to_thread, os.kill, pid, signal.SIGKILL))

    await served_by(mesh, 2, without=pid)
    assert url in mesh.pids()


async def test_an_actor_that_is_killed_is_started_again_by_ray(mesh: RayMesh):
    pid = next(iter(mesh.pids().values()))
    worker = psutil.Process(pid).parent()
    assert worker is not None
    assert worker.name().startswith("ray::")

    await streams_while(mesh, partial(to_thread, worker.kill))

    await served_by(mesh, 2, without=pid)


async def test_a_machine_that_dies_is_replaced_by_a_spare_one(mesh: RayMesh, machines: RayMachines):
    pid = next(iter(mesh.pids().values()))
    machine = machines.holding(pid)

    await streams_while(mesh, partial(to_thread, machines.unplug, machine))

    await served_by(mesh, 2, without=pid)
    held = {id(machines.holding(pid)) for pid in mesh.pids().values()}
    assert len(held) == 2


async def test_without_a_spare_machine_the_rest_serves_until_one_is_added(
    mesh: RayMesh, machines: RayMachines
):
    async def add() -> None:
        machines.add()  # in the main thread: Ray takes signals

    assert len(machines.machines) == 2
    pid = next(iter(mesh.pids().values()))
    machine = machines.holding(pid)

    await streams_while(mesh, partial(to_thread, machines.unplug, machine))
    await served_by(mesh, 1, without=pid)
    await streams_while(mesh, add)

    await served_by(mesh, 2, without=pid)


async def test_drained_nodes_come_back_with_the_version_that_is_installed_by_then(
    mesh: RayMesh, installed: Path, tmp_path: Path
):
    loaded = installed / "loaded"
    with (installed / "__init__.py").open("a", encoding="utf-8") as code:
        code.write(f"\nimport os; open({str(loaded)!r}, 'a').write(f'{{os.getpid()}} ')\n")
    before = mesh.pids()

    def upgrade() -> None:
        for url in before:
            told = command("drain", url, "--gateway", mesh.url, cwd=tmp_path,
                           MESHNET_MESH_TOKEN=MESH_TOKEN)  # fmt: skip
            assert told.returncode == 0, told.stderr

    await streams_while(mesh, partial(to_thread, upgrade))
    for pid in before.values():
        await served_by(mesh, 2, without=pid)

    assert {str(pid) for pid in mesh.pids().values()} <= set(loaded.read_text().split())


async def test_a_gateway_that_was_killed_finds_its_nodes_again_and_one_that_is_stopped_ends_them(
    mesh: RayMesh,
):
    gateway = mesh.latest
    before = mesh.pids()

    gateway.kill()
    again = await asyncio.to_thread(mesh.up().wait_ready)
    after = mesh.pids()
    await streams_while(mesh, partial(asyncio.sleep, 0))
    code = await asyncio.to_thread(again.stop)

    assert (after, code) == (before, 0)
    await until(
        lambda: not any(map(psutil.pid_exists, before.values())), "the nodes end with their mesh"
    )


@pytest.mark.parametrize("there", [True, False], ids=["no token", "nobody listens"])
def test_a_ray_that_cannot_be_used_is_told_at_once(
    machines: RayMachines, tiny_model_dir: Path, tmp_path: Path, there: bool
):
    address = machines.address if there else f"127.0.0.1:{free_port()}"

    told = command(
        "up", "--ray", address, "--model", str(tiny_model_dir), "--port", "0",
        cwd=tmp_path, RAY_AUTH_MODE="disabled",
    )  # fmt: skip

    assert told.returncode == 1
    assert f"--ray {address}: " in told.stderr
    assert ("token" in told.stderr) == there


def test_machines_that_are_not_there_are_told(
    machines: RayMachines, tiny_model_dir: Path, tmp_path: Path
):
    with ray_mesh(tiny_model_dir, tmp_path, machines, nodes=9) as mesh:
        process: MeshnetProcess = mesh.up(MESHNET_START_TIMEOUT_SECONDS="2")

        code = process.ended()

    assert code == 1
    assert "expected 9 machines with 1 CPU" in process.last_words()
