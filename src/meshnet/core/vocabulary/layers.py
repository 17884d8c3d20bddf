"""Ranges of layers, and that they cover a model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class LayerRange:
    """Half-open interval of absolute layer indices, never empty."""

    start: int
    stop: int

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.stop:
            raise ValueError(f"layers: expected 0 <= start < stop, got {self.start}-{self.stop}")

    def __str__(self) -> str:
        return f"{self.start}-{self.stop}"

    def __len__(self) -> int:
        return self.stop - self.start

    def holds(self, other: LayerRange) -> bool:
        return self.start <= other.start and other.stop <= self.stop

    @classmethod
    def parse(cls, text: str) -> LayerRange:
        """Read `a-b`, half-open: `0-10` is layers 0 to 9. Raises ValueError."""
        match = re.fullmatch(r"([0-9]{1,6})-([0-9]{1,6})", text, re.ASCII)
        if match is None:
            raise ValueError(f"layers: expected A-B (half-open, for example 0-10), got {text!r}")
        return cls(int(match[1]), int(match[2]))


def check_cover(ranges: Sequence[LayerRange]) -> None:
    """Raise ValueError unless the ranges follow each other from layer 0 without gap or overlap."""
    expected = 0
    for layers in ranges:
        if layers.start != expected:
            raise ValueError(f"route: expected a hop from layer {expected}, got layers {layers}")
        expected = layers.stop
    if not ranges:
        raise ValueError("route: expected at least one hop, got none")
