"""Keys and values of a session in cells of `KEY_GRID` positions, where compiled code finds them.

    table     of the session: one address for each of its layers, in order
    layer 0   [cell 0, cell 1, cell 2, ...]    by the cell's number; what is not held means nothing
    layer 1   [  -   , cell 1, cell 2, ...]    a window has let go of its first

    cell      keys    [heads][4 groups][size][GROUP positions]
              values  [heads][KEY_GRID positions][size]

A cell is memory of its own: growing copies nothing, and what is forgotten is given back. While a
step stays within cells that are there, a session counts its positions for all layers at once.

Invariants
    * cells cover the positions from `start` to `length`, and none lies behind that of `length - 1`
      between steps; `start` follows the rules of `KVBuffer`;
    * what lies beyond `length` is not initialised, and nobody may look at it;
    * the table stays where it is as long as the session lives.

Legend: H key/value heads, T new positions, D head size, P positions of a cell, G groups of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import DummyLayer

from meshnet.core.vocabulary import LayerRange
from meshnet.engine.kv import KEY_GRID, BufferedLayer, cell_stop, first_key

GROUP = 64
"""Positions whose keys lie together: values of one d beside each other."""
_COLUMNS = 8


class CellTable:
    """Where the cells of some layers are."""

    __slots__ = ("_cells", "_layers", "ahead", "room")

    def __init__(self, layers: int) -> None:
        self._layers = np.zeros(layers, np.int64)
        self._cells = np.zeros((layers, 0), np.int64)
        self.ahead = 0
        """Positions of every layer beside those that it counts itself."""
        self.room = 0
        """All layers have room for positions below this; 0 if one has changed by itself."""

    @property
    def address(self) -> int:
        return int(self._layers.ctypes.data)

    def put(self, layer: int, cell: int, address: int) -> None:
        if cell >= self._cells.shape[1]:
            cells = np.zeros((len(self._layers), max(_COLUMNS, 2 * cell)), np.int64)
            cells[:, : self._cells.shape[1]] = self._cells
            self._cells = cells
            self._layers[:] = cells.ctypes.data + cells.strides[0] * np.arange(len(cells))
        self._cells[layer, cell] = address


class CellBuffer:
    """What `KVBuffer` is, in cells. Layer `layer` of a table, or the only one."""

    __slots__ = ("_cells", "_first", "_layer", "_length", "_shape", "_table", "window")

    def __init__(
        self,
        window: int | None,
        *,
        heads: int,
        size: int,
        table: CellTable | None = None,
        layer: int = 0,
    ) -> None:
        self.window = window
        self._shape = heads, size
        self._table, self._layer = table or CellTable(1), layer
        self._cells: list[Tensor] = []
        self._first = self._length = 0

    @property
    def length(self) -> int:
        return self._length + self._table.ahead

    @property
    def start(self) -> int:
        return self._first * KEY_GRID

    @property
    def capacity(self) -> int:
        """Positions there is room for, from `start`."""
        return len(self._cells) * KEY_GRID

    @property
    def nbytes(self) -> int:
        return sum(cell.nbytes for cell in self._cells)

    @property
    def table(self) -> int:
        """Address of the table that this is a layer of."""
        return self._table.address

    def tensors(self) -> Iterator[Tensor]:
        return iter(self._cells)

    def reserve(self, stop: int) -> None:
        """Have room for positions below `stop`; let go of what rows from the end on cannot see."""
        self._let_go()
        heads, size = self._shape
        for cell in range(self._first + len(self._cells), cell_stop(stop - 1) // KEY_GRID):
            self._cells.append(torch.empty(2 * heads * KEY_GRID * size))
            self._table.put(self._layer, cell, self._cells[-1].data_ptr())

    def begin_at(self, start: int) -> None:
        assert self.length == 0, f"{self.length} positions are here"
        assert start % KEY_GRID == 0, f"{start} is inside a cell"
        self._first = start // KEY_GRID
        self._count(start)

    def append(self, keys_HTD: Tensor, values_HTD: Tensor) -> None:
        """Write T positions at `length`."""
        past, written = self.length, 0
        self.reserve(past + keys_HTD.shape[1])
        while written < keys_HTD.shape[1]:
            slot = (past + written) % KEY_GRID
            group, lane = divmod(slot, GROUP)
            rows = slice(written, min(written + GROUP - lane, keys_HTD.shape[1]))
            count = rows.stop - rows.start
            keys_HGDP, values_HPD = self._views((past + written) // KEY_GRID)
            keys_HGDP[:, group, :, lane : lane + count] = keys_HTD[:, rows].transpose(1, 2)
            values_HPD[:, slot : slot + count] = values_HTD[:, rows]
            written = rows.stop
        self._count(past + written)

    def last(self, positions: int) -> tuple[Tensor, Tensor]:
        """Copies of the last `positions` keys and values: HSD."""
        stop = self.length
        first, last = (stop - positions) // KEY_GRID, -(-stop // KEY_GRID)
        views = [self._views(cell) for cell in range(first, last)]
        keys = [keys_HGDP.transpose(2, 3).flatten(1, 2) for keys_HGDP, _ in views]
        rows = slice(stop - positions - first * KEY_GRID, stop - first * KEY_GRID)
        return torch.cat(keys, 1)[:, rows], torch.cat([v for _, v in views], 1)[:, rows]

    def settle(self) -> None:
        """Let go of what no row within `KEY_GRID` positions of the end can see."""
        self._let_go()

    def can_truncate(self, length: int) -> bool:
        """Whether the rows from `length` on could be computed anew."""
        return 0 <= length <= self.length and first_key(length, self.window) >= self.start

    def truncate(self, length: int) -> None:
        """Forget the positions from `length` on, and the cells that have no other."""
        assert self.can_truncate(length), f"{length} of {self.length}, held from {self.start}"
        del self._cells[max(0, -(-length // KEY_GRID) - self._first) :]
        self._count(length)

    def _count(self, length: int) -> None:
        self._length = length - self._table.ahead
        self._table.room = 0

    def _let_go(self) -> None:
        first = first_key(max(0, self.length - KEY_GRID), self.window) // KEY_GRID
        if first > self._first:
            del self._cells[: first - self._first]
            self._first = first

    def _views(self, cell: int) -> tuple[Tensor, Tensor]:
        """Keys HGDP and values HPD of a cell held."""
        heads, size = self._shape
        keys, values = self._cells[cell - self._first].view(2, heads, KEY_GRID * size)
        return keys.view(heads, -1, size, GROUP), values.view(heads, KEY_GRID, size)


class SessionCells:
    """The cache of a session whose layers all have cells; `windows` of its layers, in order."""

    def __init__(
        self,
        total: int,
        local: LayerRange,
        windows: Sequence[int | None],
        heads: int,
        size: int,
    ) -> None:
        self.local, self.length = local, 0
        self._cells = CellTable(len(windows))
        self._buffers = [
            CellBuffer(window, heads=heads, size=size, table=self._cells, layer=index)
            for index, window in enumerate(windows)
        ]
        self._sliding = [buffer for buffer in self._buffers if buffer.window is not None]
        self._settled = 0
        self.layers: list[BufferedLayer | DummyLayer] = [DummyLayer() for _ in range(total)]
        self.layers[local.start : local.stop] = map(BufferedLayer, self._buffers)

    @property
    def table(self) -> int:
        """Address of the addresses of what the layers hold, the first at 0."""
        return self._cells.address

    def extend(self, positions: int) -> None:
        """Count more positions of every layer, for the caller to write."""
        stop = self.length + positions
        if stop > self._cells.room:
            for buffer in self._buffers:
                buffer.reserve(stop)
            self._cells.room = cell_stop(stop - 1)
        self._cells.ahead += positions
        self.length = stop

    def settle(self, length: int) -> None:
        """Note that every layer has seen `length` positions."""
        self.length = length
        if self._sliding and length // KEY_GRID != self._settled:
            for buffer in self._sliding:
                buffer.settle()
            self._settled = length // KEY_GRID

    def keep_copies(self, lengths: Collection[int]) -> None:
        """Keep copies of states that cannot be shortened: of none, here."""

    def can_truncate(self, length: int) -> bool:
        """Whether the session could go on from `length` as if it had never been longer."""
        held = all(buffer.can_truncate(length) for buffer in self._sliding)
        return held and 0 <= length <= self.length

    def truncate(self, length: int) -> None:
        """Forget the positions from `length` on; O(1) within a cell."""
        if cell_stop(length - 1) == cell_stop(self.length - 1):
            self._cells.ahead -= self.length - length
        else:
            for buffer in self._buffers:
                buffer.truncate(length)
        self.length = length
