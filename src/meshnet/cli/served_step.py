"""What a step costs beside the engine: frames, sockets, queue, lease, and the caller's end.

One process serves a shard to itself over loopback, as nodes serve each other, and asks it for
steps: what they take, less what the engine says it took, is what a node adds.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
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


async def served_step_s(compute: Compute, shard: Any) -> float:
    """Return the median time of a step beside the engine's. Raises MeshnetError: none came.

    `shard` holds no end of a model, and its steps are short.
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
                times = await _asked(NodeId(url), shard.description)
            finally:
                serving.cancel()
    return statistics.median(times[WARMUPS:])


async def _asked(node: NodeId, shard: ShardDescription) -> list[float]:
    """Return the time of each step beside the engine's own."""
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
            began = time.perf_counter()
            reply = await client.forward(node, request, TIMEOUT_S)
            taken_s = time.perf_counter() - began
            if not isinstance(reply, ActivationReply):
                raise MeshnetError(f"measuring: expected an activation, got {reply}")
            times.append(max(0.0, taken_s - reply.compute_us / 1e6))
    return times
