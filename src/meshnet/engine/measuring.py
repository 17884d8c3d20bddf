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

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from transformers import LlamaConfig

from meshnet.core.vocabulary import LayerRange, Reading, Speed, WeightFormat
from meshnet.engine.identity import inseparable_layers
from meshnet.engine.loading import random_shard
from meshnet.engine.models.progress import Progress
from meshnet.engine.random_tensors import RandomTensors
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


def fixed_costs(tiny: TimedShard, clock: Callable[[], float]) -> FixedCosts:
    """Measure what a layer and a step on the engine cost beside weights."""
    timer, held = ShardTimer(tiny, clock), tiny.description.layers
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
    held = layers_to_try(config, min(bytes_max, HELD_BYTES_MAX))
    trial = _Trial(through(random_shard(config, held, weights=weights, device=device)), clock)
    counts = _counts(len(held))
    progress.start("Measuring this machine", len(counts) + 1)
    try:
        reading = []
        for count in counts:
            reading.append(trial.reading(count, fixed))
            progress.advance(1)
        rates = trial.rates()
        progress.advance(1)
    finally:
        progress.done()
    return Speed(
        weights=trial.weights,
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

    def __init__(self, shard: TimedShard, clock: Callable[[], float]) -> None:
        self._timer, self._told = ShardTimer(shard, clock), shard.description
        self._held = self._told.layers
        self.weights = WeightFormat(self._told.weights)

    def reading(self, count: int, fixed: FixedCosts) -> Reading:
        taken_s = self._timer.decode_s(_first(self._held, count), PAST)
        fixed_s = fixed.step_s + count * fixed.layer_s
        size = self._weight_bytes(count)
        return Reading(size, size / _left(taken_s, fixed_s))

    def rates(self) -> Rates:
        rows = min(ROWS, self._told.context_length // 8)
        chunk_s, count = self._timer.chunk_s(_first(self._held, 1), rows), 1
        if chunk_s < LONG_S and len(self._held) > 1:
            count = min(LAYERS_MAX, len(self._held))
            chunk_s = self._timer.chunk_s(_first(self._held, count), rows)
        layers = _first(self._held, count)
        past = rows * max(1, min(LATE_CHUNKS_MAX - 3, int(FILL_S / max(chunk_s, TIME_LEAST_S))))
        one_s = self._timer.decode_s(layers, PAST)
        further_s = (rows - 1) * count * self._position_multiplies()
        kv = self._told.kv_bytes
        each = kv.per_token * count / len(self._held)
        if each <= 0:
            return Rates(further_s / _left(chunk_s, one_s), None, None)
        late_s = self._timer.decode_s(layers, past)
        late_chunk_s = self._timer.later_chunk_s(layers, past, rows)
        # The middle one of the late chunks begins `rows` after `past`.
        together = rows * (past + rows) * each / _left(late_chunk_s, chunk_s)
        attended_s = rows * rows / 2 * each / together
        return Rates(
            multiplies_per_s=further_s / _left(chunk_s, one_s + attended_s),
            attention_bytes_per_s=(past - PAST) * each / _left(late_s, one_s),
            together_bytes_per_s=together,
        )

    def _weight_bytes(self, count: int) -> int:
        return self._told.weight_bytes * count // len(self._held)

    def _position_multiplies(self) -> float:
        """Of one layer: each weight is multiplied once."""
        return self._weight_bytes(1) / _BYTES[self.weights]


def _left(taken_s: float, others_s: float) -> float:
    """The time of one part, when the times of the others are taken off."""
    return max(taken_s - others_s, LEAST_PART * taken_s, TIME_LEAST_S)


_BYTES = {
    WeightFormat.INT8: 1,
    WeightFormat.INT8_FAST: 1,
    WeightFormat.BF16: 2,
    WeightFormat.FP16: 2,
    WeightFormat.FP32: 4,
}


def layers_to_try(config: Any, bytes_max: int) -> LayerRange:
    """Return layers without the model's ends, if it has such, of `bytes_max` numbers at most."""
    text = config.get_text_config(decoder=True)
    total = int(text.num_hidden_layers)
    first = 0 if any(getattr(text, name, 0) for name in _EMBEDDED) else min(1, total - 1)
    last = max(first + 1, total - 1)
    for run in inseparable_layers(config):
        if run.start > first:
            last = min(last, run.start)
        else:  # they cannot be held in part
            return LayerRange(first, max(last, run.stop))
    numbers = max(1, RandomTensors.of(config).layer_numbers(first))
    return _first(LayerRange(first, last), max(1, bytes_max // numbers))


def _first(layers: LayerRange, count: int) -> LayerRange:
    return LayerRange(layers.start, min(layers.stop, layers.start + count))


def _counts(layers: int) -> list[int]:
    """1, 2, 4 and so on, and all of them."""
    counts = [2**power for power in range(layers.bit_length()) if 2**power < layers]
    return [*counts, layers]
