"""How fast this machine runs layers of a model, found by running some that are made up.

What serves is what is timed: layers of the asked model's shape, in the format asked for, loaded and
tried as a shard is, with random weights. A few layers are enough to predict many:

    tiny layers                          what a step and a layer cost, whatever their size
    1, 2, 4 .. layers by one position    reading rate, by how much is read in turn
    one position after many              what keys and values cost beside that
    many positions, early and late       what each of them costs beside the first

Invariants
    * at most `HELD_BYTES_MAX` of weights are made, or one layer if that is larger;
    * rates are above zero, however the clock jumped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from transformers import LlamaConfig

from meshnet.core.planning import LayerShape, ModelShape
from meshnet.core.vocabulary import LayerRange, ModelId, Reading, Speed, WeightFormat
from meshnet.engine.formats import format_for
from meshnet.engine.loading import random_shard
from meshnet.engine.model_shape import config_shape
from meshnet.engine.models.progress import Progress
from meshnet.engine.shard_timer import ShardTimer, TimedShard

HELD_BYTES_MAX = 256 * 2**20
PAST = 16
ROWS = 256
LATE_CHUNKS_MAX = 7
"""Of a session, the last three timed; fewer are before them where one takes long of FILL_S."""
FILL_S = 1.0
LAYERS_MAX = 4
"""Through so many layers go late and many positions; one where that takes longer than LONG_S."""
LONG_S = 0.05
LEAST_PART = 0.05
"""Of a step's time, what is left for a part at least when the others are taken off."""
TIME_LEAST_S = 1e-9
_EMBEDDED = ("hidden_size_per_layer_input", "altup_num_inputs")
"""Of a text configuration whose layers take more than one hidden state (Gemma 3n, 4)."""

Through = Callable[[TimedShard], TimedShard]


@dataclass(frozen=True, slots=True)
class FixedCosts:
    layer_s: float
    step_s: float


def tiny_shard(weights: WeightFormat | None, device: str) -> TimedShard:
    """Return layers whose weights are read in no time. Raises ModelError."""
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=10,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
    )
    return random_shard(config, LayerRange(1, 9), weights=weights, device=device)


def common_config() -> LlamaConfig:
    """Return a model of a common shape, for a machine that is not told what it will serve."""
    return LlamaConfig(
        vocab_size=64,
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=8,
        num_attention_heads=32,
        num_key_value_heads=4,
        max_position_embeddings=4096,
    )


def fixed_costs(
    tiny: TimedShard, clock: Callable[[], float], between: Callable[[], object] = lambda: None
) -> FixedCosts:
    """Measure what a layer and a step on the engine cost beside weights.

    `between` is called before every step: it may empty the caches, as other work does.
    """
    timer, held = ShardTimer(tiny, clock, between), tiny.description.layers
    one_s, all_s = (timer.decode_s(layers, PAST) for layers in (_first(held, 1), held))
    layer_s = max(0.0, all_s - one_s) / (len(held) - 1)
    return FixedCosts(layer_s, max(0.0, one_s - layer_s))


def measured_speed(
    config: Any,
    weights: WeightFormat | None,
    fixed: FixedCosts,
    *,
    device: str,
    bytes_max: int,
    clock: Callable[[], float],
    progress: Progress,
    through: Through = lambda shard: shard,
) -> Speed:
    """Make layers of `config` and time them. Raises ModelError.

    Args:
        bytes_max: memory that their weights may take, unless one layer takes more.
        through: may slow what is timed, to stand for another machine.
    """
    shape = config_shape(config, weights or format_for(torch.device(device)), ModelId("trial"))
    held = layers_to_try(config, shape, min(bytes_max, HELD_BYTES_MAX))
    shard = through(random_shard(config, held, weights=shape.weights, device=device))
    trial = _Trial(shard, shape, fixed, clock)
    counts = _counts(len(held))
    progress.start("Measuring this machine", len(counts) + 1)
    try:
        reading = []
        for count in counts:
            reading.append(trial.reading(count))
            progress.advance(1)
        rates = trial.rates()
        progress.advance(1)
    finally:
        progress.done()
    return Speed(
        weights=shape.weights,
        reading=tuple(reading),
        multiplies_per_s=rates.multiplies_per_s,
        attention_bytes_per_s=rates.attention_bytes_per_s or reading[-1].bytes_per_s,
        together_attention_bytes_per_s=rates.together_bytes_per_s or reading[-1].bytes_per_s,
        layer_s=fixed.layer_s,
        step_s=fixed.step_s,
    )


