"""What is left when `meshnet up` ends, asked to or not. Dead nodes: test_killed_node.py; dead
gateways: test_admission.py."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx2
import psutil
import pytest
from tests.cluster.api import ANSWER_DEADLINE_S, get, streamed, until
from tests.processes import MeshnetProcess

PROMPT = "Who goes there?"
LONG = 460
END_DEADLINE_S = 60.0


def alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@asynccontextmanager
async def reading(process: MeshnetProcess) -> AsyncIterator[None]:
    """Read a long stream while the block runs. Who ends it may let it end, or cut it off."""
    begun = asyncio.Event()

    async def read() -> None:
        with suppress(httpx2.HTTPError):
            await streamed(process.url, PROMPT, LONG, seen=lambda _: begun.set())

    async with asyncio.TaskGroup() as group:
        group.create_task(read())
        try:
            async with asyncio.timeout(ANSWER_DEADLINE_S):
                await begun.wait()
        except TimeoutError:
            raise AssertionError(f"no token came\n{process.last_words()}") from None
        yield


@pytest.mark.parametrize(
    ("end", "code"),
    [(lambda up: up.send(signal.SIGTERM), 0), (lambda up: up.kill(), -signal.SIGKILL)],
    ids=["SIGTERM", "SIGKILL"],
)
async def test_all_children_end_with_the_mesh(
    tiny_model_dir: Path, tmp_path: Path, end: Callable[[MeshnetProcess], None], code: int
):
    """Also in the middle of a stream, and with nobody left to tell them."""
    process = MeshnetProcess(
        ["up", "--model", str(tiny_model_dir), "--nodes", "2", "--port", "0", "--json-ready"],
        {"MESHNET_CACHE_DIR": str(tmp_path)},
    )
    try:
        process.wait_ready()
        parent = psutil.Process(process.pid)
        served = [psutil.Process(node["pid"]) for node in get(f"{process.url}/mesh")["nodes"]]
        async with reading(process):
            end(process)
            await until(
                lambda: not any(map(alive, [parent, *served])),
                "the mesh and every node ended",
                deadline_s=END_DEADLINE_S,
            )
    finally:
        ended = process.stop()

    assert len(served) == 2
    assert ended == code
