"""A shard finds out by itself what its layers cannot do, and says so once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers.models.llama.modeling_llama as llama_code
import transformers.models.phi3.modeling_phi3 as phi_code
from tests.families import FAMILIES, LAYERS, SHARING, save_family
from tests.family_rows import TOLERANCE, prompt
from tests.shard_chain import Chain, load_chain, unsplit

from meshnet.core.vocabulary import (
    KVCacheMiss,
    LayerRange,
    MissReason,
    ModelError,
    SamplingParams,
    ShardStep,
    WeightFormat,
)
from meshnet.engine.loading import load_shard

HEAD = LayerRange(0, 3)
TOKENS = 24


@pytest.fixture
def swallowing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Llama's layers as if they knew the cache under another name: accepted and never used."""
    forward = llama_code.LlamaDecoderLayer.forward

    def without_cache(self: Any, hidden_states: Any, *args: Any, cache: Any = None, **rest: Any):
        return forward(self, hidden_states, *args, **rest)

    monkeypatch.setattr(llama_code.LlamaDecoderLayer, "forward", without_cache)


def _prefill(length: int) -> ShardStep:
    return ShardStep(HEAD, 0, length, tuple(range(5, 5 + length)), None, SamplingParams())


def test_layers_that_swallow_the_cache_make_the_shard_stateless(llama: Path, swallowing: None):
    """Pit A112."""
    said: list[str] = []

    shard = load_shard(llama, HEAD, report=said.append)

    assert not shard.supports_kv_cache
    assert not shard.description.capabilities.multi_token
    assert len(said) == 1
    assert "swallow the cache" in said[0]


def test_a_stateless_shard_answers_a_decode_with_a_miss(llama: Path, swallowing: None):
    shard = load_shard(llama, HEAD)
    state = shard.new_state(HEAD)
    shard.run(_prefill(4), state)
    decode = ShardStep(HEAD, 4, 1, (9,), None, SamplingParams())

    with pytest.raises(KVCacheMiss) as miss:
        shard.run(decode, state)

    assert miss.value.reason is MissReason.CACHING_OFF


def test_a_first_prefill_that_leaves_the_cache_empty_is_noticed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Pit A112.

    The self-test passed, yet the first real prefill stored nothing: caching ends, visibly.
    """
    said: list[str] = []
    shard = load_shard(save_family(tmp_path, "phi3"), HEAD, report=said.append)
    assert shard.supports_kv_cache
    forward = phi_code.Phi3DecoderLayer.forward

    def without_cache(self: Any, hidden_states: Any, *args: Any, cache: Any = None, **rest: Any):
        return forward(self, hidden_states, *args, **rest)

    monkeypatch.setattr(phi_code.Phi3DecoderLayer, "forward", without_cache)
    shard.run(_prefill(4), shard.new_state(HEAD))
    shard.run(_prefill(4), shard.new_state(HEAD))

    assert not shard.supports_kv_cache
    assert len(said) == 1


def test_jamba_takes_one_position_at_a_time_and_finds_that_out_itself(tmp_path: Path):
    """Its layers drop their state when several positions follow a cache."""
    said: list[str] = []
    path = save_family(tmp_path, "jamba")

    shard = load_shard(path, HEAD, report=said.append)

    assert shard.supports_kv_cache
    assert not shard.description.capabilities.multi_token
    assert any("lose their state" in note for note in said)


@pytest.mark.parametrize("name", ["jamba", "bamba"])
def test_a_chunk_sent_all_the_same_is_right(tmp_path: Path, name: str):
    """A head should not chunk for Jamba, but may: the shard feeds the positions singly.

    Bamba makes positions of its own that ignore the cache, unless it is told them.
    """
    path = save_family(tmp_path, name)
    reference = unsplit(path, prompt(), TOKENS)

    answer = Chain(load_chain(path, (3,), LAYERS)).generate(prompt(), TOKENS, chunk=5)

    assert answer.difference(reference) < TOLERANCE


@pytest.mark.parametrize("weights", [WeightFormat.BF16, WeightFormat.FP16])
@pytest.mark.parametrize("name", ["llama", "qwen3_moe", "gemma3", "lfm2", "deepseek_v3"])
def test_rounding_is_not_taken_for_a_lost_cache(tmp_path: Path, name: str, weights: WeightFormat):
    path = save_family(tmp_path, name)

    shards = [load_shard(path, LayerRange(at, at + 3), weights=weights) for at in (0, 3)]

    assert all(shard.description.capabilities.multi_token for shard in shards)


@pytest.mark.parametrize("weights", [WeightFormat.BF16, WeightFormat.FP16])
def test_a_lost_cache_is_not_taken_for_rounding(
    llama: Path, swallowing: None, weights: WeightFormat
):
    shards = [load_shard(llama, LayerRange(at, at + 3), weights=weights) for at in (0, 3)]

    assert not any(shard.supports_kv_cache for shard in shards)


@pytest.mark.parametrize("weights", list(WeightFormat))
@pytest.mark.parametrize(
    "name",
    [
        "model.layers.1.mlp.up_proj.weight",
        "model.layers.2.input_layernorm.weight",
        "model.embed_tokens.weight",
    ],
)
def test_weights_that_are_no_numbers_are_refused_by_name(
    tmp_path: Path, name: str, weights: WeightFormat
):
    from safetensors.torch import load_file, save_file

    path = save_family(tmp_path, "llama", shard_size="1GB")
    tensors = load_file(path / "model.safetensors")
    tensors[name].fill_(torch.nan)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})

    with pytest.raises(ModelError, match=f"{name}' holds NaN or infinity"):
        load_shard(path, HEAD, weights=weights)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) for n in FAMILIES if n not in SHARING]
)
def test_the_bytes_a_description_promises_are_never_too_few(tmp_path: Path, name: str):
    """Sliding windows stop growing, so it may be more."""
    chain = Chain(load_chain(save_family(tmp_path, name), (3,), LAYERS))

    for length in (1, 13, 60):
        chain.drop()
        chain.step((prompt() * 5)[:length], 0)

        for shard, state in zip(chain.shards, chain.states, strict=True):
            assert state is not None
            assert shard.state_bytes(state) <= shard.description.kv_bytes.of(length)


# --- rotary factors that change with the length ---------------------------------------------------

BOUNDARY = 24
LONGROPE = {
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0] * 8,
        "long_factor": [1.0 + index for index in range(8)],
        "original_max_position_embeddings": BOUNDARY,
    },
    "original_max_position_embeddings": BOUNDARY,
}
DYNAMIC = {
    "max_position_embeddings": BOUNDARY,
    "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0},
}


def _generate_with_refills(chain: Chain) -> tuple[list[int], list[MissReason]]:
    """As a head does: a miss costs a prefill; caching off costs one at every step."""
    ids, past, misses = list(prompt()), 0, []
    for _ in range(TOKENS):
        try:
            token = chain.step(ids[past:], past)
        except KVCacheMiss as miss:
            misses.append(miss.reason)
            chain.drop()
            token = chain.step(ids, 0)
        assert token is not None
        past = len(ids)
        ids.append(token.token_id)
    return ids[len(prompt()) :], misses


def test_longrope_costs_one_refill_where_its_factors_change(tmp_path: Path):
    """transformers' `generate` recomputes there too (Phi-3)."""
    path = save_family(tmp_path, "phi3", **LONGROPE)
    reference = unsplit(path, prompt(), TOKENS)

    ids, misses = _generate_with_refills(Chain(load_chain(path, (2, 4), LAYERS)))

    assert ids == reference.ids
    assert misses == [MissReason.POSITION_LIMIT]


