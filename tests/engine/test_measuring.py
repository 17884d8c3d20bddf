"""What a machine is found to do is what it does: layers of known costs, and a clock they move."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from tests.families import family_config
from transformers import LlamaConfig

from meshnet.core.vocabulary import (
    Activation,
    KVBytes,
    LayerRange,
    ModelId,
    SamplingParams,
    ShardDescription,
    ShardStep,
    WeightFormat,
)
from meshnet.engine.activations import TORCH_DTYPES, packed
from meshnet.engine.loading import random_shard
from meshnet.engine.measuring import (
    FixedCosts,
    fixed_costs,
    layers_to_try,
    measured_speed,
    tiny_shard,
)
from meshnet.engine.model_shape import config_shape
from meshnet.engine.models.progress import NoProgress
from meshnet.engine.runner import Passing

CONFIG = LlamaConfig(
    vocab_size=64,
    hidden_size=512,
    intermediate_size=1024,
    num_hidden_layers=10,
    num_attention_heads=8,
    num_key_value_heads=1,
    max_position_embeddings=2048,
)
STEP_S, LAYER_S = 3e-4, 2e-5
MULTIPLIES_PER_S, ATTENTION, TOGETHER = 2e10, 2e9, 2e10
SLOW_FROM_BYTES = 10_000_000
FAST, SLOW = 4e9, 1e9
FIXED = FixedCosts(LAYER_S, STEP_S)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@dataclass
class KnownShard:
    """Takes the time that its costs say, and computes nothing."""

    description: ShardDescription
    clock: Clock
    once: bool = False
    """Whether the first step of a session takes a second more."""

    def new_state(self, layers: LayerRange) -> list[int]:
        return []

    def run(self, step: ShardStep, state: list[int]) -> None:
        assert sum(state) == step.past_length
        self.clock.now += cost_s(self.description, step) + (self.once and not state)
        state.append(step.length)


def cost_s(told: ShardDescription, step: ShardStep) -> float:
    part = len(step.layers) / len(told.layers)
    size = told.weight_bytes * part
    seen = step.past_length + step.length / 2
    attended = told.kv_bytes.without_spare().per_token * part * seen * step.length
    return (
        STEP_S
        + LAYER_S * len(step.layers)
        + size / (SLOW if size > SLOW_FROM_BYTES else FAST)
        + size * (step.length - 1) / MULTIPLIES_PER_S
        + attended / (ATTENTION if step.length == 1 else TOGETHER)
    )


def measured(clock: Clock, made: Any, fixed: FixedCosts = FIXED) -> Any:
    return measured_speed(
        CONFIG,
        WeightFormat.INT8,
        fixed,
        device="cpu",
        bytes_max=2**40,
        clock=clock,
        progress=NoProgress(),
        through=made,
    )


def test_rates_are_those_of_the_layers_that_were_timed():
    clock = Clock()

    speed = measured(clock, lambda shard: KnownShard(shard.description, clock))

    assert [each.bytes_per_s for each in speed.reading] == pytest.approx(
        [FAST, FAST, FAST, SLOW], rel=0.05
    )
    held = [each.held_bytes for each in speed.reading]
    assert [size / held[0] for size in held] == pytest.approx([1, 2, 4, 8], rel=0.01)
    assert speed.multiplies_per_s == pytest.approx(MULTIPLIES_PER_S, rel=0.02)
    assert speed.attention_bytes_per_s == pytest.approx(ATTENTION, rel=0.1)
    assert speed.together_attention_bytes_per_s == pytest.approx(TOGETHER, rel=0.1)
    assert (speed.weights, speed.layer_s, speed.step_s) == (WeightFormat.INT8, LAYER_S, STEP_S)


def test_the_first_step_of_a_kind_counts_for_nothing():
    clock, later = Clock(), Clock()

    speed = measured(clock, lambda shard: KnownShard(shard.description, clock))
    warmed = measured(later, lambda shard: KnownShard(shard.description, later, once=True))

    assert warmed.reading == pytest.approx(speed.reading)


def weightless(clock: Clock) -> KnownShard:
    told = tiny_shard(WeightFormat.INT8, "cpu").description
    return KnownShard(replace(told, weight_bytes=0, kv_bytes=KVBytes(0)), clock)


def test_layers_without_weights_tell_what_a_step_and_a_layer_cost():
    clock = Clock()

    found = fixed_costs(weightless(clock), clock)

    assert found.layer_s == pytest.approx(LAYER_S, rel=0.05)
    assert found.step_s == pytest.approx(STEP_S, rel=0.05)


def test_what_is_done_between_steps_is_not_in_their_time():
    clock = Clock()

    def others() -> None:
        clock.now += 1.0

    began = clock.now
    found = fixed_costs(weightless(clock), clock, others)

    assert clock.now - began > 1.0
    assert found.step_s == pytest.approx(STEP_S, rel=0.05)


def test_a_clock_that_stands_still_yields_rates_nonetheless():
    speed = measured(Clock(), lambda shard: shard, FixedCosts(0.0, 0.0))

    assert speed.multiplies_per_s > 0


def test_fixed_costs_above_the_whole_time_leave_a_part_for_the_weights():
    clock = Clock()

    speed = measured(
        clock, lambda shard: KnownShard(shard.description, clock), FixedCosts(1.0, 1.0)
    )

    assert all(each.bytes_per_s > 0 for each in speed.reading)


def shaped(layers: int, **more: Any) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=128,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_hidden_layers=layers,
        **more,
    )


OF_A_LAYER = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128 + 2 * 64


@pytest.mark.parametrize(
    ("layers", "bytes_max", "expected"),
    [
        (10, 2**40, (1, 9)),
        (10, 3 * OF_A_LAYER + OF_A_LAYER // 2, (1, 4)),
        (10, 1, (1, 2)),
        (3, 2**40, (1, 2)),
        (2, 2**40, (1, 2)),
        (1, 2**40, (0, 1)),
    ],
)
def test_layers_are_tried_without_ends_and_within_the_memory(layers, bytes_max, expected):
    config = shaped(layers)
    shape = config_shape(config, WeightFormat.INT8, ModelId("m"))

    assert layers_to_try(config, shape, bytes_max) == LayerRange(*expected)


@pytest.mark.parametrize(
    ("run", "expected"), [((5, 9), (1, 5)), ((1, 4), (1, 4)), ((0, 3), (0, 3)), ((0, 1), (1, 9))]
)
def test_layers_that_must_stay_together_are_tried_together_or_not_at_all(run, expected):
    config = shaped(10)
    shape = config_shape(config, WeightFormat.INT8, ModelId("m"))
    shared = replace(shape, inseparable=(LayerRange(*run),))

    assert layers_to_try(config, shared, 2**40) == LayerRange(*expected)


@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "gpt2", "qwen3_next", "gemma2"])
@pytest.mark.parametrize("weights", [WeightFormat.INT8, WeightFormat.BF16])
def test_a_shard_of_random_weights_runs_steps(family: str, weights: WeightFormat):
    shard = random_shard(family_config(family), LayerRange(1, 3), weights=weights)

    state = shard.new_state(LayerRange(1, 3))
    first = shard.run(step(shard.description, 0, 5), state)
    second = shard.run(step(shard.description, 5, 1), state)

    assert isinstance(first, Activation)
    assert isinstance(second, Activation)
    assert second.hidden.shape == (1, 1, shard.description.hidden_size)


def step(told: ShardDescription, past: int, length: int) -> ShardStep:
    hidden_BTD = torch.randn(1, length, told.hidden_size).to(TORCH_DTYPES[told.dtype])
    return ShardStep(
        layers=told.layers,
        past_length=past,
        length=length,
        tokens=(),
        activation=packed(Passing(hidden_BTD)),
        sampling=SamplingParams(),
    )
