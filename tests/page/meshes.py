"""Meshes that a page may be told of."""

from __future__ import annotations

from typing import Any

from tests.gateway.api import Gateway

from meshnet.cli.live.endpoint import add_live
from meshnet.cli.live.feed import Feed


def node(number: int, start: int, stop: int, **changes: Any) -> dict[str, Any]:
    return {
        "node": f"http://127.0.0.1:900{number}",
        "name": f"node-{number}",
        "state": "ready",
        "layers": [start, stop],
        "step_ms": 4.0,
        "busy": 0.5,
        "way_ms": None,
        "pid": 100 + number,
        "weights": "int8",
        "weight_bytes": 60_000_000,
        "kv_bytes": 5_000_000,
        "kv_bytes_max": 500_000_000,
        "memory_bytes": None,
        "sessions": 1,
        "sessions_max": 8,
        "steps": 10,
        "device": "cpu",
    } | changes


def mesh(*nodes: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "model": "org/toy",
        "ready": True,
        "detail": "",
        "layers": 30,
        "route": [{"node": each["node"], "layers": each["layers"]} for each in nodes],
        "nodes": [*nodes],
        "tokens": 10,
        "tokens_per_s": 40.0,
        "running": 1,
        "waiting": 0,
        "refills": 0,
        "answers": None,
    } | changes


THREE = (node(1, 0, 10), node(2, 10, 20), node(3, 20, 30))
STEP = {
    "answer": 1,
    "nodes": [each["node"] for each in THREE],
    "mode": "decode",
    "positions": 1,
    "tokens": 1,
    "ms": 14.0,
    "compute_ms": 4.0,
    "ok": True,
}


def with_feed(gateway: Gateway) -> Feed:
    """Let a gateway tell of a mesh whatever is put into the feed that is returned."""
    feed = Feed(lambda: 0.0)
    add_live(gateway.app, feed, gateway.settings)
    return feed
