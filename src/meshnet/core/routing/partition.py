"""How the layers of a model are divided over parts, and whether a division is possible.

A partition is an exact cover of [0, total) in order, no part empty, no inseparable run cut.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from meshnet.core.vocabulary import BadField, LayerRange

PARTS_MAX = 256


def partition(
    layers_total: int,
    parts: int,
    weights: Sequence[float] | None = None,
    inseparable: Sequence[LayerRange] = (),
) -> tuple[LayerRange, ...]:
    """Divide the layers as evenly as the cuts allow: the fullest part as small as can be.

    `weights` are the relative capacities of the parts, in order; equal if absent; equal parts
    that cannot be equal have the larger ones first. Raises BadField.
    """
    cuts = _allowed_cuts(layers_total, inseparable)
    if not 1 <= parts <= min(len(cuts), PARTS_MAX):
        raise BadField("parts", f"1 to {len(cuts)} for {layers_total} layers", parts)
    capacities = [1.0] * parts if weights is None else list(weights)
    if len(capacities) != parts or not all(0 < weight < math.inf for weight in capacities):
        raise BadField("weights", f"{parts} positive numbers", weights)
    return _ranges(_most_even(cuts, capacities))


def _allowed_cuts(layers_total: int, inseparable: Sequence[LayerRange]) -> list[int]:
    """Return every place where a part may end, the last layer's end included."""
    inside = {cut for run in inseparable for cut in range(run.start + 1, run.stop)}
    return [cut for cut in range(1, layers_total + 1) if cut not in inside]


def _most_even(cuts: Sequence[int], capacities: Sequence[float]) -> tuple[int, ...]:
    """Return where each part ends. Least is best: (fullest part, unevenness, -cuts)."""
    best: dict[int, tuple[float, float, tuple[int, ...]]] = {0: (0.0, 0.0, ())}
    for part, capacity in enumerate(capacities):
        later = len(capacities) - part - 1
        reached: dict[int, tuple[float, float, tuple[int, ...]]] = {}
        for start, (fullest, unevenness, ends) in best.items():
            for stop in cuts[: len(cuts) - later]:
                if stop <= start:
                    continue
                fill = (stop - start) / capacity
                way = (max(fullest, fill), unevenness + fill * fill * capacity, (*ends, -stop))
                if stop not in reached or way < reached[stop]:
                    reached[stop] = way
        best = reached
    return tuple(-end for end in best[cuts[-1]][2])


def _ranges(ends: Sequence[int]) -> tuple[LayerRange, ...]:
    starts = (0, *ends[:-1])
    return tuple(LayerRange(start, stop) for start, stop in zip(starts, ends, strict=True))


def parse_split(
    text: str, layers_total: int, inseparable: Sequence[LayerRange] = ()
) -> tuple[LayerRange, ...]:
    """Read cut positions: `10,20` of 30 layers is 0-10, 10-20, 20-30. Raises BadField."""
    expected = f"ascending cuts from 1 to {layers_total - 1}, such as {max(layers_total // 2, 1)}"
    words = [word.strip() for word in text.split(",")]
    if len(words) >= PARTS_MAX or not all(_is_cut(word) for word in words):
        raise BadField("split", expected, text)
    ends = (0, *map(int, words), layers_total)
    if any(end <= start for start, end in pairwise(ends)):
        raise BadField("split", expected, text)
    ranges = _ranges(ends[1:])
    for layers in ranges:
        check_layers(layers, layers_total, inseparable, field="split")
    return ranges


def _is_cut(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) <= 6


def check_layers(
    layers: LayerRange,
    layers_total: int,
    inseparable: Sequence[LayerRange] = (),
    *,
    field: str = "layers",
) -> None:
    """Raise BadField unless a shard may hold exactly these layers of the model."""
    if layers.stop > layers_total:
        raise BadField(field, f"layers within 0-{layers_total}", str(layers))
    for run in inseparable:
        for cut in (layers.start, layers.stop):
            if run.start < cut < run.stop:
                expected = f"no cut inside {run}, whose layers share their KV cache"
                raise BadField(field, expected, f"a cut at {cut}")
