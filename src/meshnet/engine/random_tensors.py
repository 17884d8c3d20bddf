"""Tensors of a model that nobody has: made as they are asked for, to measure what it would cost.

They come out of one short run of random numbers, said again and again, since drawing takes longer
than everything that is then done with them. Matrices are as those of a fresh initialisation;
vectors are ones, which norms want to be.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

DRAWN = 2**20 + 7
"""No whole number of rows of any matrix, so that rows differ."""
DEVIATION = 0.02
SEED = 0


class RandomTensors:
    """Stands for the checkpoint of a configuration (checkpoint.Tensors)."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        generator = torch.Generator().manual_seed(SEED)
        self._drawn = torch.randn(DRAWN, generator=generator).mul_(DEVIATION)
        self._shapes = dict(shapes)

    @classmethod
    def of(cls, config: Any) -> RandomTensors:
        """Know the names and shapes of the model's tensors, without making any."""
        with torch.device("meta"):
            model = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)](config)
        return cls({name: tuple(value.shape) for name, value in model.state_dict().items()})

    @property
    def names(self) -> list[str]:
        return sorted(self._shapes)

    @property
    def files_opened(self) -> frozenset[str]:
        return frozenset()

    @property
    def bytes_read(self) -> int:
        return 0

    @property
    def dtypes(self) -> frozenset[torch.dtype]:
        return frozenset([torch.float32])

    def lazily(self) -> dict[str, RandomTensor]:
        return {name: RandomTensor(self._drawn, shape) for name, shape in self._shapes.items()}

    def close(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class RandomTensor:
    drawn: torch.Tensor
    shape: tuple[int, ...]

    def __getitem__(self, index: Any) -> torch.Tensor:
        if len(self.shape) < 2:
            return torch.ones(self.shape)[index]
        count = math.prod(self.shape)
        values = self.drawn.repeat(-(-count // len(self.drawn)))[:count]
        return values.view(self.shape)[index]
