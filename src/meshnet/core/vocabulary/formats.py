"""How weights are held."""

from __future__ import annotations

from enum import Enum


class WeightFormat(Enum):
    """How weights are held in memory; int8 ones take activations in fp32."""

    INT8 = "int8"
    INT8_FAST = "int8-fast"
    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"
