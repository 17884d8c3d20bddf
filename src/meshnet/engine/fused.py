"""Compiled loops for what a layer does between its int8 products, one call for what was ten.

    norm_levels      hidden -> norm -> levels                       first layer of a step
    heads            product -> (norms) -> rotary -> queries, K, V  K and V where they stay
    levels           attended -> levels
    add_norm_levels  product + hidden -> hidden -> norm -> levels
    gate_levels      product -> silu(gate) * up -> levels
    add              product + hidden -> hidden                     last layer of a step

"Levels" are what an int8 product takes: a row in units of its largest magnitude over 127 and, if
the format has two rows, what rounding left of it times 254, the same bits as `Int8Linear` makes.
The rests of all rows lie behind all levels, in what enters a product and in what leaves it:

    row      0    1    2 | behind + 0    behind + 1    behind + 2        behind = 3
    levels   a    b    c | rest of a     rest of b     rest of c

Arguments are addresses of fp32 values without gaps: unboxing an array costs as much as a row.
numba compiles these loops with a compiler it brings; importing this module fails without it.

Invariants
    * a row's result depends on that row alone: every row takes the same steps, sums run in `LANES`
      lanes and then down one tree, and nothing is contracted or reassociated;
    * NaN and infinity of a row end in NaN or infinity of that row's product.

Legend: rows of a call, `width` of a row, `behind` rows from levels to rests or 0, `scales` of rows.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic

from meshnet.engine.linear import LEVELS, REST, SMALLEST

LANES = 64
_F32, _I32, _I64 = numba.float32, numba.int32, numba.int64
_NEAREST = np.float32(1.5 * 2**23)
"""Adding it to less than 2^22 rounds to a whole number, ties to even."""
_NEAREST_BITS = int(_NEAREST.view(np.int32))
_STEP, _REST, _OF_REST = np.float32(1 / LEVELS), np.float32(REST), np.float32(1 / REST)
_SMALLEST_BITS = np.float32(SMALLEST).view(np.int32)
_ZERO, _ONE = np.float32(0), np.float32(1)
_EXP_MIN, _EXP_MAX = np.float32(-87), np.float32(88)
_LOG2_E = np.float32(1.44269504088896341)
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
"""ln 2 in two parts: whole multiples of the first are exact."""
_C0, _C1, _C2 = map(np.float32, (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3))
_C3, _C4, _C5 = map(np.float32, (4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1))


@intrinsic
def _get(context: Any, address: Any, index: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        start = builder.inttoptr(arguments[0], ir.FloatType().as_pointer())
        return builder.load(builder.gep(start, [arguments[1]]), align=4)

    return _F32(_I64, _I64), generate


@intrinsic
def _put(context: Any, address: Any, index: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        start = builder.inttoptr(arguments[0], ir.FloatType().as_pointer())
        builder.store(arguments[2], builder.gep(start, [arguments[1]]), align=4)
        return context.get_dummy_value()

    return numba.void(_I64, _I64, _F32), generate


@intrinsic
def _larger(context: Any, bits: Any, value: Any) -> Any:
    """The larger of magnitudes, the first given by its bits: they are in order, NaN last."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        one, other = arguments[0], builder.bitcast(arguments[1], ir.IntType(32))
        other = builder.and_(other, ir.Constant(ir.IntType(32), 0x7FFFFFFF))
        return builder.select(builder.icmp_signed(">", one, other), one, other)

    return _I32(_I32, _F32), generate


