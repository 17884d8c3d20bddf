"""What a step does to rows between its products.

Invariants
    * a row's result depends on that row alone: sums run in `BLOCK` lanes and then down one tree;
    * NaN and infinity of a row stay in it.
"""

from __future__ import annotations

import numba
import numpy as np

from meshnet.engine.compiled.lanes import (
    LANES,
    ONE,
    SMALLEST_BITS,
    exp,
    get,
    get_lanes,
    inlined,
    lanes_of,
    lanes_sum,
    larger,
    put,
)
from meshnet.engine.compiled.products import put_levels

BLOCK = 4 * LANES

_plain = numba.njit(error_model="numpy")


@inlined
def squares(values, width):
    """Sum of squares of a row."""
    a = b = c = d = lanes_of(np.float32(0))
    blocks = width // BLOCK * BLOCK
    for i in range(0, blocks, BLOCK):
        w, x = get_lanes(values, i), get_lanes(values, i + LANES)
        y, z = get_lanes(values, i + 2 * LANES), get_lanes(values, i + 3 * LANES)
        a, b, c, d = a + w * w, b + x * x, c + y * y, d + z * z
    total = lanes_sum((a + c) + (b + d))
    for i in range(blocks, width):
        value = get(values, i)
        total += value * value
    return total


@inlined
def normed(values, weight, eps, out, width):
    """Write the root mean square norm of a row; the bits of its largest magnitude."""
    scale = ONE / np.sqrt(squares(values, width) / np.float32(width) + eps)
    top = SMALLEST_BITS
    for i in range(width):
        value = get(values, i) * scale * get(weight, i)
        put(out, i, value)
        top = larger(top, value)
    return top


@_plain
def norms(values, weight, eps, out, rows, width, part, parts):
    for row in range(part, rows, parts):
        offset = row * width * 4
        normed(values + offset, weight, eps, out + offset, width)


@_plain
def norm_levels(values, weight, eps, rows, width, pair, own, levels, steps, sums, part, parts):
    """Levels of normed rows. `own`: room for a row, of this part alone."""
    for row in range(part, rows, parts):
        top = normed(values + row * width * 4, weight, eps, own, width)
        put_levels(own, row, rows, width, pair, top, levels, steps, sums)


@_plain
def row_levels(values, rows, width, pair, levels, steps, sums, part, parts):
    for row in range(part, rows, parts):
        at = values + row * width * 4
        top = SMALLEST_BITS
        for i in range(width):
            top = larger(top, get(at, i))
        put_levels(at, row, rows, width, pair, top, levels, steps, sums)


@_plain
def gate_levels(product, rows, width, pair, own, levels, steps, sums, part, parts):
    """Levels of silu(gate) * up; a row of `product` is a gate and then what it lets up."""
    for row in range(part, rows, parts):
        gate = product + row * width * 8
        up = gate + width * 4
        top = SMALLEST_BITS
        for i in range(width):
            value = get(gate, i)
            value = value / (ONE + exp(-value)) * get(up, i)
            put(own, i, value)
            top = larger(top, value)
        put_levels(own, row, rows, width, pair, top, levels, steps, sums)