def test_longrope_on_a_model_whose_generate_ignores_it_is_the_uncached_model(tmp_path: Path):
    """Llama's cached `generate` mixes keys of both factors; the uncached model has one meaning."""
    path = save_family(tmp_path, "llama", rope_parameters=LONGROPE["rope_parameters"])
    meant = unsplit(path, prompt(), TOKENS, use_cache=False)
    mixed = unsplit(path, prompt(), TOKENS)

    ids, misses = _generate_with_refills(Chain(load_chain(path, (2, 4), LAYERS)))

    assert ids == meant.ids != mixed.ids
    assert misses == [MissReason.POSITION_LIMIT]


def test_beyond_dynamic_ntks_limit_a_session_cannot_be_cached(tmp_path: Path):
    """Every further position changes all factors: the uncached model is the only meaning."""
    path = save_family(tmp_path, "llama", **DYNAMIC)
    meant = unsplit(path, prompt(), TOKENS, use_cache=False)

    ids, misses = _generate_with_refills(Chain(load_chain(path, (2, 4), LAYERS)))

    assert ids == meant.ids
    assert set(misses) == {MissReason.CACHING_OFF}


def test_a_long_session_does_not_change_the_factors_of_a_short_one(tmp_path: Path):
    """The rotary module remembers the longest sequence; a shard makes it forget."""
    path = save_family(tmp_path, "llama", **DYNAMIC)
    chain = Chain(load_chain(path, (3,), LAYERS))
    before = [chain.step(prompt()[:n], 0, cached=False) for n in (5, 13)]

    for length in (BOUNDARY, BOUNDARY + 1, 2 * BOUNDARY):
        chain.step((prompt() * 5)[:length], 0, cached=False)
        exact = chain.logits[-1].clone()
        chain.step((prompt() * 5)[: 3 * BOUNDARY], 0, cached=False)
        chain.step((prompt() * 5)[:length], 0, cached=False)

        assert torch.equal(chain.logits[-1], exact)
    assert [chain.step(prompt()[:n], 0, cached=False) for n in (5, 13)] == before


@pytest.mark.parametrize("overrides", [LONGROPE, DYNAMIC], ids=["longrope", "dynamic"])
def test_prefills_of_a_model_with_changing_factors_are_never_chunked(
    tmp_path: Path, overrides: dict[str, Any]
):
    """A chunk across the boundary would miss, be refilled in chunks, and miss again."""
    path = save_family(tmp_path, "phi3" if overrides is LONGROPE else "llama", **overrides)

    shard = load_shard(path, HEAD)

    assert shard.supports_kv_cache
    assert not shard.description.capabilities.multi_token


def test_dynamic_ntk_reaches_as_far_as_its_factor_says(tmp_path: Path):
    path = save_family(tmp_path, "llama", **DYNAMIC)

    description = load_shard(path, HEAD).description

    assert description.context_length == 4 * BOUNDARY


def test_a_step_across_the_boundary_leaves_the_session_as_it_was(tmp_path: Path):
    path = save_family(tmp_path, "phi3", **LONGROPE)
    shard = load_shard(path, HEAD)
    state = shard.new_state(HEAD)
    shard.run(_prefill(BOUNDARY - 1), state)
    crossing = replace(_prefill(2), past_length=BOUNDARY - 1)

    with pytest.raises(KVCacheMiss):
        shard.run(crossing, state)

    assert state.length == BOUNDARY - 1
    shard.run(replace(_prefill(1), past_length=BOUNDARY - 1), state)
    assert state.length == BOUNDARY
