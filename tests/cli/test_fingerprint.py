"""`system_fingerprint` names route, format and arithmetic."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from tests.head.cluster import LAYERS, LAYERS_TOTAL, A, B, C, Cluster

from meshnet.cli.composition import Composition
from meshnet.core.vocabulary import LayerRange, NodeId, ShardDescription
from meshnet.head import Directory
from meshnet.node.service import NodeService
from meshnet.node.shards import NodeLimits
from meshnet.simulation.loop import run
from meshnet.simulation.machine import SimCompute
from meshnet.simulation.toy_shard import TOY_MODEL, ToyShard


class Short(ToyShard):
    """Computes in another element type."""

    @property
    def description(self) -> ShardDescription:
        return replace(super().description, arithmetic="bf16")


def short_node(cluster: Cluster, node: NodeId) -> None:
    cluster.nodes[node] = NodeService(
        node=node,
        pid=1,
        shards=[Short(LAYERS[node], layers_total=LAYERS_TOTAL)],
        compute=SimCompute(cluster._rng, step_max_s=0.001),
        limits=NodeLimits(kv_bytes_max=2**20),
        clock=asyncio.get_running_loop().time,
    )


def fingerprint_of(layers: Mapping[NodeId, LayerRange], *short: NodeId) -> str:
    async def main() -> str:
        cluster = Cluster(layers)
        for node in short:
            short_node(cluster, node)
        clock = asyncio.get_running_loop().time
        directory = Directory(cluster, list(cluster.nodes), clock=clock)
        await directory.refresh()
        unused = cast(Any, None)
        return Composition(
            TOY_MODEL, unused, cluster, directory, unused, {}, unused, unused
        ).fingerprint()

    return run(main, 0)


def test_it_changes_with_the_cuts_and_with_one_nodes_arithmetic():
    """Pits A39 and A77."""
    recut = {A: LayerRange(0, 3), B: LayerRange(3, 4), C: LayerRange(4, 6)}

    told = [fingerprint_of(LAYERS), fingerprint_of(recut), fingerprint_of(LAYERS, B)]

    assert fingerprint_of(LAYERS) == told[0]
    assert len(set(told)) == 3
    assert all(each.startswith("fp_") for each in told)
