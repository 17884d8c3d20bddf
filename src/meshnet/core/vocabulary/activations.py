"""What travels between two hops: element types, shapes and bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

Buffer = bytes | bytearray | memoryview


class DType(Enum):
    """Element types an activation may have on the wire; the value is the wire name."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"

    @property
    def itemsize(self) -> int:
        return 4 if self is DType.FP32 else 2


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """What one tensor of a body is: its name, element type and shape."""

    name: str
    dtype: DType
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.shape or min(self.shape) <= 0:
            raise ValueError(f"shape of {self.name!r}: expected positive sizes, got {self.shape}")

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * (4 if self.dtype is DType.FP32 else 2)


HIDDEN = "hidden"
"""Name of the hidden states among an activation's tensors; architectures may add others."""


@dataclass(frozen=True, slots=True)
class Activation:
    """What travels between two hops: described tensors and their raw bytes, in order."""

    tensors: tuple[TensorSpec, ...]
    data: Buffer

    def __post_init__(self) -> None:
        expected = sum([spec.nbytes for spec in self.tensors])
        if not self.tensors or len(self.data) != expected:
            raise ValueError(f"activation: expected {expected} bytes, got {len(self.data)}")

    @property
    def hidden(self) -> TensorSpec:
        return self.tensors[0]
