"""ADR-0022's cache: transformers' own, at absolute indices, filled for local layers only."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.families import LAYERS, save_family
from tests.family_rows import prompt
from tests.shard_chain import Chain, load_chain
from transformers.cache_utils import DummyLayer, DynamicCache

from meshnet.engine.cache import ShardCache, tensors


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
    """Full attention, sliding windows and linear attention, each in its layer."""
    for name in ("llama", "gemma3", "qwen3_next"):
        chain = Chain(load_chain(save_family(tmp_path / name, name), (2, 3), LAYERS))
        config = chain.shards[0]._runner._model.config
        own = [type(layer) for layer in DynamicCache(config=config).layers]

        kept = [
            type(state.cache.layers[index])
            for state in chain.states
            if state is not None
            for index in range(state.layers.start, state.layers.stop)
        ]

        assert kept == own


def test_a_sparse_update_of_transformers_cache_leaves_other_slots_empty():
    """What ADR-0022 verified; it still holds in the release that is pinned."""
    cache = DynamicCache()
    keys = torch.ones(1, 2, 3, 4)

    cache.update(keys, keys, 5)

    assert filled(cache) == [5]