@intrinsic
def _real(context: Any, bits: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return _F32(_I32), generate


@intrinsic
def _two_to(context: Any, shifted: Any) -> Any:
    """Two to the power of a whole number to which `_NEAREST` was added."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bits = builder.bitcast(arguments[0], ir.IntType(32))
        bias = ir.Constant(ir.IntType(32), 127 - _NEAREST_BITS)
        exponent = builder.shl(builder.add(bits, bias), ir.Constant(ir.IntType(32), 23))
        return builder.bitcast(exponent, ir.FloatType())

    return _F32(_F32), generate


@intrinsic
def _squares_of_blocks(context: Any, address: Any, blocks: Any) -> Any:
    """Sum of squares of `blocks` times `LANES` values."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = ir.VectorType(ir.FloatType(), LANES)
        start = builder.inttoptr(arguments[0], vector.as_pointer())
        total = cgutils.alloca_once_value(builder, ir.Constant(vector, [0.0] * LANES))
        with cgutils.for_range(builder, arguments[1]) as loop:
            part = builder.load(builder.gep(start, [loop.index]), align=4)
            builder.store(builder.fadd(builder.load(total), builder.fmul(part, part)), total)
        sums, half = builder.load(total), LANES // 2
        while half:
            low, high = (_picked(builder, sums, range(at, at + half)) for at in (0, half))
            sums, half = builder.fadd(low, high), half // 2
        return builder.extract_element(sums, ir.Constant(ir.IntType(32), 0))

    return _F32(_I64, _I64), generate


def _picked(builder: Any, vector: Any, lanes: range) -> Any:
    mask = ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), list(lanes))
    return builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), mask)


_inlined = numba.njit(forceinline=True, error_model="numpy")


@_inlined
def exp(x):
    """e to the power of a value from -87 to 88, which others are taken as."""
    x = x if x < _EXP_MAX else _EXP_MAX
    x = x if x > _EXP_MIN else _EXP_MIN
    shifted = x * _LOG2_E + _NEAREST
    whole = shifted - _NEAREST
    x = (x - whole * _LN2_HIGH) - whole * _LN2_LOW
    series = ((((_C0 * x + _C1) * x + _C2) * x + _C3) * x + _C4) * x + _C5
    return (series * (x * x) + x + _ONE) * _two_to(shifted)


@_inlined
def _norm_scale(values, width, eps):
    blocks = width // LANES
    squares = _squares_of_blocks(values, blocks)
    for i in range(blocks * LANES, width):
        value = _get(values, i)
        squares += value * value
    return _ONE / np.sqrt(squares / np.float32(width) + eps)


@_inlined
def _normed(values, weight, eps, out, width):
    """Write the norm of a row; the bits of its largest magnitude."""
    scale = _norm_scale(values, width, eps)
    top = _SMALLEST_BITS
    for i in range(width):
        value = _get(values, i) * scale * _get(weight, i)
        _put(out, i, value)
        top = _larger(top, value)
    return top


@_inlined
def _levelled(row, rest, top, width, scale):
    """Turn a row of values into levels, in place, and write what rounding left to `rest`."""
    step = _real(top) * _STEP
    _put(scale, 0, step)
    if rest == row:
        for i in range(width):
            _put(row, i, _get(row, i) / step)
    else:
        for i in range(width):
            level = _get(row, i) / step
            whole = (level + _NEAREST) - _NEAREST
            _put(row, i, whole)
            _put(rest, i, (level - whole) * _REST)


@_inlined
def _sum(row, rest, i, of_rest, scale):
    return (_get(row, i) + _get(rest, i) * of_rest) * scale


@_inlined
def _added(row, rest, of_rest, scale, bias, hidden, width):
    if bias == 0:
        for i in range(width):
            _put(hidden, i, _sum(row, rest, i, of_rest, scale) + _get(hidden, i))
    else:
        for i in range(width):
            value = _sum(row, rest, i, of_rest, scale) + _get(bias, i)
            _put(hidden, i, value + _get(hidden, i))


def _compiled(names: str) -> Any:
    """Compile for these arguments at once, or take from the disk what an earlier process left."""
    options = {"nogil": True, "error_model": "numpy"}
    signature = numba.void(*(_F32 if name == "eps" else _I64 for name in names.split()))

    def compiled(function: Any) -> Any:
        try:
            return numba.njit(signature, cache=True, **options)(function)
        except RuntimeError:  # there is nowhere to write to
            return numba.njit(signature, **options)(function)

    return compiled


@_compiled("hidden weight eps out scales rows width behind")
def norm_levels(hidden, weight, eps, out, scales, rows, width, behind):
    for row in range(rows):
        to = out + row * width * 4
        top = _normed(hidden + row * width * 4, weight, eps, to, width)
        _levelled(to, to + behind * width * 4, top, width, scales + row * 4)


