"""Rows of fp32 times int8 weights, compiled: levels of rows, and the products of levels.

A row becomes whole numbers, "levels", and in the format of two rows what rounding left of them,
"rests", as `Int8Linear` says; both are rows of the same product and lie beside each other. Weights
are unsigned, 128 added to each, since a processor multiplies unsigned by signed bytes; what that
adds to a sum, 128 times the sum of the row's levels, is taken off again.

    weights   [outputs / 32][inputs / 4][32][4]    outputs and inputs padded with 128, which is zero
    levels    [blocks][inputs / 4][rows of the block][4]
    sums      -128 times the sum of the levels of each row

Blocks have 12 rows, the last one as many of `BLOCKS` as there is need for.

Invariants
    * sums of products are exact, and what follows works value by value: the bits of a result are
      those of `Int8Linear` over any exact product, whatever rows are beside and however many parts;
    * NaN and infinity of a row make its whole result NaN or infinite, and no other row's.

Legend: `pair` is 2 where rows have rests, else 1; `top` bits of a row's largest magnitude.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from meshnet.engine.compiled.dots import (
    PANEL,
    PANEL_STEP,
    Way,
    put_fours,
    room_for_sums,
    some_lanes,
    summing,
    way_of_host,
    whole,
    whole_lanes,
    whole_number,
)
from meshnet.engine.compiled.lanes import (
    LANES,
    NEAREST,
    fma,
    get,
    get_int,
    get_lanes,
    inlined,
    lanes_of,
    lanes_sum,
    put,
    put_int,
    put_lanes,
    real,
)
from meshnet.engine.linear import LEVELS, REST

INPUTS_MAX = 65_536
"""Sums of more products than these may not fit 32 bits."""
BLOCKS = (1, 2, 4, 8, 12)
"""Numbers of rows of a block."""
_BLOCK = BLOCKS[-1]
_CACHED_BYTES = 1 << 19
"""Weights that stay in a core's cache while all rows pass."""
_AHEAD = 8192
"""Bytes by which weights are asked for early: no loss at one row, a quarter gained at sixteen."""
_ZERO_POINT = np.float32(128)
_STEP, _REST, _OF_REST = np.float32(1 / LEVELS), np.float32(REST), np.float32(1 / REST)

_plain = numba.njit(error_model="numpy")


@_plain
def _padded(rows):
    """Rows of the smallest block that so many fit."""
    return rows if rows <= 2 else 4 if rows <= 4 else 8 if rows <= 8 else _BLOCK


