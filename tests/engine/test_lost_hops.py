"""Shards of real models behind nodes of which one is lost: what leaves a hop is sent again."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.families import LAYERS, save_family
from tests.family_rows import TOKENS, prompt
from tests.head.cluster import collect
from tests.shard_chain import unsplit
from tests.torch_mesh import Services, mesh_of

from meshnet.core.protocol.messages import ForwardRequest, Reply
from meshnet.core.vocabulary import (
    HopLost,
    LayerRange,
    NodeDescription,
    NodeId,
    SamplingParams,
    WeightFormat,
)
from meshnet.engine.loading import load_shard
from meshnet.head import GenerationRequest
from meshnet.wire.in_process import InProcessHopClient

RANGES = (LayerRange(0, 1), LayerRange(1, 3), LayerRange(3, LAYERS), LayerRange(1, 3))
LOST = NodeId("n1")


class LosingClient(InProcessHopClient):
    """The middle node is gone from its `dies_at`-th step on."""

    dies_at = 10**9

    def __init__(self, services: Services) -> None:
        super().__init__(services)
        self.services = tuple(services.values())

    async def forward(self, node: NodeId, request: ForwardRequest, timeout_s: float) -> Reply:
        if node == LOST:
            self.dies_at -= 1
            self._refuse(node)
        return await super().forward(node, request, timeout_s)

    async def describe(self, node: NodeId, timeout_s: float) -> NodeDescription:
        self._refuse(node)
        return await super().describe(node, timeout_s)

    def _refuse(self, node: NodeId) -> None:
        if node == LOST and self.dies_at < 0:
            raise HopLost(f"{node}: connection refused")


@pytest.mark.parametrize(
    ("name", "weights", "survivors"),
    [
        ("llama", WeightFormat.FP32, 2),
        ("llama", WeightFormat.INT8, 2),
        ("qwen3_next", WeightFormat.FP32, 1),
    ],
)
async def test_a_lost_hop_changes_no_token_and_hops_that_survive_run_no_old_position(
    tmp_path: Path, name: str, weights: WeightFormat, survivors: int
):
    """Where states cannot be shortened, the hop before is filled as well."""
    path = save_family(tmp_path, name)
    shards = [load_shard(path, layers, weights=weights, token_text=str) for layers in RANGES]
    asked = GenerationRequest(tuple(prompt()), TOKENS, SamplingParams(), frozenset(), 120.0)

    async with mesh_of(shards, LosingClient) as (head, client):
        calm, _ = await collect(head, asked)
        ran = [sum(work.tokens for work in service.work()) for service in client.services]
        client.dies_at = TOKENS // 2
        ids, finish = await collect(head, asked)
        partial = head.counters.partial_refills
    again = [
        sum(work.tokens for work in service.work()) - before
        for service, before in zip(client.services, ran, strict=True)
    ]

    assert ids == calm
    if weights is WeightFormat.FP32:
        assert list(ids) == unsplit(path, prompt(), TOKENS).ids
    assert (finish.refills, partial) == (1, 1)
    assert sum(again[at] <= ran[at] + 1 for at in (0, 2)) == survivors