@_compiled("values out scales rows width behind")
def levels(values, out, scales, rows, width, behind):
    for row in range(rows):
        at, to = values + row * width * 4, out + row * width * 4
        top = _SMALLEST_BITS
        for i in range(width):
            value = _get(at, i)
            _put(to, i, value)
            top = _larger(top, value)
        _levelled(to, to + behind * width * 4, top, width, scales + row * 4)


@_compiled("product scales bias hidden rows width behind")
def add(product, scales, bias, hidden, rows, width, behind):
    of_rest = _OF_REST if behind else _ZERO
    for row in range(rows):
        at = product + row * width * 4
        rest, to = at + behind * width * 4, hidden + row * width * 4
        _added(at, rest, of_rest, _get(scales, row), bias, to, width)


@_compiled("product scales bias hidden weight eps out rows width behind")
def add_norm_levels(product, scales, bias, hidden, weight, eps, out, rows, width, behind):
    of_rest = _OF_REST if behind else _ZERO
    for row in range(rows):
        offset = row * width * 4
        at, into, to = product + offset, hidden + offset, out + offset
        _added(at, at + behind * width * 4, of_rest, _get(scales, row), bias, into, width)
        top = _normed(into, weight, eps, to, width)
        _levelled(to, to + behind * width * 4, top, width, scales + row * 4)


@_compiled("product scales bias out out_scales rows width behind")
def gate_levels(product, scales, bias, out, out_scales, rows, width, behind):
    """A row of `product` is a gate and then what it lets up, `width` each."""
    of_rest = _OF_REST if behind else _ZERO
    for row in range(rows):
        gate, to, scale = product + row * width * 8, out + row * width * 4, _get(scales, row)
        up, gate_rest = gate + width * 4, gate + behind * width * 8
        up_rest = gate_rest + width * 4
        top = _SMALLEST_BITS
        for i in range(width):
            value = _sum(gate, gate_rest, i, of_rest, scale)
            other = _sum(up, up_rest, i, of_rest, scale)
            if bias != 0:
                value += _get(bias, i)
                other += _get(bias, width + i)
            value = value / (_ONE + exp(-value)) * other
            _put(to, i, value)
            top = _larger(top, value)
        _levelled(to, to + behind * width * 4, top, width, out_scales + row * 4)


@_inlined
def _turned(head, cosine, sine, to, size):
    half = size // 2
    for i in range(half):
        _put(to, i, _get(head, i) * _get(cosine, i) + _get(head, half + i) * _get(sine, i))
    for i in range(half, size):
        _put(to, i, _get(head, i) * _get(cosine, i) + _get(head, i - half) * _get(sine, i))


@_inlined
def _head(row, rest, of_rest, scale, bias, to, size):
    if bias == 0:
        for i in range(size):
            _put(to, i, _sum(row, rest, i, of_rest, scale))
    else:
        for i in range(size):
            _put(to, i, _sum(row, rest, i, of_rest, scale) + _get(bias, i))


@_compiled(
    "product scales bias norms eps cosine sine scratch queries keys values"
    " rows behind query_heads turned_heads size slots"
)
def heads(
    product,
    scales,
    bias,
    norms,
    eps,
    cosine,
    sine,
    scratch,
    queries,
    keys,
    values,
    rows,
    behind,
    query_heads,
    turned_heads,
    size,
    slots,
):
    """`keys` and `values` are of the first row; the next head's are `slots` positions further."""
    of_rest, width = _OF_REST if behind else _ZERO, (2 * turned_heads - query_heads) * size
    for row in range(rows):
        scale, turn = _get(scales, row), row * size * 4
        for head in range(2 * turned_heads - query_heads):
            at = product + (row * width + head * size) * 4
            rest, biases = at + behind * width * 4, bias + head * size * 4 if bias else 0
            if head >= turned_heads:
                to = values + ((head - turned_heads) * slots + row) * size * 4
                _head(at, rest, of_rest, scale, biases, to, size)
                continue
            _head(at, rest, of_rest, scale, biases, scratch, size)
            if norms != 0:
                _normed(scratch, norms + head * size * 4, eps, scratch, size)
            if head < query_heads:
                to = queries + (row * query_heads + head) * size * 4
            else:
                to = keys + ((head - query_heads) * slots + row) * size * 4
            _turned(scratch, cosine + turn, sine + turn, to, size)
