"""How long a step takes on a node: a sum of what was measured there for each part of it.

    step       once                                        step_s
    layers     each, whatever its size                     layer_s
    weights    read once, at the rate of what is held      bytes / rate(held)
    products   of every row but the first                  multiply-adds / multiplies_per_s
    attention  of every row, over the positions it sees    K/V bytes / attention_bytes_per_s, or
               together_attention_bytes_per_s of rows of one session, which share what is read

The first row's products hide behind reading; the output head is a matrix more, behind the last
layer, if something is drawn. Pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

from meshnet.core.planning.shape import ModelShape
from meshnet.core.vocabulary import LayerRange, Speed


@dataclass(frozen=True, slots=True)
class StepRows:
    """New positions of a step: of one session, or one each of several."""

    rows: int
    seen: float
    """Positions that each sees, itself included; the mean of them."""
    sessions: int = 1

    @classmethod
    def chunk(cls, past: int, stop: int) -> StepRows:
        """The positions [past, stop) of one session."""
        return cls(stop - past, (past + 1 + stop) / 2)

    @classmethod
    def decode(cls, position: int, sessions: int = 1) -> StepRows:
        """One position in each of some sessions."""
        return cls(sessions, position + 1, sessions)


@dataclass(frozen=True, slots=True)
class HopTime:
    """Seconds of a step on one node, by what they go into."""

    step_s: float
    layers_s: float
    reading_s: float
    products_s: float
    attention_s: float

    @property
    def total_s(self) -> float:
        return self.step_s + self.layers_s + self.reading_s + self.products_s + self.attention_s


class StepTimes:
    """Of one step, on any layers of a model."""

    def __init__(self, shape: ModelShape, step: StepRows) -> None:
        self._rows, self._shape = step.rows, shape
        self._together = step.rows > step.sessions
        layers = shape.layers
        # Of the layers before each: what a range asks is a difference.
        self._read = _sums(layer.read_bytes(step.rows) for layer in layers)
        self._multiplies = _sums(layer.multiplies for layer in layers)
        self._attended = _sums(step.rows * layer.attended_bytes(step.seen) for layer in layers)

    def on(
        self, speed: Speed, layers: LayerRange, bytes_per_s: float, *, draws: int = 0
    ) -> HopTime:
        """Tell the time on a node that reads its weights at this rate.

        `draws`: rows for which tokens are drawn, on the node of the last layer.
        """
        start, stop = layers.start, layers.stop
        read = self._read[stop] - self._read[start]
        multiplies = (self._multiplies[stop] - self._multiplies[start]) * (self._rows - 1)
        if draws and stop == len(self._shape.layers):
            read += self._shape.head_bytes
            multiplies += self._shape.head_multiplies * (draws - 1)
        attended = self._attended[stop] - self._attended[start]
        attending = speed.attention_bytes_per_s
        if self._together:
            attending = speed.together_attention_bytes_per_s
        return HopTime(
            step_s=speed.step_s,
            layers_s=(stop - start) * speed.layer_s,
            reading_s=read / bytes_per_s,
            products_s=multiplies / speed.multiplies_per_s,
            attention_s=attended / attending,
        )


def _sums(values: Iterable[float]) -> list[float]:
    return [*accumulate(values, initial=0.0)]


def reading_rate(speed: Speed, held_bytes: float) -> float:
    """Bytes a second; between two readings even in the logarithm of what is held."""
    below = speed.reading[0]
    if held_bytes <= below.held_bytes:
        return below.bytes_per_s
    for above in speed.reading[1:]:
        if held_bytes <= above.held_bytes:
            way = math.log(held_bytes / below.held_bytes)
            share = way / math.log(above.held_bytes / below.held_bytes)
            return below.bytes_per_s + share * (above.bytes_per_s - below.bytes_per_s)
        below = above
    return below.bytes_per_s
