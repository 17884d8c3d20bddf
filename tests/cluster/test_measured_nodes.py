"""Nodes that measure themselves at their start, as real processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from tests.cluster.api import until
from tests.processes import MeshnetProcess, command, gateway, meshnet, nodes

from meshnet.cli.machine import machine_id
from meshnet.core.protocol.codec import decode_node
from meshnet.core.protocol.limits import Limits
from meshnet.core.vocabulary import Capacity, WeightFormat


def capacity(url: str) -> Capacity:
    told = decode_node(httpx2.get(f"{url}/node", timeout=30).content, Limits()).capacity
    assert told is not None
    return told


Both = tuple[MeshnetProcess, MeshnetProcess]


@pytest.fixture(scope="module")
def both(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    """Two nodes that measured themselves; the first knows the second."""
    cache = str(tmp_path_factory.mktemp("cache"))
    measuring = {"MESHNET_CACHE_DIR": cache, "MESHNET_MEASURE": "1"}
    arguments = ("node", "--model", str(tiny_model_dir), "--layers", "0-2", "--port", "0")
    with (
        nodes(tiny_model_dir, ["2-4"], **measuring) as (other,),
        meshnet(*arguments, "--peer", other.url, "--json-ready", **measuring) as node,
    ):
        yield node, other


async def test_a_node_tells_its_speed_and_the_ways_to_its_peers(both: Both):
    node, other = both
    await until(lambda: bool(capacity(node.url).links), "the ways to its peers are known")

    told = capacity(node.url)

    (speed,) = told.speeds
    assert (told.machine, told.threads) == (machine_id(), 1)
    assert (speed.weights, speed.step_s > 0) == (WeightFormat.INT8, True)
    assert [link.node for link in told.links] == [other.url]


def test_a_gateway_plans_for_the_nodes_that_measured_themselves(
    both: Both, tiny_model_dir: Path, tmp_path: Path
):
    with gateway(tiny_model_dir, [node.url for node in both]) as api:
        told = command(
            "plan", "--model", str(tiny_model_dir), "--url", api.url, "--context", "64", "--json",
            cwd=tmp_path,
        )  # fmt: skip

    assert told.returncode == 0, told.stderr
    made = json.loads(told.stdout)
    named = [hop["node"] for hop in made["hops"]] + [left["node"] for left in made["left_out"]]
    assert sorted(named) == sorted(node.url for node in both)
    assert set(made["changes"]) <= {node.url for node in both}
    assert made["hops"][0]["room_bytes"] > made["hops"][0]["weight_bytes"] > 0


def test_without_a_gateway_this_machine_is_measured(tiny_model_dir: Path, tmp_path: Path):
    told = command(
        "plan", "--model", str(tiny_model_dir), "--context", "64", "--set", "port=1", "--json",
        cwd=tmp_path,
    )  # fmt: skip

    assert told.returncode == 0, told.stderr
    assert "this machine alone is measured" in told.stderr
    assert [hop["node"] for hop in json.loads(told.stdout)["hops"]] == ["here"]
