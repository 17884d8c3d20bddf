"""How long steps of some layers of a shard take, as a node would run them.

    decode     one position after `past` others, again and again
    chunk      many positions at once, the first ones or later ones

Invariant: a figure is the median of several steps, none of which is the first of its kind.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any, Protocol

import torch

from meshnet.core.vocabulary import (
    Activation,
    LayerRange,
    SamplingParams,
    ShardDescription,
    ShardStep,
)
from meshnet.engine.activations import TORCH_DTYPES, packed
from meshnet.engine.runner import Passing

WARMUPS = 2
STEPS_LEAST = 5
STEPS_MOST = 48
WITHIN_S = 0.15
"""After the fewest steps, no more are begun once they took so long together."""
PIECE = 256
"""Positions of one step of a long prefill."""


class TimedShard(Protocol):
    """What is timed: a shard, or one that is slowed to stand for another machine."""

    @property
    def description(self) -> ShardDescription: ...

    def new_state(self, layers: LayerRange) -> Any: ...

    def run(self, step: ShardStep, state: Any) -> Any: ...


class ShardTimer:
    def __init__(
        self,
        shard: TimedShard,
        clock: Callable[[], float],
        between: Callable[[], object] = lambda: None,
    ) -> None:
        """`between` is called before every step and is not in its time."""
        self._shard, self._clock, self._between = shard, clock, between
        self._entering: dict[int, Activation] = {}

    def decode_s(self, layers: LayerRange, past: int) -> float:
        """Return the time of a step of one position through `layers`, after `past` others."""
        room = self._shard.description.context_length
        state = self._filled(layers, past)
        times: list[float] = []
        for at in range(past, min(room, past + WARMUPS + STEPS_MOST)):
            times.append(self._timed(layers, at, 1, state))
            taken = times[WARMUPS:]
            if len(taken) >= STEPS_LEAST and sum(taken) > WITHIN_S:
                break
        return statistics.median(times[WARMUPS:] or times)

    def chunk_s(self, layers: LayerRange, positions: int) -> float:
        """Return the time of a step of the first `positions` through `layers`."""
        times = []
        for _ in range(1 + STEPS_LEAST):
            times.append(self._timed(layers, 0, positions, self._shard.new_state(layers)))
            if len(times) > 1 and sum(times) > WITHIN_S:
                break
        return statistics.median(times[1:])

    def later_chunk_s(self, layers: LayerRange, past: int, positions: int) -> float:
        """Return the time of a step of `positions` after `past` others: of the middle one of three
        that follow each other, if times grow evenly."""
        state = self._filled(layers, past)
        return statistics.median(
            self._timed(layers, past + number * positions, positions, state) for number in range(3)
        )

    def _filled(self, layers: LayerRange, past: int) -> Any:
        state = self._shard.new_state(layers)
        for start in range(0, past, PIECE):
            self._timed(layers, start, min(PIECE, past - start), state)
        return state

    def _timed(self, layers: LayerRange, past: int, length: int, state: Any) -> float:
        embeds = layers.start == 0
        step = ShardStep(
            layers=layers,
            past_length=past,
            length=length,
            tokens=(0,) * length if embeds else (),
            activation=None if embeds else self._activation(length),
            sampling=SamplingParams(),
            want_token=False,
        )
        self._between()
        began = self._clock()
        self._shard.run(step, state)
        return self._clock() - began

    def _activation(self, length: int) -> Activation:
        if length not in self._entering:
            told = self._shard.description
            generator = torch.Generator().manual_seed(length)
            hidden_BTD = torch.randn((1, length, told.hidden_size), generator=generator)
            self._entering[length] = packed(Passing(hidden_BTD.to(TORCH_DTYPES[told.dtype])))
        return self._entering[length]