@dataclass(frozen=True, slots=True)
class Rates:
    """Those of attention are None where nothing grows with the positions before."""

    multiplies_per_s: float
    attention_bytes_per_s: float | None
    together_bytes_per_s: float | None


class _Trial:
    """What follows from the times of some layers of one shard."""

    def __init__(
        self, shard: TimedShard, shape: ModelShape, fixed: FixedCosts, clock: Callable[[], float]
    ) -> None:
        self._timer, self._held = ShardTimer(shard, clock), shard.description.layers
        self._rows = min(ROWS, shard.description.context_length // 8)
        self._shape, self._fixed = shape, fixed

    def reading(self, count: int) -> Reading:
        """Through so many layers, one position after few others."""
        taken_s = self._timer.decode_s(_first(self._held, count), PAST)
        layers = self._layers(count)
        rate = _sum(layer.read_bytes(1) for layer in layers) / _left(taken_s, self._fixed_s(count))
        return Reading(sum(layer.weight_bytes for layer in layers), rate)

    def rates(self) -> Rates:
        rows, count = self._rows, 1
        chunk_s = self._timer.chunk_s(_first(self._held, 1), rows)
        if chunk_s < LONG_S and len(self._held) > 1:
            count = min(LAYERS_MAX, len(self._held))
            chunk_s = self._timer.chunk_s(_first(self._held, count), rows)
        layers = _first(self._held, count)
        past = rows * max(1, min(LATE_CHUNKS_MAX - 3, int(FILL_S / max(chunk_s, TIME_LEAST_S))))
        one_s, late_s = self._timer.decode_s(layers, PAST), self._timer.decode_s(layers, past)
        late_chunk_s = self._timer.later_chunk_s(layers, past, rows)
        grown = self._attended(count, past) - self._attended(count, PAST)
        # The middle one of the late chunks begins `rows` after `past`.
        early, late = rows / 2, past + rows + rows / 2
        further = rows * (self._attended(count, late) - self._attended(count, early))
        together = further / _left(late_chunk_s, chunk_s) if further > 0 else None
        early_s = rows * self._attended(count, early) / together if together else 0.0
        return Rates(
            multiplies_per_s=self._multiplies(count)
            / _left(chunk_s, self._read_s(count, one_s) + early_s),
            attention_bytes_per_s=grown / _left(late_s, one_s) if grown > 0 else None,
            together_bytes_per_s=together,
        )

    def _multiplies(self, count: int) -> float:
        """Of the rows behind the first."""
        return (self._rows - 1) * _sum(layer.multiplies for layer in self._layers(count))

    def _read_s(self, count: int, one_s: float) -> float:
        """What a step of many positions takes besides them, if one position takes `one_s`."""
        layers, fixed_s = self._layers(count), self._fixed_s(count)
        more = _sum(layer.read_bytes(self._rows) for layer in layers) / _sum(
            layer.read_bytes(1) for layer in layers
        )
        return fixed_s + more * _left(one_s, fixed_s)

    def _attended(self, count: int, seen: float) -> float:
        return _sum(layer.attended_bytes(seen) for layer in self._layers(count))

    def _fixed_s(self, count: int) -> float:
        return self._fixed.step_s + count * self._fixed.layer_s

    def _layers(self, count: int) -> Sequence[LayerShape]:
        return self._shape.layers[self._held.start : self._held.start + count]


def _left(taken_s: float, others_s: float) -> float:
    """The time of one part, when the times of the others are taken off."""
    return max(taken_s - others_s, LEAST_PART * taken_s, TIME_LEAST_S)


def _sum(values: Iterable[float]) -> float:
    return sum(values)


def layers_to_try(config: Any, shape: ModelShape, bytes_max: int) -> LayerRange:
    """Return layers of `bytes_max` at most, or one, without the model's ends if it has such."""
    text, total = config.get_text_config(decoder=True), len(shape.layers)
    first = 0 if any(getattr(text, name, 0) for name in _EMBEDDED) else min(1, total - 1)
    last = max(first + 1, total - 1)
    for run in shape.inseparable:
        if run.start <= first < run.stop:  # they cannot be held in part
            return run
        if first < run.start:
            last = min(last, run.start)
    sizes = accumulate(layer.weight_bytes for layer in shape.layers[first:last])
    return _first(LayerRange(first, last), max(1, sum(size <= bytes_max for size in sizes)))


def _first(layers: LayerRange, count: int) -> LayerRange:
    return LayerRange(layers.start, min(layers.stop, layers.start + count))


def _counts(layers: int) -> list[int]:
    """1, 2, 4 and so on, and all of them."""
    counts = [2**power for power in range(layers.bit_length()) if 2**power < layers]
    return [*counts, layers]
