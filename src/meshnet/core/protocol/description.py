"""`GET /node` and `GET /sessions/{id}` as JSON, and back.

Unknown keys are ignored and additive keys may be absent, so nodes of unlike versions read each
other; what is present is checked as strictly as a request.
"""

from __future__ import annotations

from typing import Any

from meshnet.core.protocol.capacities import capacity_values, read_capacity
from meshnet.core.protocol.fields import Fields, print_object, read_object
from meshnet.core.protocol.headers import dtype_of, session_id
from meshnet.core.protocol.limits import Limits
from meshnet.core.vocabulary import (
    BadField,
    Buffer,
    Capabilities,
    KVBytes,
    LayerRange,
    ModelId,
    NodeDescription,
    NodeId,
    SessionDescription,
    ShardDescription,
)

PEERS_MAX = 256
SHARDS_MAX = 64
INSEPARABLE_MAX = 64
"""Routing tries a cut at each: more would hold up every request."""


def encode_node(node: NodeDescription) -> bytes:
    """Return the JSON of `GET /node`."""
    return print_object(node_values(node))


def node_values(node: NodeDescription) -> dict[str, Any]:
    return {
        "node": node.node,
        "wire": node.wire,
        "version": node.version,
        "pid": node.pid,
        "ready": node.ready,
        "draining": node.draining,
        "device": node.device,
        "capabilities": {"stream": node.stream, "chain": node.chain, "replay": node.replay},
        "peers": node.peers,
        "sessions": node.sessions,
        "sessions_max": node.sessions_max,
        "kv_bytes": node.kv_bytes,
        "kv_bytes_max": node.kv_bytes_max,
        "compute_s": node.compute_s,
        "steps": node.steps,
        "shards": [_shard_values(shard) for shard in node.shards],
        "capacity": None if node.capacity is None else capacity_values(node.capacity),
    }


def _shard_values(shard: ShardDescription) -> dict[str, Any]:
    return {
        "model": shard.model,
        "fingerprint": shard.fingerprint,
        "layers": str(shard.layers),
        "layers_total": shard.layers_total,
        "dtype": shard.dtype.value,
        "hidden_size": shard.hidden_size,
        "vocab_size": shard.vocab_size,
        "context_length": shard.context_length,
        "capabilities": {
            "kv_cache": shard.capabilities.kv_cache,
            "multi_token": shard.capabilities.multi_token,
            "truncate": shard.capabilities.truncate,
            "marks": shard.capabilities.marks,
            "batch": shard.capabilities.batch,
            "exact": shard.capabilities.exact,
            "moves": shard.capabilities.moves,
            "forced": shard.capabilities.forced,
            "grammar": shard.capabilities.grammar,
        },
        "kv_bytes": {
            "per_token": shard.kv_bytes.per_token,
            "fixed": shard.kv_bytes.fixed,
            "grid": shard.kv_bytes.grid,
            "spare": shard.kv_bytes.spare,
        },
        "weight_bytes": shard.weight_bytes,
        "bytes_read": shard.bytes_read,
        "arithmetic": shard.arithmetic,
        "inseparable": [str(run) for run in shard.inseparable],
        "weights": shard.weights,
        "operators": shard.operators,
    }


def decode_node(data: Buffer, limits: Limits) -> NodeDescription:
    """Read `GET /node`. Raises BadField."""
    fields = read_object(data, "node", limits)
    shards = tuple(_shard(entry) for entry in fields.objects("shards", count_max=SHARDS_MAX))
    if len({shard.model for shard in shards}) < len(shards):
        raise fields.refuse("shards", "one shard of a model")
    return NodeDescription(
        node=NodeId(fields.text("node")),
        wire=fields.integer("wire"),
        pid=fields.integer("pid"),
        ready=fields.truth("ready"),
        shards=shards,
        sessions=fields.integer("sessions"),
        sessions_max=fields.integer("sessions_max"),
        kv_bytes=fields.integer("kv_bytes"),
        kv_bytes_max=fields.integer("kv_bytes_max"),
        compute_s=fields.number("compute_s"),
        steps=fields.integer("steps"),
        device=fields.text("device") if fields.has("device") else "cpu",
        stream=_able(fields, "stream"),
        chain=_able(fields, "chain"),
        replay=_able(fields, "replay"),
        peers=_peers(fields) if fields.has("peers") else (),
        draining=_told(fields, "draining"),
        capacity=read_capacity(fields) if fields.has("capacity") else None,
        version=fields.text("version", chars_max=64) if fields.has("version") else "",
    )


