"""The memory of a step: where its rows are between layers, and what each thread works in.

Steps of few rows are many and alike, so their room is kept for the next one.

Legend: T rows, D hidden, R rows kept.
"""

from __future__ import annotations

import torch
from torch import Tensor

from meshnet.engine.compiled.attention import scratch_bytes
from meshnet.engine.compiled.products import levels_bytes
from meshnet.engine.compiled.records import Room, Shape, address, table
from meshnet.engine.compiled.region import ALIGNMENT, padded

KEPT_ROWS_MAX = 16
STOP_GRID = 1024
"""Positions by which a room's reach grows."""
_HIDDEN, _KEPT, _COUNT = map(Room._fields.index, ("hidden", "kept", "kept_count"))
_ALL = -1


class Rooms:
    """Makes the rooms of a runner's steps, one at a time."""

    def __init__(self, shape: Shape, parts: int) -> None:
        self._shape, self._parts = shape, parts
        self._last: StepRoom | None = None

    def of(self, hidden_TD: Tensor, stop: int, kept_R: Tensor | None) -> StepRoom:
        """A room for rows of positions below `stop`; `kept_R` None keeps all of them."""
        rows, room = hidden_TD.shape[0], self._last
        if room is None or room.rows != rows or room.stop < stop:
            room = StepRoom(self._shape, rows, -(-stop // STOP_GRID) * STOP_GRID, self._parts)
            self._last = room if rows <= KEPT_ROWS_MAX else None
        room.enter(hidden_TD, kept_R)
        return room


class StepRoom:
    attention = 0
    """Address of a count of the nanoseconds in attention; who profiles sets one for all rooms."""

    def __init__(self, shape: Shape, rows: int, stop: int, parts: int) -> None:
        self.rows, self.stop = rows, stop
        heads = shape.queries * shape.size
        widest = max(shape.hidden, heads, shape.inner)
        own, scratch = padded(widest * 4), padded(scratch_bytes(stop, shape.size))
        sizes = {
            "levels": levels_bytes.py_func(rows, widest, shape.pair),
            "steps": rows * 4,
            "sums": rows * shape.pair * 4,
            "product": rows * 4 * max(heads + 2 * shape.keys * shape.size, 2 * shape.inner, widest),
            "queries": rows * heads * 4,
            "attended": rows * heads * 4,
            "own": parts * own,
            "scratch": parts * scratch,
        }
        total = sum(map(padded, sizes.values()))
        self._memory = torch.empty(total + ALIGNMENT, dtype=torch.uint8)
        self._meeting = torch.zeros(1, dtype=torch.int64)
        self._hidden_TD: Tensor | None = None
        self._kept_R: Tensor | None = None
        at, places = padded(self._memory.data_ptr()), {}
        for name, size in sizes.items():
            places[name] = at
            at += padded(size)
        record = Room(
            rows=rows,
            hidden=0,
            own_bytes=own,
            scratch_bytes=scratch,
            meeting=self._meeting.data_ptr(),
            kept=0,
            kept_count=_ALL,
            attention=self.attention,
            **places,
        )
        self._record = table([record])

    @property
    def record(self) -> int:
        """Address of what a step knows of it."""
        return address(self._record)

    def enter(self, hidden_TD: Tensor, kept_R: Tensor | None) -> None:
        """Take the rows of the next step; held here until others come."""
        self._hidden_TD, self._kept_R = hidden_TD, kept_R
        self._meeting.zero_()
        self._record[_HIDDEN] = hidden_TD.data_ptr()
        self._record[_KEPT] = 0 if kept_R is None else kept_R.data_ptr()
        self._record[_COUNT] = _ALL if kept_R is None else kept_R.shape[0]
