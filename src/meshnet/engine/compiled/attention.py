"""Where queries, keys and values of a step go, and attention over cells of keys and values.

    product --(norms)--> rotary --> queries, K and V in their cells                       place
    queries, K --> scores --> weights --> weighed V --> what a row attends to             attend

A row at position p sees the keys of (p - window, p]. Its bits depend on its query and these keys:

    score     fma over d = 0, 1, ..., times scaling
    weight    exp(score - largest)
    total     of weights: lane p mod 16 by itself, keys in order, then the lanes down one tree
    out       fma over keys in order of weight * value, times 1 / total

Rows that share a head of K and V go in bands: each of their tiles reads the keys that all its rows
see together, and each row the rest alone, before or behind.

    keys       0 1 2 3 4 5 6 7 8 9
    row p=7        [ . . . . . ]            window 6
    row p=8          [ . . . . . ]
    tile           1 * * * * * 1            *: at once, 1: one row

Invariants
    * what company a row has, how rows are cut into calls and shared among parts changes no bit;
    * memory that a row does not see is never in its sums: lanes of other keys are dropped, so there
      may be anything, NaN included;
    * NaN in a row's scores ends in NaN of that row.

Legend of `cells`: see cells.py. Rows of queries and of `out` are [rows][query_heads][size].
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

from meshnet.engine.compiled.attention_lanes import WIDEST, add_weighed, scores, tile_rows
from meshnet.engine.compiled.cells import GROUP
from meshnet.engine.compiled.lanes import (
    LANES,
    ONE,
    ZERO,
    get,
    get_lanes,
    get_long,
    inlined,
    lanes_exp,
    lanes_of,
    lanes_sum,
    lanes_top,
    more,
    put,
    put_lanes,
    within,
)
from meshnet.engine.kv import KEY_GRID

BAND = 3 * WIDEST
"""Rows that go over keys together."""
SIZE_STEP = LANES
"""Head sizes are multiples of it."""
_LOWEST = np.float32(-np.inf)

_plain = numba.njit(error_model="numpy")


def scratch_bytes(stop: int, size: int) -> int:
    """Room that a part needs for rows before position `stop`."""
    span = -(-stop // GROUP) * GROUP + LANES
    return 4 * BAND * (span + 2 * size)


class Band(NamedTuple):
    """Rows `first` to `first + rows` of those of one head of K and V, `group` of each position.

    The first row of all is of position `past`. Weights of a row are `stride` values apart from the
    next row's, and begin with that of key `start`, a multiple of GROUP.
    """

    held: int
    keys: int
    values: int
    """Where those of the head are in a cell, in bytes."""
    past: int
    first: int
    rows: int
    group: int
    window: int
    size: int
    start: int
    stride: int
    weights: int
    following: int
    """Where the keys are that are read next, in bytes in a cell."""


@_plain
def attend(
    queries,
    out,
    cells,
    index,
    past,
    rows,
    query_heads,
    kv_heads,
    size,
    scaling,
    window,
    scratch,
    part,
    parts,
):
    """Attend from positions [past, past + rows) of layer `index` of a session.

    `window` 0 is all. `scratch` is of this part alone (`scratch_bytes`).
    """
    held, group = get_long(cells, index), query_heads // kv_heads
    bands = (rows * group + BAND - 1) // BAND
    for unit in range(part, bands * kv_heads, parts):
        head, first = unit // bands, unit % bands * BAND
        count = min(BAND, rows * group - first)
        keys, values = head * KEY_GRID * size * 4, (kv_heads + head) * KEY_GRID * size * 4
        start = _first_seen(past + first // group, window) // GROUP * GROUP
        span = ((past + (first + count - 1) // group) // GROUP + 1) * GROUP - start + LANES
        following = head + parts if bands == 1 and head + parts < kv_heads else head
        band = Band(
            held, keys, values, past, first, count, group, window, size, start, span, scratch,
            following * KEY_GRID * size * 4,
        )  # fmt: skip
        offset = head * group * size * 4
        _attend(band, queries + offset, out + offset, query_heads * size, scaling)


@inlined
def _first_seen(position, window):
    return max(0, position - window + 1) if window else 0


@inlined
def _position(band, row):
    return band.past + (band.first + row) // band.group


@inlined
def _in_cell(band, of_head, position):
    """Address of GROUP keys or values of the head in the cell of `position`."""
    cell = get_long(band.held, position // KEY_GRID)
    return cell + of_head + position % KEY_GRID * band.size * 4


@_plain
def _attend(band, queries, out, width, scaling):
    """`queries` and `out` are of the band's heads; positions are `width` values apart there."""
    packed = band.weights + BAND * band.stride * 4
    sums = packed + BAND * band.size * 4
    _pack(band, queries, width, packed)
    _score(band, packed, scaling)
    for row in range(band.rows):
        position = _position(band, row)
        start = _first_seen(position, band.window) - band.start
        _weigh(band.weights + row * band.stride * 4, start, position + 1 - band.start, band.stride)
    for column in range(0, band.rows * band.size, LANES):
        put_lanes(sums, column, lanes_of(ZERO))
    for phase in range(3):
        _sum(band, phase, sums)
    for row in range(band.rows):
        number = band.first + row
        to = number // band.group * width + number % band.group * band.size
        inverse = lanes_of(get(band.weights, (row + 1) * band.stride - 1))
        for column in range(0, band.size, LANES):
            total = get_lanes(sums, row * band.size + column)
            put_lanes(out, to + column, total * inverse)


