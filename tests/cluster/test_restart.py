"""What is left when a part of the mesh ends, asked to or not."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx2
import psutil
import pytest
from tests.cluster.api import answered, expected_text, get, streamed, until
from tests.processes import MeshnetProcess, gateway, nodes

PROMPT = "Who goes there?"
TOKENS = 16
LONG = 460
END_DEADLINE_S = 20.0


def alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@asynccontextmanager
async def reading(url: str) -> AsyncIterator[None]:
    """Read a long stream while the block runs; its end is the end of what serves it."""
    begun = asyncio.Event()

    async def read() -> None:
        with suppress(httpx2.HTTPError):  # cut off, or told in the stream that it is over
            told = await streamed(url, PROMPT, LONG, seen=lambda _: begun.set())
            assert told.finishes == []

    async with asyncio.TaskGroup() as group:
        group.create_task(read())
        async with asyncio.timeout(60):
            await begun.wait()
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
        ["up", "--model", str(tiny_model_dir), "--nodes", "3", "--port", "0", "--json-ready"],
        {"MESHNET_CACHE_DIR": str(tmp_path)},
    )
    try:
        process.wait_ready()
        parent = psutil.Process(process.pid)
        served = [psutil.Process(node["pid"]) for node in get(f"{process.url}/mesh")["nodes"]]
        async with reading(process.url):
            end(process)
            await until(
                lambda: not any(map(alive, [parent, *served])),
                "the mesh and every node ended",
                deadline_s=END_DEADLINE_S,
            )
    finally:
        ended = process.stop()

    assert len(served) == 3
    assert ended == code


async def test_nodes_outlive_their_gateway(tiny_model_dir: Path):
    with nodes(tiny_model_dir, ["0-2", "2-4"], MESHNET_WEIGHTS="fp32") as serving:
        urls = [node.url for node in serving]
        with gateway(tiny_model_dir, urls) as first:
            async with reading(first.url):
                first.kill()
        with gateway(tiny_model_dir, urls) as second:
            text = await answered(second.url, PROMPT, TOKENS)
        still = [get(f"{url}/node") for url in urls]

    assert text == expected_text(tiny_model_dir, PROMPT, TOKENS)
    assert [told["pid"] for told in still] == [node.pid for node in serving]
