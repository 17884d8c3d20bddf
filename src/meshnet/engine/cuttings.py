"""Whether a position's result depends on how the work was cut into steps.

A prefill may come in chunks, positions may be decoded one by one, a session may be shortened and
continued, several sessions may share a call. The same few positions go through the layers in all
these ways, behind a random past that ends shortly before a cell of the key grid does:

    past            | 250 .. 254 | 255 | 256 |            one cell ends at 255
                    | chunk      | one | one | back to 255, and on from there in one piece

Results that differ by rounding are fine; results that do not differ at all are better, and told.

Legend: T positions, D features.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from meshnet.engine.cache import sums_up
from meshnet.engine.heap import raise_if_out_of_memory
from meshnet.engine.kv import KEY_GRID, BufferedLayer
from meshnet.engine.runner import Passing, Runner, Segment, joined, positions_of

BEFORE = KEY_GRID - 6
"""Positions of the random past."""
CHUNK, SINGLES = 5, 2
NEIGHBOURS = 3
"""Rows of another session in the same call."""


@dataclass(frozen=True, slots=True)
class Pair:
    """The same positions computed in two ways: TD each."""

    got: Tensor
    expected: Tensor

    @property
    def equal(self) -> bool:
        return torch.equal(self.got, self.expected)


@dataclass(frozen=True, slots=True)
class Cuttings:
    """What came out."""

    chunked: Pair
    continued: Pair | None
    """None where a state cannot be shortened."""
    shared: tuple[Pair, ...]
    """One of each session; empty where they cannot be in one call."""
    stored: bool
    """Whether keys and values are bitwise equal."""
    sums_up: bool
    """Whether some state can be put back only, not shortened."""

    @property
    def alone_equal(self) -> bool:
        """Whether nothing depends on the cut, company apart.

        A state that cannot be shortened is never taken for that: it may be summed up over chunks
        longer than this trial.
        """
        pairs = (self.chunked, self.continued)
        equal = all(pair is not None and pair.equal for pair in pairs)
        return self.stored and equal and not self.sums_up

    @property
    def shared_equal(self) -> bool:
        """Whether nothing depends on company."""
        return all(pair.equal for pair in self.shared)


class CuttingTrial:
    """Random positions of held layers behind a random past."""

    def __init__(
        self, runner: Runner, sequence: Tensor | Passing, positions: int, positions_max: int
    ) -> None:
        self._runner = runner
        self._sequence = sequence
        self._positions = positions
        self._past = max(0, min(BEFORE, positions_max - positions))

    def run(self, like: Any) -> Cuttings:
        """Cut in every way. `like` is a cache of the same layers after a prefill."""
        whole, cut = self._filled(like), self._filled(like)
        whole_TD = self._step(whole, 0, self._positions)
        bounds = [0, *range(CHUNK, CHUNK + SINGLES + 1)]
        at = self._past + CHUNK
        pieces, summed = [], sums_up(cut)
        for start, stop in pairwise(bounds):
            pieces.append(self._step(cut, start, stop))
            if summed:
                cut.keep_copies((at,))
        chunked = Pair(torch.cat(pieces), whole_TD[: bounds[-1]])
        if not cut.can_truncate(at):
            self._step(cut, bounds[-1], self._positions)
            return Cuttings(chunked, None, (), _same_state(whole, cut), summed)
        cut.truncate(at)
        shared = self._shared(cut, whole_TD) if self._runner.batches else ()
        cut.truncate(at)
        continued = Pair(self._step(cut, CHUNK, self._positions), whole_TD[CHUNK:])
        return Cuttings(chunked, continued, shared, _same_state(whole, cut), summed)

    def _shared(self, cache: Any, whole_TD: Tensor) -> tuple[Pair, ...]:
        """One position each of two sessions that have a past, and some of one that has none.

        Empty if the layers cannot do that at once.
        """
        short, other, alone = (self._runner.new_cache(self._runner.held) for _ in range(3))
        rows = [(CHUNK, CHUNK + 1), (NEIGHBOURS, NEIGHBOURS + 1), (0, NEIGHBOURS)]
        segments = [
            Segment(self._past + CHUNK, 1, cache),
            Segment(NEIGHBOURS, 1, short),
            Segment(0, NEIGHBOURS, other),
        ]
        self._run(Segment(0, NEIGHBOURS, short), 0)
        entering = _joined([positions_of(self._sequence, *bounds) for bounds in rows])
        try:
            got = features(self._runner.passing(entering, self._runner.held, segments).hidden)
        except (RuntimeError, ValueError, TypeError, IndexError, AssertionError) as error:
            raise_if_out_of_memory(error)
            return ()
        apart = self._run(Segment(0, NEIGHBOURS, alone), 0)
        after = self._run(Segment(NEIGHBOURS, 1, alone), NEIGHBOURS)
        return (
            Pair(got[:1], whole_TD[CHUNK : CHUNK + 1]),
            Pair(got[1:2], after),
            Pair(got[2:], apart),
        )

    def _step(self, cache: Any, start: int, stop: int) -> Tensor:
        return self._run(Segment(self._past + start, stop - start, cache), start)

    def _run(self, segment: Segment, start: int) -> Tensor:
        """Run a segment by itself, with the inputs from `start` on."""
        piece = positions_of(self._sequence, start, start + segment.length)
        return features(self._runner.passing(piece, self._runner.held, [segment]).hidden)

    def _filled(self, like: Any) -> Any:
        """A session of random keys and values. Layers that keep other state begin without."""
        cache = self._runner.new_cache(self._runner.held)
        generator = torch.Generator().manual_seed(1)
        for layer, model in zip(cache.layers, like.layers, strict=False):
            if isinstance(layer, BufferedLayer) and self._past:
                keys, values = model.buffer.last(1)
                layer.buffer.append(
                    *(
                        torch.randn(held.shape[0], self._past, held.shape[2], generator=generator)
                        .mul_(0.1)
                        .to(held)
                        for held in (keys, values)
                    )
                )
        cache.settle(self._past)
        return cache


def features(hidden: Tensor) -> Tensor:
    """Hidden states as TD; Gemma 3n's streams become further features of the same position."""
    length, width = hidden.shape[-2:]
    return hidden.reshape(-1, length, width).transpose(0, 1).flatten(1)


def _joined(parts: list[Tensor | Passing]) -> Tensor | Passing:
    passing = [part for part in parts if isinstance(part, Passing)]
    return joined(passing) if passing else torch.cat([p for p in parts if isinstance(p, Tensor)], 1)


def _same_state(one: Any, other: Any) -> bool:
    for mine, theirs in zip(one.layers, other.layers, strict=True):
        if isinstance(mine, BufferedLayer):
            length = min(mine.buffer.length - mine.buffer.start, KEY_GRID)
            pairs = zip(mine.buffer.last(length), theirs.buffer.last(length), strict=True)
            if not all(torch.equal(a, b) for a, b in pairs):
                return False
    return True
