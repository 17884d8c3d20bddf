"""What a step takes from one end to the other: frames, sockets, queue, lease, shard.

One process serves a shard to itself over loopback, as nodes serve each other, and asks it for
steps. Between two of them the caches are emptied, as other layers do between two steps of a node.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

from meshnet.core.protocol.limits import Limits
from meshnet.core.protocol.messages import ActivationReply, ForwardRequest, Mode
from meshnet.core.vocabulary import (
    HIDDEN,
    WIRE_VERSION,
    Activation,
    MeshnetError,
    NodeId,
    SessionId,
    ShardDescription,
    TensorSpec,
)
from meshnet.mesh.grouped import unwrapped
from meshnet.node.compute import Compute
from meshnet.node.service import NodeService
from meshnet.node.shards import NodeLimits
from meshnet.wire.http_client import HttpHopClient
from meshnet.wire.http_server import node_app
from meshnet.wire.serving import bind, serve_socket

WARMUPS = 4
STEPS = 40
TIMEOUT_S = 10.0
KV_BYTES_MAX = 2**26
SESSION = SessionId("trial")


async def served_step_s(compute: Compute, shard: Any, between: Callable[[], object]) -> float:
    """Return the median time of a step, shard included. Raises MeshnetError: none came.

    Args:
        shard: one that holds no end of a model, and whose steps are short.
        between: called before every step; not in its time.
    """
    listener = bind("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    service: NodeService[Any] = NodeService(
        node=NodeId(url),
        pid=os.getpid(),
        shards=(shard,),
        compute=compute,
        limits=NodeLimits(kv_bytes_max=KV_BYTES_MAX),
        clock=time.monotonic,
    )
    app = node_app(service, limits=Limits(), token=None, metrics=lambda: b"")
    times: list[float] = []
    with unwrapped():
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(serve_socket(app, listener))
            try:
                times = await _asked(NodeId(url), shard.description, between)
            finally:
                serving.cancel()
    return statistics.median(times[WARMUPS:])


async def _asked(
    node: NodeId, shard: ShardDescription, between: Callable[[], object]
) -> list[float]:
    """Return the time of each step."""
    spec = TensorSpec(HIDDEN, shard.dtype, (1, 1, shard.hidden_size))
    times = []
    async with HttpHopClient({node: str(node)}, limits=Limits()) as client:
        await client.describe(node, TIMEOUT_S)  # so that steps go by a stream
        for past in range(WARMUPS + STEPS):
            request = ForwardRequest(
                Mode.DECODE if past else Mode.PREFILL,
                SESSION,
                past,
                layers=shard.layers,
                wire=WIRE_VERSION,
                tokens=(0,),
                activation=Activation((spec,), bytearray(spec.nbytes)),
            )
            between()
            began = time.perf_counter()
            reply = await client.forward(node, request, TIMEOUT_S)
            taken_s = time.perf_counter() - began
            if not isinstance(reply, ActivationReply):
                raise MeshnetError(f"measuring: expected an activation, got {reply}")
            times.append(taken_s)
    return times
