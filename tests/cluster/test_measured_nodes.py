"""Nodes that measure themselves at their start, as real processes."""

from __future__ import annotations

from pathlib import Path

import httpx2
from tests.processes import meshnet, nodes

from meshnet.cli.machine import machine_id
from meshnet.core.protocol.codec import decode_node
from meshnet.core.protocol.limits import Limits
from meshnet.core.vocabulary import Capacity, WeightFormat


def capacity(url: str) -> Capacity:
    told = decode_node(httpx2.get(f"{url}/node", timeout=30).content, Limits()).capacity
    assert told is not None
    return told


def test_a_node_tells_its_speed_and_the_ways_to_its_peers(tiny_model_dir: Path, tmp_path: Path):
    cache = {"MESHNET_CACHE_DIR": str(tmp_path), "MESHNET_MEASURE": "1"}
    arguments = ("node", "--model", str(tiny_model_dir), "--layers", "0-2", "--port", "0")

    with (
        nodes(tiny_model_dir, ["2-4"], MESHNET_CACHE_DIR=str(tmp_path)) as (other,),
        meshnet(*arguments, "--peer", other.url, "--json-ready", **cache) as node,
    ):
        told = capacity(node.url)
        while not told.links:
            told = capacity(node.url)

    (speed,) = told.speeds
    assert (told.machine, told.threads) == (machine_id(), 1)
    assert (speed.weights, speed.step_s > 0) == (WeightFormat.INT8, True)
    assert [link.node for link in told.links] == [other.url]
