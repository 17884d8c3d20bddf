"""What a configuration says a shard will take, against what loaded shards report."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.families import FAMILIES, LAYERS, SHARING, save_family

from meshnet.core.planning import Attention
from meshnet.core.protocol.marks import MARKS_MAX
from meshnet.core.vocabulary import LayerRange, ModelError, WeightFormat
from meshnet.engine.checkpoint import read_config
from meshnet.engine.loading import load_shard
from meshnet.engine.model_shape import model_shape

RANGES = (LayerRange(0, 2), LayerRange(2, 4), LayerRange(4, LAYERS), LayerRange(0, LAYERS))
TOKENS = (1, 100, 300)
FORMATS = (WeightFormat.FP32, WeightFormat.INT8)
QUICK = ("llama-tied", "qwen3_moe", "gemma3", "qwen3_next")
"""Tied ends, experts, windows, recurrent states."""


def compare(path: Path, weights: WeightFormat, held: LayerRange) -> None:
    shape = model_shape(path, weights)
    told = load_shard(path, held, weights=weights).description

    assert shape.weight_bytes_of(held) == told.weight_bytes
    assert shape.hidden_size == told.hidden_size
    assert shape.context_length == told.context_length
    assert shape.inseparable == told.inseparable
    # A shard whose self-test cannot go back (Jamba) keeps no copies of its states; a shape, which
    # runs no test, makes room for them.
    goes_back = told.capabilities.truncate or told.capabilities.marks
    most = 1.2 if goes_back else 1 + MARKS_MAX
    for tokens in TOKENS:
        taken = told.kv_bytes.without_spare().of(tokens)
        promised = shape.kv_bytes_of(held, context=tokens, sessions=1)
        assert taken <= promised <= most * taken + 4096


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory):
    made: dict[str, Path] = {}

    def path_of(family: str) -> Path:
        if family not in made:
            made[family] = save_family(tmp_path_factory.mktemp(family), family)
        return made[family]

    return path_of


@pytest.mark.parametrize("weights", FORMATS, ids=lambda each: each.value)
@pytest.mark.parametrize("family", QUICK)
def test_a_shape_tells_what_shards_take(family, weights, saved):
    for held in (LayerRange(0, 2), LayerRange(3, LAYERS)):
        compare(saved(family), weights, held)


@pytest.mark.slow
@pytest.mark.parametrize("weights", FORMATS, ids=lambda each: each.value)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_shape_tells_what_shards_of_every_family_take(family, weights, saved):
    for held in (LayerRange(0, 1), LayerRange(1, LAYERS)) if family in SHARING else RANGES:
        compare(saved(family), weights, held)


def test_a_plain_layer_multiplies_by_each_of_its_matrices_once(saved):
    shape = model_shape(saved("llama"), WeightFormat.FP32)

    attention, mlp = 64 * (64 + 32 + 32 + 64), 3 * 64 * 96
    assert [layer.multiplies for layer in shape.layers] == [attention + mlp] * LAYERS
    assert shape.head_multiplies == 256 * 64
    assert shape.activation_bytes == 64 * 4
    assert [layer.position_bytes for layer in shape.layers] == [2 * 2 * 16 * 4] * LAYERS
    assert {layer.window for layer in shape.layers} == {None}


def test_a_position_goes_through_the_experts_it_chose_and_no_others(saved):
    shape = model_shape(saved("qwen3_moe"), WeightFormat.FP32)

    layer = shape.layers[0]
    experts = 4 * 3 * 64 * 32
    assert layer.routed_share == 0.5
    assert layer.routed_bytes == 4 * experts
    assert layer.read_bytes(1) == layer.weight_bytes - 2 * experts
    attention = 64 * (64 + 32 + 32 + 64)
    assert layer.multiplies == attention + 4 * 64 + experts // 2


def test_windows_and_states_bound_what_a_position_reads(saved):
    sliding = model_shape(saved("gemma3"), WeightFormat.FP32)
    hybrid = model_shape(saved("qwen3_next"), WeightFormat.FP32)

    assert [layer.window for layer in sliding.layers] == [8, 8, 8, 8, 8, None]
    assert sliding.layers[0].attended_bytes(1000) == sliding.layers[0].attended_bytes(8)
    assert [layer.state_bytes > 0 for layer in hybrid.layers] == [
        True, True, True, False, True, False
    ]  # fmt: skip
    assert hybrid.layers[0].attended_bytes(1000) == hybrid.layers[0].state_bytes


def test_int8_takes_a_quarter_of_the_matrices_and_as_many_multiply_adds(saved):
    full, small = (model_shape(saved("llama"), weights) for weights in FORMATS)

    assert 3 < full.layers[0].weight_bytes / small.layers[0].weight_bytes < 4
    assert full.layers[0].multiplies == small.layers[0].multiplies


def test_a_shape_needs_no_weights(saved, tmp_path):
    (tmp_path / "config.json").write_bytes((saved("llama") / "config.json").read_bytes())

    shape = model_shape(tmp_path, WeightFormat.INT8)

    assert shape.model == tmp_path.name
    assert shape.weight_bytes == model_shape(saved("llama"), WeightFormat.INT8).weight_bytes


def test_a_directory_without_a_configuration_is_refused(tmp_path):
    with pytest.raises(ModelError, match=r"no config\.json"):
        model_shape(tmp_path, WeightFormat.INT8)


def test_adr_0022s_rule_of_thumb_is_what_a_plain_model_takes(saved):
    shape = model_shape(saved("llama-tied"), WeightFormat.INT8)
    config = read_config(saved("llama-tied"))
    rule = Attention(
        layers=LAYERS, kv_heads=config.num_key_value_heads, head_dim=config.head_dim,
        element_bytes=4,
    )  # fmt: skip

    assert shape.kv_token_bytes == rule.token_bytes
    for tokens in TOKENS:
        whole = shape.kv_bytes_of(LayerRange(0, LAYERS), context=tokens, sessions=3)
        assert whole == rule.kv_bytes(tokens=tokens, sessions=3)
