"""ADR-0022's cache: transformers' own, at absolute indices, filled for local layers only."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.families import LAYERS, save_family
from tests.family_rows import prompt
from tests.shard_chain import Chain, load_chain
from transformers.cache_utils import (
    DummyLayer,
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionLayer,
)

from meshnet.engine.cache import KVLayer, ShardCache, tensors


def filled(cache: DynamicCache) -> list[int]:
    return sorted({index for index, tensor in tensors(cache) if tensor.numel()})


@pytest.mark.parametrize("name", ["llama", "qwen3_moe", "qwen3_next", "gemma3", "lfm2"])
def test_each_shard_fills_the_slots_of_its_own_layers_and_no_others(tmp_path: Path, name: str):
    chain = Chain(load_chain(save_family(tmp_path, name), (2, 3), LAYERS))

    chain.step(prompt(), 0)

    caches = [state.cache for state in chain.states if state is not None]
    assert [filled(cache) for cache in caches] == [[0, 1], [2], [3, 4, 5]]
    for cache in caches:
        assert isinstance(cache, ShardCache)
        assert len(cache.layers) == LAYERS
        elsewhere = [index for index in range(LAYERS) if index not in filled(cache)]
        assert all(isinstance(cache.layers[index], DummyLayer) for index in elsewhere)


def test_every_slot_is_of_the_kind_that_the_models_own_cache_has(tmp_path: Path):
    """Linear attention in transformers' own layers; keys and values in ours, same windows."""
    for name in ("llama", "gemma3", "qwen3_next"):
        chain = Chain(load_chain(save_family(tmp_path / name, name), (2, 3), LAYERS))
        config = chain.shards[0]._runner.model.config
        own = DynamicCache(config=config).layers

        kept = [
            state.cache.layers[index]
            for state in chain.states
            if state is not None
            for index in range(state.layers.start, state.layers.stop)
        ]

        assert [_window(layer) for layer in kept] == [_window(layer) for layer in own]
        assert {type(layer) for layer in kept} <= {KVLayer, LinearAttentionLayer}


def _window(layer: object) -> object:
    """A layer's window, None if it keeps all keys, or its type if it keeps none."""
    if isinstance(layer, KVLayer):
        return layer.buffer.window
    if isinstance(layer, DynamicLayer):
        return getattr(layer, "sliding_window", None)
    return type(layer)


@pytest.mark.parametrize("window", [None, 8, 300])
def test_a_layer_of_ours_returns_what_transformers_own_would(window: int | None):
    """Models that keep their own attention see the same keys and masks as before."""
    ours = KVLayer(window)
    own = DynamicLayer() if window is None else DynamicSlidingWindowLayer(window)
    generator = torch.Generator().manual_seed(0)
    for length in (5, 1, 2, 300, 1, 1, 260, 7):
        new = torch.randn(1, 2, length, 4, generator=generator)

        assert ours.get_mask_sizes(length) == own.get_mask_sizes(length)
        keys, values = ours.update(new, -new)
        expected_keys, expected_values = own.update(new, -new)
        ours.buffer.settle()

        assert torch.equal(keys, expected_keys)
        assert torch.equal(values, expected_values)


def test_a_sparse_update_of_transformers_cache_leaves_other_slots_empty():
    """What ADR-0022 verified; it still holds in the release that is pinned."""
    cache = DynamicCache()
    keys = torch.ones(1, 2, 3, 4)

    cache.update(keys, keys, 5)

    assert filled(cache) == [5]
