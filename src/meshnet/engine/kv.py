"""Keys and values of one session and one layer, in a buffer that grows on a grid of positions.

    slot        0 ........ 255 | 256 ...... 511 | 512 .. capacity
    position    start + slot; written up to `length`, spare beyond

The canonical attention (attention.py) reads whole cells of `KEY_GRID` positions, so that the
sum over keys of a row depends on its position and not on who shares the call. Capacity is a whole
number of cells; what lies beyond `length` is finite, and masked.

Invariants
    * capacity covers the cell of position `length - 1`, and `start` is a multiple of the grid;
    * a sliding layer keeps every cell that a row within `KEY_GRID` positions of the end can see,
      so that truncating to less than that below the longest it was is always possible;
    * truncation costs what it takes back, and leaves zeros;
    * between steps a sliding layer holds at most `kept_max(window)` positions.

Legend: H key/value heads, T new positions, D head size.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

KEY_GRID = 256
"""Positions in a cell: tried on CPU, where 256 keys cost about as much as one."""


def first_key(position: int, window: int | None) -> int:
    """First position that rows of the cell of `position` read; a multiple of the grid.

    `window` positions up to its own are what a row sees; None is all.
    """
    if window is None:
        return 0
    cell = position // KEY_GRID * KEY_GRID
    return max(0, cell - window + 1) // KEY_GRID * KEY_GRID


def cell_stop(position: int) -> int:
    """End of the cell of `position`."""
    return (position // KEY_GRID + 1) * KEY_GRID


def kept_max(window: int) -> int:
    """Positions that a layer with a window holds between steps, however long the session."""
    # The cell of the last position, the one before it, and what the latter's rows look back on;
    # one more where a truncated session has grown again.
    return 3 * KEY_GRID + -(-(window - 1) // KEY_GRID) * KEY_GRID


class Buffer(Protocol):
    """Keys and values of one session and one layer, wherever they lie."""

    @property
    def window(self) -> int | None: ...
    @property
    def start(self) -> int: ...
    @property
    def length(self) -> int: ...
    @property
    def capacity(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def tensors(self) -> Iterator[Tensor]:
        """All memory held."""
        ...

    def begin_at(self, start: int) -> None:
        """Let the next position be `start`, a multiple of the grid; the buffer is empty."""
        ...

    def append(self, keys_HTD: Tensor, values_HTD: Tensor) -> None: ...
    def last(self, positions: int) -> tuple[Tensor, Tensor]: ...
    def settle(self) -> None: ...
    def can_truncate(self, length: int) -> bool: ...
    def truncate(self, length: int) -> None: ...


class BufferedLayer:
    """A layer of a session's cache that holds a buffer and nothing else."""

    def __init__(self, buffer: Buffer) -> None:
        self.buffer = buffer


class KVBuffer:
    """Grows by whole cells. `keys` HSD and `values` HSD hold slots; None until the first append."""

    __slots__ = ("keys", "length", "start", "values", "window")

    def __init__(self, window: int | None = None) -> None:
        self.window = window
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        self.start = 0
        self.length = 0

    @property
    def capacity(self) -> int:
        """Positions there is room for, from `start`."""
        return 0 if self.keys is None else self.keys.shape[1]

    @property
    def nbytes(self) -> int:
        if self.keys is None or self.values is None:
            return 0
        return self.keys.nbytes + self.values.nbytes

    def tensors(self) -> Iterator[Tensor]:
        if self.keys is not None and self.values is not None:
            yield from (self.keys, self.values)

    def begin_at(self, start: int) -> None:
        assert self.length == 0, f"{self.length} positions are here"
        assert start % KEY_GRID == 0, f"{start} is inside a cell"
        self.start = self.length = start

    def append(self, keys_HTD: Tensor, values_HTD: Tensor) -> None:
        """Write T positions at `length`."""
        slot = self.extend(keys_HTD.shape[1], keys_HTD, values_HTD)
        assert self.keys is not None
        assert self.values is not None
        self.keys.narrow(1, slot, keys_HTD.shape[1]).copy_(keys_HTD)
        self.values.narrow(1, slot, values_HTD.shape[1]).copy_(values_HTD)

    def extend(self, positions: int, like_keys_HTD: Tensor, like_values_HTD: Tensor) -> int:
        """Count more positions, for the caller to write; return the slot of the first.

        Heads, size and type are those of the tensors given.
        """
        before, after = self.length, self.length + positions
        start = max(self.start, first_key(max(0, before - KEY_GRID), self.window))
        # Both or none: memory may run out between them, and the session then goes on as it was.
        keys = self._roomy(self.keys, like_keys_HTD, start, after)
        values = self._roomy(self.values, like_values_HTD, start, after)
        self.keys, self.values, self.start, self.length = keys, values, start, after
        return before - start

    def last(self, positions: int) -> tuple[Tensor, Tensor]:
        """Views of the last `positions` keys and values: HSD."""
        assert self.keys is not None
        assert self.values is not None
        stop = self.length - self.start
        rows = slice(stop - positions, stop)
        return self.keys[:, rows], self.values[:, rows]

    def settle(self) -> None:
        """Let go of what no row within `KEY_GRID` positions of the end can see."""
        start = first_key(max(0, self.length - KEY_GRID), self.window)
        if start <= self.start or self.keys is None or self.values is None:
            return
        first, last = start - self.start, cell_stop(self.length - 1) - self.start
        self.keys = self.keys[:, first:last].clone(memory_format=torch.contiguous_format)
        self.values = self.values[:, first:last].clone(memory_format=torch.contiguous_format)
        self.start = start

    def can_truncate(self, length: int) -> bool:
        """Whether the rows from `length` on could be computed anew."""
        return 0 <= length <= self.length and first_key(length, self.window) >= self.start

    def truncate(self, length: int) -> None:
        """Forget the positions from `length` on; zeros take their places.

        They may hold NaN or infinity (of guesses, that is), and a weight of 0 is no cure for those.
        """
        assert self.can_truncate(length), f"{length} of {self.length}, held from {self.start}"
        rows = slice(length - self.start, self.length - self.start)
        with torch.inference_mode():  # where the tensors were made
            for held in (self.keys, self.values):
                if held is not None:
                    held[:, rows].zero_()
        self.length = length

    def _roomy(self, held: Tensor | None, like_HTD: Tensor, start: int, stop: int) -> Tensor:
        """Return `held` if it can take positions [start, stop), else a larger copy of it."""
        wanted = cell_stop(stop - 1) - start
        if held is not None and start == self.start and wanted <= held.shape[1]:
            return held
        heads, _, size = like_HTD.shape
        roomy = like_HTD.new_zeros((heads, wanted, size))
        if held is not None and self.length > start:
            kept = held[:, start - self.start : self.length - self.start]
            roomy[:, : kept.shape[1]] = kept
        return roomy
