"""Real shards of a tiny model behind real node services and a real head, in one process."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from typing import TypeVar

from tests.head.cluster import collect

from meshnet.core.generation.limits import GenerationLimits
from meshnet.core.vocabulary import NodeId, SamplingParams, SessionId
from meshnet.engine.shard import TorchModelShard
from meshnet.head import Directory, FinishEvent, GenerationRequest, Head, HeadLimits
from meshnet.node.compute import ComputeThread
from meshnet.node.service import NodeService
from meshnet.node.shards import NodeLimits
from meshnet.wire.in_process import InProcessHopClient

UNTIMED = HeadLimits(generation=GenerationLimits(drafts=0))
"""Whether drafts pay is found out by timing steps: with them, what runs changes with the load."""


class RecordingClient(InProcessHopClient):
    """Remembers the mode of every step."""

    def __init__(self, services: Mapping[NodeId, NodeService]) -> None:  # type: ignore[type-arg]
        super().__init__(services)
        self.modes: list[str] = []

    async def forward(self, node, request, timeout_s):  # type: ignore[no-untyped-def]
        self.modes.append(request.mode.value)
        return await super().forward(node, request, timeout_s)


Services = Mapping[NodeId, NodeService]  # type: ignore[type-arg]
C = TypeVar("C", bound=InProcessHopClient)


@asynccontextmanager
async def mesh_of(
    shards: Sequence[TorchModelShard],
    client_of: Callable[[Services], C] = RecordingClient,  # type: ignore[assignment]
) -> AsyncIterator[tuple[Head, C]]:
    """A head over one node per shard."""
    with ExitStack() as stack:
        services = {}
        for number, shard in enumerate(shards):
            compute = ComputeThread(name=f"torch-{number}", jobs_max=32)
            stack.callback(compute.close, deadline_s=30.0)
            services[NodeId(f"n{number}")] = NodeService(
                node=NodeId(f"n{number}"),
                pid=1,
                shards=[shard],
                compute=compute,
                limits=NodeLimits(kv_bytes_max=2**30),
                clock=time.monotonic,
            )
        client = client_of(services)
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
            limits=UNTIMED,
            jitter=random.Random(0).random,
        ) as head:
            yield head, client


async def drawn(head: Head, prompt: Sequence[int], tokens: int) -> tuple[list[int], FinishEvent]:
    """Greedy ids, and how it ended."""
    asked = GenerationRequest(tuple(prompt), tokens, SamplingParams(), frozenset(), 120.0)
    ids, finish = await collect(head, asked)
    return list(ids), finish
