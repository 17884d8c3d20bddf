"""Shards of real models behind nodes of which one is lost: what leaves a hop is sent again."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest
from tests.families import LAYERS, save_family
from tests.family_rows import TOKENS, prompt
from tests.head.cluster import collect
from tests.shard_chain import unsplit

from meshnet.core.protocol.messages import ForwardRequest, Reply
from meshnet.core.vocabulary import (
    HopLost,
    LayerRange,
    NodeDescription,
    NodeId,
    SamplingParams,
    SessionId,
    WeightFormat,
)
from meshnet.engine.loading import load_shard
from meshnet.engine.shard import TorchModelShard
from meshnet.head import Directory, GenerationRequest, Head
from meshnet.node.compute import ComputeThread
from meshnet.node.service import NodeService
from meshnet.node.shards import NodeLimits
from meshnet.wire.in_process import InProcessHopClient

RANGES = (LayerRange(0, 1), LayerRange(1, 3), LayerRange(3, LAYERS), LayerRange(1, 3))
LOST = NodeId("n1")


class LosingClient(InProcessHopClient):
    """The middle node is gone from its `dies_at`-th step on."""

    dies_at = 10**9

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


@asynccontextmanager
async def mesh_of(
    shards: Sequence[TorchModelShard],
) -> AsyncIterator[tuple[Head, LosingClient, list[NodeService]]]:  # type: ignore[type-arg]
    with ExitStack() as stack:
        services = {}
        for number, shard in enumerate(shards):
            compute = ComputeThread(name=f"torch-{number}")
            stack.callback(compute.close, deadline_s=30.0)
            services[NodeId(f"n{number}")] = NodeService(
                node=NodeId(f"n{number}"),
                pid=1,
                shards=[shard],
                compute=compute,
                limits=NodeLimits(kv_bytes_max=2**30),
                clock=time.monotonic,
            )
        client = LosingClient(services)
        directory = Directory(client, list(services), clock=time.monotonic)
        await directory.refresh()
        numbers = itertools.count()
        async with Head(
            client,
            directory,
            model=shards[0].description.model,
            encode_text=lambda text: (),
            new_session_id=lambda: SessionId(f"s{next(numbers)}"),
            clock=time.monotonic,
            jitter=random.Random(0).random,
        ) as head:
            yield head, client, list(services.values())


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

    async with mesh_of(shards) as (head, client, services):
        calm, _ = await collect(head, asked)
        ran = [sum(work.tokens for work in service.work()) for service in services]
        client.dies_at = TOKENS // 2
        ids, finish = await collect(head, asked)
        partial = head.counters.partial_refills
    again = [
        sum(work.tokens for work in service.work()) - before
        for service, before in zip(services, ran, strict=True)
    ]

    assert ids == calm
    if weights is WeightFormat.FP32:
        assert list(ids) == unsplit(path, prompt(), TOKENS).ids
    assert (finish.refills, partial) == (1, 1)
    assert sum(again[at] <= ran[at] + 1 for at in (0, 2)) == survivors
