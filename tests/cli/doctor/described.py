"""Nodes as they describe themselves, all well."""

from __future__ import annotations

from meshnet import __version__
from meshnet.core.vocabulary import (
    WIRE_VERSION,
    Capabilities,
    Capacity,
    DType,
    KVBytes,
    LayerRange,
    ModelId,
    NodeDescription,
    NodeId,
    ShardDescription,
)

A, B = NodeId("http://10.0.0.2:9001"), NodeId("http://10.0.0.3:9001")
GB = 10**9
SHARD = ShardDescription(
    model=ModelId("m"),
    fingerprint="f1",
    layers=LayerRange(0, 4),
    layers_total=8,
    dtype=DType.FP32,
    hidden_size=64,
    vocab_size=256,
    context_length=1024,
    capabilities=Capabilities(kv_cache=True, multi_token=True),
    kv_bytes=KVBytes(per_token=1000, grid=256),
    weight_bytes=GB,
    bytes_read=GB,
    arithmetic="a1",
)
NODE = NodeDescription(
    node=A,
    wire=WIRE_VERSION,
    pid=7,
    ready=True,
    shards=(SHARD,),
    sessions=0,
    sessions_max=8,
    kv_bytes=0,
    kv_bytes_max=2 * GB,
    compute_s=0.0,
    steps=0,
    capacity=Capacity(machine="x", memory_bytes=4 * GB, threads=2, cores=2),
    version=__version__,
)