def _able(fields: Fields, name: str) -> bool:
    if not fields.has("capabilities"):
        return False
    capabilities = fields.object("capabilities")
    return capabilities.truth(name) if capabilities.has(name) else False


def _peers(fields: Fields) -> tuple[NodeId, ...]:
    peers = fields.array("peers", count_max=PEERS_MAX)
    if not all(isinstance(peer, str) and len(peer) <= 512 for peer in peers):
        raise fields.refuse("peers", "strings of at most 512 characters")
    return tuple(map(NodeId, peers))


def _shard(fields: Fields) -> ShardDescription:
    layers = fields.layers("layers")
    layers_total = fields.integer("layers_total", low=layers.stop)
    return ShardDescription(
        model=ModelId(fields.text("model")),
        fingerprint=fields.text("fingerprint"),
        layers=layers,
        layers_total=layers_total,
        dtype=dtype_of(fields.text("dtype"), "node.shards.dtype"),
        hidden_size=fields.integer("hidden_size", low=1),
        vocab_size=fields.integer("vocab_size", low=1),
        context_length=fields.integer("context_length", low=1),
        capabilities=_capabilities(fields.object("capabilities")),
        kv_bytes=_kv_bytes(fields.object("kv_bytes")),
        weight_bytes=fields.integer("weight_bytes"),
        bytes_read=fields.integer("bytes_read"),
        arithmetic=fields.text("arithmetic"),
        inseparable=_inseparable(fields) if fields.has("inseparable") else (),
        weights=fields.text("weights") if fields.has("weights") else "",
        operators=fields.text("operators") if fields.has("operators") else "",
    )


def _capabilities(fields: Fields) -> Capabilities:
    return Capabilities(
        kv_cache=fields.truth("kv_cache"),
        multi_token=fields.truth("multi_token"),
        truncate=_told(fields, "truncate"),
        marks=fields.integer("marks") if fields.has("marks") else 0,
        batch=_told(fields, "batch"),
        exact=_told(fields, "exact"),
        moves=_told(fields, "moves"),
        forced=_told(fields, "forced"),
        grammar=_told(fields, "grammar"),
    )


def _told(fields: Fields, name: str) -> bool:
    """What older nodes do not say of themselves."""
    return fields.truth(name) if fields.has(name) else False


def _kv_bytes(fields: Fields) -> KVBytes:
    grid = fields.integer("grid", low=1) if fields.has("grid") else 1
    per_token = fields.integer("per_token")
    spare = fields.integer("spare", high=per_token) if fields.has("spare") else 0
    return KVBytes(per_token, fields.integer("fixed"), grid, spare)


def _inseparable(fields: Fields) -> tuple[LayerRange, ...]:
    runs = []
    for text in fields.array("inseparable", count_max=INSEPARABLE_MAX):
        try:
            runs.append(LayerRange.parse(text))
        except (ValueError, TypeError):
            raise BadField("node.shards.inseparable", "layers A-B", text) from None
    return tuple(runs)


def encode_session(session: SessionDescription) -> bytes:
    """Return the JSON of `GET /sessions/{id}`."""
    return print_object(
        {
            "session": session.session,
            "layers": str(session.layers),
            "length": session.length,
            "prefix": session.prefix,
            "attempt": session.attempt,
            "kv_bytes": session.kv_bytes,
            "replayable": session.replayable,
        }
    )


def decode_session(data: Buffer, limits: Limits) -> SessionDescription:
    """Read `GET /sessions/{id}`. Raises BadField."""
    fields = read_object(data, "session", limits)
    return SessionDescription(
        session=session_id(fields.text("session")),
        layers=fields.layers("layers"),
        length=fields.integer("length"),
        prefix=fields.text("prefix") if fields.has("prefix") else None,
        attempt=fields.integer("attempt") if fields.has("attempt") else None,
        kv_bytes=fields.integer("kv_bytes"),
        replayable=fields.integer("replayable") if fields.has("replayable") else 0,
    )
