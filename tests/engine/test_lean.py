"""The short forward answers like transformers' own, and runs only where it was seen to."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.families import LAYERS, VOCAB_SIZE, save_family
from tests.runners import (
    CONTEXT,
    WHOLE,
    answer_of,
    apart_and_together,
    entering_of,
    loaded_in,
    operators_of_a_layer,
)

from meshnet.core.vocabulary import LayerRange, WeightFormat
from meshnet.engine.lean import LeanRunner
from meshnet.engine.quantising import weight_bytes
from meshnet.engine.runner import Passing, Segment

LEAN = ("llama", "llama-tied", "qwen2", "qwen2-swa", "qwen3", "mistral-swa", "seed_oss")
SCALED_ENDS = ("embedding_multiplier", "logits_scaling")
OTHERS = ("gemma", "gemma2", "gemma3", "phi3", "olmo2", "granite", "qwen3_moe", "stablelm", "glm4")
FORMATS = (WeightFormat.FP32, WeightFormat.INT8, WeightFormat.INT8_FAST)


def _lean(path: Path, weights: WeightFormat, layers: LayerRange = WHOLE) -> LeanRunner:
    lean = loaded_in(path, weights, layers).lean()
    assert lean is not None
    return lean


@pytest.mark.parametrize("family", LEAN)
@pytest.mark.parametrize("weights", FORMATS, ids=lambda weights: weights.value)
def test_the_short_forward_answers_like_transformers_own(
    tmp_path: Path, family: str, weights: WeightFormat
):
    path = save_family(tmp_path, family, max_position_embeddings=CONTEXT)
    expected = answer_of(loaded_in(path, weights).generic)

    answer = answer_of(_lean(path, weights))

    if weights is WeightFormat.FP32:
        torch.testing.assert_close(answer, expected, atol=2e-4, rtol=1e-5)
        assert torch.equal(answer.argmax(-1), expected.argmax(-1))
    else:
        assert torch.equal(answer, expected)


@pytest.mark.parametrize("layers", ["0-2", "2-4", "4-6"])
def test_it_runs_any_part_of_a_model(tmp_path: Path, layers: str):
    path = save_family(tmp_path, "qwen3", max_position_embeddings=CONTEXT)
    held = LayerRange.parse(layers)
    expected = answer_of(loaded_in(path, WeightFormat.INT8, held).generic)

    answer = answer_of(_lean(path, WeightFormat.INT8, held))

    assert torch.equal(answer, expected)


def test_it_runs_some_of_the_layers_that_are_held(tmp_path: Path):
    path = save_family(tmp_path, "llama")
    generic, lean = loaded_in(path, WeightFormat.INT8).generic, _lean(path, WeightFormat.INT8)
    some = LayerRange(2, 5)
    entering = Passing(torch.randn(1, 7, 64, generator=torch.Generator().manual_seed(0)))
    caches = [runner.new_cache(some) for runner in (generic, lean)]

    with torch.inference_mode():
        expected = generic.passing(entering, some, [Segment(0, 7, caches[0])])
        passing = lean.passing(entering, some, [Segment(0, 7, caches[1])])

    assert torch.equal(passing.hidden, expected.hidden)
    for index in range(some.start, some.stop):
        ours, theirs = (cache.layers[index].buffer for cache in caches)
        assert torch.equal(ours.keys, theirs.keys)
        assert torch.equal(ours.values, theirs.values)


@pytest.mark.parametrize("family", OTHERS)
def test_a_model_of_another_skeleton_keeps_transformers_forward(tmp_path: Path, family: str):
    loaded = loaded_in(
        save_family(tmp_path, family, max_position_embeddings=CONTEXT), WeightFormat.FP32
    )
    before = answer_of(loaded.generic)

    lean = loaded.lean()

    assert lean is None
    assert torch.equal(answer_of(loaded.generic), before)


@pytest.mark.parametrize(
    ("name", "value"), [("residual_multiplier", 0.22), ("attention_multiplier", 0.3)]
)
def test_a_multiplier_inside_a_layer_is_noticed(tmp_path: Path, name: str, value: float):
    """Granite's layers have Llama's parts; what is between them shows in the trial alone."""
    settings = {"max_position_embeddings": CONTEXT, **dict.fromkeys(SCALED_ENDS, 1.0)}
    middle = LayerRange(2, 4)
    plain = save_family(tmp_path / "plain", "granite", **settings)
    scaled = save_family(tmp_path / "scaled", "granite", **settings, **{name: value})

    taken = [
        loaded_in(path, WeightFormat.FP32, middle).lean() is not None for path in (plain, scaled)
    ]

    # The scale of scores is the attention's own and read from there.
    assert taken == [True, name == "attention_multiplier"]


@pytest.mark.parametrize("name", SCALED_ENDS)
def test_layers_between_scaled_ends_go_as_the_ends_do(tmp_path: Path, name: str):
    """Else the shards of one model would compute differently, and each call itself exact."""
    ends = {**dict.fromkeys(SCALED_ENDS, 1.0), name: 8.0}
    path = save_family(tmp_path, "granite", max_position_embeddings=CONTEXT, **ends)

    taken = [
        loaded_in(path, WeightFormat.INT8, LayerRange.parse(layers)).lean() is not None
        for layers in ("0-2", "2-4", "4-6")
    ]

    assert taken == [False, False, False]


def test_a_model_that_differs_at_far_positions_only_is_noticed(tmp_path: Path):
    """Ministral 3 scales queries beyond the context it was first trained for."""
    path = _save_ministral(tmp_path, beta=0.1)
    unscaled = _save_ministral(tmp_path / "unscaled", beta=0.0)

    taken = [loaded_in(each, WeightFormat.FP32).lean() is not None for each in (path, unscaled)]

    assert taken == [False, True]


def _save_ministral(path: Path, *, beta: float) -> Path:
    from transformers import Ministral3Config, Ministral3ForCausalLM

    torch.manual_seed(0)
    config = Ministral3Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=64,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        intermediate_size=96,
        max_position_embeddings=CONTEXT,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "original_max_position_embeddings": CONTEXT // 8,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "llama_4_scaling_beta": beta,
        },
    )
    Ministral3ForCausalLM(config).save_pretrained(path)
    return path


@pytest.mark.parametrize("lengths", [(1, 3, 4), (1, 1, 1)], ids=["ragged", "decodes"])
@pytest.mark.parametrize("weights", FORMATS, ids=lambda weights: weights.value)
def test_rows_of_several_sessions_come_out_as_they_would_alone(
    tmp_path: Path, weights: WeightFormat, lengths: tuple[int, ...]
):
    """A decode, a chunk that crosses into the next cell, and a prefill, in one call."""
    path = save_family(tmp_path, "qwen2-swa", max_position_embeddings=CONTEXT)
    lean = _lean(path, weights)

    (expected, alone), (got, together) = apart_and_together(lean, (5, 255, 0), lengths)

    if weights is WeightFormat.FP32:
        torch.testing.assert_close(got, expected, atol=2e-4, rtol=1e-5)
    else:
        assert torch.equal(got, expected)
        for ours, theirs in zip(together, alone, strict=True):
            assert torch.equal(*(cache.layers[5].buffer.last(1)[0] for cache in (ours, theirs)))


def test_logits_of_some_rows_are_those_among_all(tmp_path: Path):
    lean = _lean(save_family(tmp_path, "llama"), WeightFormat.INT8)
    ids = entering_of(lean, 9)

    with torch.inference_mode():
        every = lean.logits(ids, WHOLE, [Segment(0, 9, None)], range(9))
        some = lean.logits(ids, WHOLE, [Segment(0, 9, None)], [8, 2])

    assert torch.equal(some, every[[8, 2]])


def test_what_enters_is_not_written_to(tmp_path: Path):
    """A node may keep it, to send it again."""
    lean = _lean(save_family(tmp_path, "qwen3"), WeightFormat.FP32, LayerRange(2, 4))
    entering = entering_of(lean, 5)
    assert isinstance(entering, Passing)
    before = entering.hidden.clone()

    with torch.inference_mode():
        lean.passing(entering, lean.held, [Segment(0, 5, None)])

    assert torch.equal(entering.hidden, before)


@pytest.mark.parametrize("weights", FORMATS, ids=lambda weights: weights.value)
def test_joined_weights_are_held_once(tmp_path: Path, weights: WeightFormat):
    loaded = loaded_in(save_family(tmp_path, "qwen2"), weights)
    before = weight_bytes(loaded.model)

    loaded.lean()

    assert weight_bytes(loaded.model) == before
    layer = loaded.model.meshnet_layers.layer(0)
    assert {name for name, _ in layer.self_attn.named_children()} == {"qkv_proj", "o_proj"}
    assert not hasattr(layer.mlp, "up_proj")


@pytest.mark.parametrize(
    ("weights", "operators_max"),
    [(WeightFormat.FP32, 48), (WeightFormat.INT8, 104), (WeightFormat.INT8_FAST, 80)],
    ids=lambda value: getattr(value, "value", ""),
)
def test_a_layer_takes_few_operators(tmp_path: Path, weights: WeightFormat, operators_max: int):
    """Each costs one to eight microseconds, at a token more than a small model's products."""
    path = save_family(tmp_path, "llama")
    generic = operators_of_a_layer(loaded_in(path, weights).generic)

    operators = operators_of_a_layer(_lean(path, weights))

    assert operators <= operators_max
    assert operators < 0.65 * generic