@_plain
def levels_bytes(rows, width, pair):
    """Bytes of the levels of `rows`. As `levels_bytes.py_func` it needs no compiling."""
    rest = rows * pair % _BLOCK
    padded = rest if rest <= 2 else 4 if rest <= 4 else 8 if rest <= 8 else _BLOCK
    return (rows * pair - rest + padded) * ((width + 3) // 4 * 4)


@inlined
def _put_part(value, step, pair, to, stride, fours):
    """Write 16 levels, and rests; the levels and the rests as fp32."""
    nearest, zero_point = lanes_of(NEAREST), lanes_of(_ZERO_POINT)
    level = value / step
    if pair == 1:
        shifted = level + zero_point + nearest
        put_fours(to, stride, fours, shifted)
        levels = (shifted - nearest) - zero_point
        return levels, levels
    levels = (level + nearest) - nearest
    rest = (level - levels) * lanes_of(_REST)
    put_fours(to, stride, fours, levels + zero_point + nearest)
    shifted = rest + zero_point + nearest
    put_fours(to + 4, stride, fours, shifted)
    return levels, (shifted - nearest) - zero_point


@_plain
def put_levels(values, row, rows, width, pair, top, levels, steps, sums):
    """Write the levels of one row among `rows`, its step and what its sums are off by."""
    step = real(top) * _STEP
    put(steps, row, step)
    fours, number = (width + 3) // 4, row * pair
    block, within = divmod(number, _BLOCK)
    size = min(_BLOCK, _padded(min(rows * pair - block * _BLOCK, _BLOCK)))
    to, stride = levels + (block * _BLOCK * fours + within) * 4, size * 4
    divisor, level_sum = lanes_of(step), lanes_of(np.float32(0))
    rest_sum = level_sum
    for i in range(0, width - LANES + 1, LANES):
        part = _put_part(get_lanes(values, i), divisor, pair, to + i * size, stride, 4)
        level_sum, rest_sum = level_sum + part[0], rest_sum + part[1]
    left = width % LANES
    if left:
        i = width - left
        last = some_lanes(values, i, left)
        part = _put_part(last, divisor, pair, to + i * size, stride, (left + 3) // 4)
        level_sum, rest_sum = level_sum + part[0], rest_sum + part[1]
    put_int(sums, number, -128 * whole_number(lanes_sum(level_sum)))
    if pair == 2:
        put_int(sums, number + 1, -128 * whole_number(lanes_sum(rest_sum)))


@_plain
def _finish(tile, row, count, pair, steps, sums, scales, bias, start, outputs, out, add):
    """Turn the sums of a tile into results: of `count` rows from `row` on, and its outputs."""
    stop = min(outputs, start + PANEL)
    for number in range(count):
        to, at = out + (row + number) * outputs * 4, number * pair * PANEL - start
        step, off = get(steps, row + number), get_int(sums, (row + number) * pair)
        rest_off = get_int(sums, (row + number) * pair + pair - 1)
        i = start
        while i + LANES <= stop:
            scale = get_lanes(scales, i)
            value = whole_lanes(tile, at + i, off) * scale
            if pair == 2:
                rest = whole_lanes(tile, at + PANEL + i, rest_off) * scale
                value = fma(rest, lanes_of(_OF_REST), value)
            value = value * lanes_of(step)
            if bias != 0:
                value = value + get_lanes(bias, i)
            if add != 0:
                value = value + get_lanes(to, i)
            put_lanes(to, i, value)
            i += LANES
        while i < stop:
            scale = get(scales, i)
            value = whole(tile, at + i, off) * scale
            if pair == 2:
                value = fma(whole(tile, at + PANEL + i, rest_off) * scale, _OF_REST, value)
            value = value * step
            if bias != 0:
                value = value + get(bias, i)
            if add != 0:
                value = value + get(to, i)
            put(to, i, value)
            i += 1


def _adding(way: Way) -> Any:
    """Return what adds up the products of a block and a panel, by one way of it."""
    one, two, four, eight, twelve = (summing(way, rows, _AHEAD) for rows in BLOCKS)

    @_plain
    def add_up(size, weights, levels, fours, tile):
        if size == 12:
            twelve(weights, levels, fours, tile)
        elif size == 2:
            two(weights, levels, fours, tile)
        elif size == 1:
            one(weights, levels, fours, tile)
        elif size == 4:
            four(weights, levels, fours, tile)
        else:
            eight(weights, levels, fours, tile)

    return add_up


def multiplying(way: Way) -> Any:
    """Return `multiply` by one way of adding up products."""
    add_up = _adding(way)

    @_plain
    def multiply(
        levels, steps, sums, rows, pair, weights, scales, bias, inputs, outputs, out, add, part,
        parts,
    ):  # fmt: skip
        """Write or add the product of levels with weights to `out`, fp32 [rows][outputs].

        `bias` 0: none. Of `parts` this one does a run of outputs for all rows.
        """
        fours, panels = (inputs + 3) // 4, (outputs + PANEL - 1) // PANEL
        first, end = panels * part // parts, panels * (part + 1) // parts
        panel_bytes, tile = fours * PANEL_STEP, room_for_sums()
        together = max(1, _CACHED_BYTES // panel_bytes)
        for start in range(first, end, together):
            for number in range(0, rows * pair, _BLOCK):
                count = min(_BLOCK, rows * pair - number)
                size, block = _padded(count), levels + number * fours * 4
                for panel in range(start, min(start + together, end)):
                    add_up(size, weights + panel * panel_bytes, block, fours, tile)
                    _finish(
                        tile, number // pair, count // pair, pair, steps, sums, scales, bias,
                        panel * PANEL, outputs, out, add,
                    )  # fmt: skip

    return multiply


multiply = multiplying(way_of_host())