@_plain
def _pack(band, queries, width, packed):
    """Write queries as tiles read them: [tile][size][rows of the tile]."""
    for tile in range(0, band.rows, WIDEST):
        rows = tile_rows(band.rows - tile)
        for lane in range(rows):
            number = band.first + min(tile + lane, band.rows - 1)
            at = number // band.group * width + number % band.group * band.size
            for column in range(band.size):
                to = tile * band.size + column * rows + lane
                put(packed, to, get(queries, at + column))


@_plain
def _score(band, packed, scaling):
    last = _position(band, band.rows - 1)
    for key in range(band.start, last + 1, GROUP):
        keys = _in_cell(band, band.keys, key)
        if key + GROUP <= last:
            later = _in_cell(band, band.keys, key + GROUP)
        else:
            later = _in_cell(band, band.values, band.start)
        for tile in range(0, band.rows, WIDEST):
            rows = tile_rows(band.rows - tile)
            if _position(band, tile + rows - 1) >= key:
                to = band.weights + (tile * band.stride + key - band.start) * 4
                queries = packed + tile * band.size * 4
                scores(rows, queries, keys, later, band.size, scaling, to, band.stride)


@_plain
def _weigh(row, start, stop, stride):
    """Turn scores from `start` to `stop` into weights, and write the inverse of their total last.

    Weights beside them, in the same lanes, are 0.
    """
    lowest = lanes_of(_LOWEST)
    top, total = lowest, lanes_of(ZERO)
    first = start // LANES * LANES
    for at in range(first, stop, LANES):
        top = more(within(get_lanes(row, at), start - at, stop - at, lowest), top)
    top = lanes_of(lanes_top(top))
    for at in range(first, stop, LANES):
        weights = lanes_exp(get_lanes(row, at) - top)
        weights = within(weights, start - at, stop - at, lanes_of(ZERO))
        put_lanes(row, at, weights)
        total = total + weights
    put(row, stride - 1, ONE / lanes_sum(total))


@_plain
def _sum(band, phase, sums):
    """Add values weighed, of the keys of a phase (`_span`): GROUP keys of all rows, then more."""
    last = _position(band, band.rows - 1)
    start = band.start if phase < 2 else _position(band, 0) // GROUP * GROUP
    stop = (_first_seen(last, band.window) if phase == 0 else last) + 1
    for key in range(start, stop, GROUP):
        values = _in_cell(band, band.values, key)
        if key + GROUP < stop:
            later = _in_cell(band, band.values, key + GROUP)
        else:
            later = _in_cell(band, band.following, band.start)
        for row in range(0, band.rows, WIDEST if phase == 1 else 1):
            begin, end = _span(band, phase, row)
            begin, end = max(begin, key), min(end, key + GROUP)
            if begin < end:
                offset = (begin - key) * band.size * 4
                add_weighed(
                    tile_rows(band.rows - row) if phase == 1 else 1,
                    band.weights + (row * band.stride + begin - band.start) * 4,
                    band.stride,
                    values + offset,
                    later + offset,
                    band.size,
                    end - begin,
                    sums + row * band.size * 4,
                )


@inlined
def _span(band, phase, row):
    """Keys that a row sees before all rows of its tile do (0), that all do (1), or after (2)."""
    tile = row // WIDEST * WIDEST
    last = _position(band, min(tile + WIDEST, band.rows) - 1)
    begin, end = _first_seen(last, band.window), _position(band, tile) + 1
    if phase == 1:
        return begin, end
    position = _position(band, row)
    if phase == 0:
        return _first_seen(position, band.window), min(begin, position + 1)
    return max(begin, end), position + 1
