"""GET /node and GET /sessions/{id} as JSON."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from meshnet.core.protocol.codec import decode_node, decode_session, encode_node, encode_session
from meshnet.core.protocol.limits import Limits
from meshnet.core.vocabulary import (
    BadField,
    Capabilities,
    DType,
    KVBytes,
    LayerRange,
    ModelId,
    NodeDescription,
    NodeId,
    SessionDescription,
    SessionId,
    ShardDescription,
)

LIMITS = Limits()
SHARD = ShardDescription(
    model=ModelId("smollm2-135m"),
    fingerprint="f00d",
    layers=LayerRange(10, 20),
    layers_total=30,
    dtype=DType.FP32,
    hidden_size=576,
    vocab_size=49152,
    context_length=8192,
    capabilities=Capabilities(
        kv_cache=True,
        multi_token=False,
        truncate=True,
        marks=2,
        batch=True,
        exact=True,
        moves=True,
        forced=True,
        grammar=True,
    ),
    kv_bytes=KVBytes(per_token=15360, fixed=7, grid=256),
    weight_bytes=141_000_000,
    bytes_read=141_000_100,
    arithmetic="beef",
    inseparable=(LayerRange(12, 14),),
    weights="int8",
    operators="packed",
)
NODE = NodeDescription(
    node=NodeId("http://127.0.0.1:9001"),
    wire=1,
    pid=4711,
    ready=True,
    shards=(SHARD, replace(SHARD, model=ModelId("other"), inseparable=())),
    sessions=2,
    sessions_max=8,
    kv_bytes=12345,
    kv_bytes_max=2**33,
    compute_s=1.25,
    steps=77,
    device="cuda:0",
    stream=True,
    draining=True,
)


def test_a_node_that_says_nothing_of_moves_moves_nothing_and_does_not_drain():
    values = json.loads(encode_node(NODE))
    del values["draining"]
    for shard in values["shards"]:
        del shard["capabilities"]["moves"]

    told = decode_node(json.dumps(values).encode(), LIMITS)

    assert not told.draining
    assert not any(shard.capabilities.moves for shard in told.shards)


def test_a_node_that_says_nothing_of_streams_has_none():
    values = json.loads(encode_node(NODE))
    del values["capabilities"]

    assert decode_node(json.dumps(values).encode(), LIMITS) == replace(NODE, stream=False)


def test_a_node_is_read_as_it_was_told():
    assert decode_node(encode_node(NODE), LIMITS) == NODE


def test_keys_of_a_later_version_are_ignored_and_absent_additions_have_a_default():
    values = json.loads(encode_node(NODE)) | {"later": {"a": [1]}}
    del values["device"]
    for added in ("truncate", "marks", "batch", "exact", "moves", "forced", "grammar"):
        del values["shards"][0]["capabilities"][added]
    del values["shards"][0]["kv_bytes"]["grid"]
    del values["shards"][0]["weights"], values["shards"][0]["operators"]

    read = decode_node(json.dumps(values).encode(), LIMITS)

    older = replace(
        SHARD,
        capabilities=Capabilities(kv_cache=True, multi_token=False),
        kv_bytes=KVBytes(per_token=15360, fixed=7),
        weights="",
        operators="",
    )
    assert read == replace(NODE, device="cpu", shards=(older, NODE.shards[1]))


NONSENSE = {
    "node": [None, 5, [1], {"a": 1}],
    "wire": [None, "", -1, 1.5, True, [1]],
    "ready": [None, "", 1, [1]],
    "shards": [None, "", -1, [1], {"a": 1}, [{}]],
    "compute_s": [None, "", True, [1], 1e301],
}


@pytest.mark.parametrize(
    ("key", "value"), [(key, value) for key, values in NONSENSE.items() for value in values]
)
def test_a_node_that_tells_nonsense_is_refused(key, value):
    values = json.loads(encode_node(NODE)) | {key: value}

    with pytest.raises(BadField):
        decode_node(json.dumps(values).encode(), LIMITS)


@pytest.mark.parametrize("key", list(json.loads(encode_node(NODE))["shards"][0]))
def test_every_key_of_a_shard_is_checked(key):
    values = json.loads(encode_node(NODE))
    values["shards"][0][key] = {"inseparable": ["3"], "layers": "20-40"}.get(key, [])

    with pytest.raises(BadField):
        decode_node(json.dumps(values).encode(), LIMITS)


@pytest.mark.parametrize("prefix", ["0123456789abcdef", None])
@pytest.mark.parametrize("attempt", [3, None])
def test_a_session_is_read_as_it_was_told(prefix, attempt):
    session = SessionDescription(SessionId("s"), LayerRange(0, 9), 17, prefix, attempt, 4096)

    assert decode_session(encode_session(session), LIMITS) == session


def test_a_node_holds_one_shard_of_a_model():
    twice = replace(NODE, shards=(SHARD, replace(SHARD, layers=LayerRange(0, 5))))

    with pytest.raises(BadField, match="one shard of a model"):
        decode_node(encode_node(twice), LIMITS)


def test_a_node_cannot_hold_up_routing_with_thousands_of_runs():
    runs = tuple(LayerRange(start, start + 2) for start in range(0, 200, 2))
    cut_up = replace(SHARD, layers_total=400, inseparable=runs)

    with pytest.raises(BadField, match="inseparable"):
        decode_node(encode_node(replace(NODE, shards=(cut_up,))), LIMITS)
