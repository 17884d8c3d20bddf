"""The cache of one session on one shard: transformers' own, told which layers are here.

transformers asks a cache for its length through some layer, often layer 0, which on most shards
is empty: the answers would be wrong, and masks with them, silently. So slots of other shards are
`DummyLayer`, which every such probe skips, and the length is a counter of ours.

Invariants
    * `length` is the number of positions every local layer has seen, or the cache is torn;
    * nothing reads a length off a layer.

Source: transformers 5.24 `cache_utils`; `masking_utils.find_first_full_attention_index`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch
from transformers.cache_utils import DummyLayer, DynamicCache

from meshnet.core.vocabulary import LayerRange


class _LocalLayers:
    """What turns a transformers cache into the cache of a shard; mixed into its class."""

    layers: list[Any]
    length: int
    local: LayerRange

    def keep_only(self, local: LayerRange) -> None:
        self.local, self.length = local, 0
        self.layers = [
            layer if local.start <= index < local.stop else DummyLayer()
            for index, layer in enumerate(self.layers)
        ]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.length

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        layer = self.layers[layer_idx] if layer_idx < len(self.layers) else None
        if getattr(layer, "is_sliding", False):
            sizes: tuple[int, int] = layer.get_mask_sizes(query_length)  # type: ignore[union-attr]
            return sizes
        return self.length + query_length, 0


class ShardCache(_LocalLayers, DynamicCache):  # type: ignore[misc]
    """`DynamicCache` for a range of layers at absolute indices."""


def cache_class(decoder: Any) -> type[Any]:
    """The class of this decoder's caches: ours, or ours over the model's own (MiniMax)."""
    module = sys.modules[type(decoder).__module__]
    for value in vars(module).values():
        own = isinstance(value, type) and issubclass(value, DynamicCache)
        if own and value.__module__ == module.__name__:
            return type(f"Shard{value.__name__}", (_LocalLayers, value), {})
    return ShardCache


def new_cache(kind: type[Any], config: Any, local: LayerRange) -> Any:
    """An empty cache for `local`. A model's own cache class takes no config."""
    cache = kind(config=config) if kind is ShardCache else kind()
    cache.keep_only(local)
    return cache


def tensors(cache: Any) -> Iterator[tuple[int, torch.Tensor]]:
    """Every tensor the cache holds with its layer's index, whatever the kind of layer."""
    for index, layer in enumerate(cache.layers):
        for name, value in vars(layer).items():
            if name.startswith("_"):
                continue
            if isinstance(value, torch.Tensor):
                yield index, value
            elif isinstance(value, dict):
                for part in value.values():
                    if isinstance(part, torch.Tensor):
                        yield index, part
    for index, value in enumerate(getattr(cache, "linear_cache", ())):
        if isinstance(value, torch.Tensor):
            yield index, value


def allocated_bytes(cache: Any) -> int:
    """Bytes of the distinct storages held: sliding layers keep views of larger tensors."""
    storages = {}
    for _, tensor in tensors(cache):
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def unfilled_layers(cache: Any) -> list[int]:
    """Local layers that should hold state after a prefill and hold none.

    Layers swallow unknown keyword arguments, so this is the only sign that they do not cache.
    """
    filled = {index for index, tensor in tensors(cache) if tensor.numel()}
    stateful = [
        index
        for index in range(cache.local.start, cache.local.stop)
        if index >= len(cache.layers) or not isinstance(cache.layers[index], DummyLayer)
    ]
    return [index for index in stateful if index not in filled]
