"""How many layers a model has and where it cannot be cut, without loading torch where possible.

A gateway or launcher that never runs a layer should not pay for the library that does: torch
costs seconds and hundreds of megabytes. Most configurations say their depth in plain JSON;
the others are read by transformers, as a shard would.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from meshnet.core.vocabulary import LayerRange
from meshnet.engine.config_sizes import plain_config

Depth = tuple[int, tuple[LayerRange, ...]]


def depth(path: Path) -> Depth:
    """Return the number of layers and the runs that no split may cut. Raises ModelError."""
    return _plain(path) or _by_transformers(path)


def _plain(path: Path) -> Depth | None:
    config = plain_config(path / "config.json")
    inner = config.get("text_config")
    text: dict[str, Any] = inner if isinstance(inner, dict) else config
    layers: int | None = text.get("num_hidden_layers")
    if layers is None:
        return None
    # Layers that share their K/V: which ones, only the configuration's class knows.
    if any("kv_shar" in name and value for name, value in text.items()):
        return None
    if text.get("model_type", config.get("model_type")) in _SHARING_BY_DEFAULT:
        return None
    return layers, ()


_SHARING_BY_DEFAULT = ("gemma3n", "gemma3n_text", "gemma4", "gemma4_text")


def _by_transformers(path: Path) -> Depth:
    from meshnet.engine.checkpoint import read_config
    from meshnet.engine.identity import inseparable_layers
    from meshnet.engine.loading import layers_total

    return layers_total(path), inseparable_layers(read_config(path))
