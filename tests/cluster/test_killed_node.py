"""A node dies in the middle of a stream, and its client reads on as if nothing had happened."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.api import Told, counted, expected_text, get, streamed, until
from tests.processes import MeshnetProcess, meshnet
from tools.kill_bench import measure

from meshnet.core.vocabulary import WeightFormat

PROMPT = "Tell me of the fox and the lazy dog."
TOKENS = 240


@pytest.fixture(scope="module")
def mesh(
    tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MeshnetProcess]:
    with meshnet(
        "up", "--model", str(tiny_model_dir), "--nodes", "3", "--port", "0", "--json-ready",
        MESHNET_WEIGHTS="fp32", MESHNET_CACHE_DIR=str(tmp_path_factory.mktemp("cache")),
    ) as process:  # fmt: skip
        yield process


@pytest.fixture(scope="module")
def calm(mesh: MeshnetProcess) -> Told:
    return asyncio.run(streamed(mesh.url, PROMPT, TOKENS))


async def test_an_undisturbed_stream_is_the_unsplit_model_s_text(calm: Told, tiny_model_dir: Path):
    assert calm.text == expected_text(tiny_model_dir, PROMPT, TOKENS)
    assert len(calm.tokens) == TOKENS
    assert (calm.finishes, calm.ended, len(calm.usages)) == (["length"], 1, 1)


def test_the_nodes_of_up_know_each_other_and_hand_their_steps_on(mesh: MeshnetProcess, calm: Told):
    nodes = [get(f"{node['url']}/node") for node in get(f"{mesh.url}/mesh")["nodes"]]
    urls = {node["url"] for node in get(f"{mesh.url}/mesh")["nodes"]}

    assert all(set(node["peers"]) == urls for node in nodes)
    assert all(node["capabilities"]["chain"] for node in nodes)
    assert counted(mesh.url, "meshnet_refills_total", "reason")[("chain",)] == 0


@pytest.mark.parametrize("place", [0, 1, 2], ids=["head", "middle", "tail"])
async def test_a_stream_survives_the_death_of_a_node(mesh: MeshnetProcess, calm: Told, place: int):
    """Pits A13, A78 and A80."""
    at = random.Random(place).randrange(5, TOKENS // 2)

    told, refills = await told_with_kill(mesh, place, at)

    assert told.errors == []
    assert told.tokens == calm.tokens
    assert told.text == calm.text
    assert (told.finishes, told.ended) == (["length"], 1)
    assert told.usages == calm.usages
    assert refills > 0
    print(f"killed at token {at}; worst gap {told.worst_gap_s:.2f} s")


async def told_with_kill(mesh: MeshnetProcess, place: int, at: int) -> tuple[Told, int]:
    """Kill a node when token `at` is read; return the answer and how many refills it took."""
    victim = get(f"{mesh.url}/mesh")["nodes"][place]
    before = refills_of(mesh)

    def kill(count: int) -> None:
        if count == at:
            os.kill(victim["pid"], signal.SIGKILL)

    told = await streamed(mesh.url, PROMPT, TOKENS, seen=kill)

    def restarted() -> bool:
        now = get(f"{mesh.url}/mesh")
        node = now["nodes"][place] if now["ready"] else victim
        return bool(node["url"] == victim["url"] and node["pid"] != victim["pid"])

    await until(restarted, "the killed node is back at its URL")
    return told, refills_of(mesh) - before


@pytest.mark.slow
@pytest.mark.parametrize("weights", list(WeightFormat))
def test_twenty_streams_of_a_real_model_survive_twenty_deaths(weights: WeightFormat):
    kills = measure("smollm2-135m", weights, kills=20, tokens=200, seed=0).kills

    assert [kill for kill in kills if not kill.equal] == []
    gaps = sorted(kill.gap_s for kill in kills)
    print(f"gap between two tokens: worst {gaps[-1]:.2f} s, median {gaps[10]:.2f} s")


def refills_of(mesh: MeshnetProcess) -> int:
    return counted(mesh.url, "meshnet_refills_total").total()
