"""Steps for one shard of a tiny Llama, made by hand, and what comes out of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from tests.families import LAYERS

from meshnet.core.vocabulary import (
    HIDDEN,
    Activation,
    DType,
    LayerRange,
    SamplingParams,
    ShardStep,
    TensorSpec,
)

HEAD = LayerRange(0, 2)
MIDDLE = LayerRange(2, 4)
TAIL = LayerRange(4, LAYERS)


def activation_of(values: torch.Tensor, dtype: DType = DType.FP32) -> Activation:
    spec = TensorSpec(HIDDEN, dtype, tuple(values.shape))
    return Activation((spec,), values.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())


def hidden_of(length: int) -> torch.Tensor:
    return torch.randn(1, length, 64, generator=torch.Generator().manual_seed(7))


def hidden_step(
    layers: LayerRange, hidden: torch.Tensor, past: int = 0, **fields: Any
) -> ShardStep:
    length = hidden.shape[-2]
    step = ShardStep(layers, past, length, (), activation_of(hidden), SamplingParams())
    return replace(step, **fields)


def ids_step(tokens: tuple[int, ...], past: int = 0) -> ShardStep:
    return ShardStep(HEAD, past, len(tokens), tokens, None, SamplingParams())


def values_of(output: object) -> torch.Tensor:
    assert isinstance(output, Activation)
    values = torch.frombuffer(bytearray(output.data), dtype=torch.float32)
    return values.view(output.hidden.shape)
