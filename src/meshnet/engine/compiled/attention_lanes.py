"""The innermost loops of attention: tiles of sums that stay in registers.

    scores    rows of queries times GROUP keys       a lane is a key, one step for each d
    weighed   rows of weights times columns of V     a lane is a column, one step for each key

A tile loads every key and value once for all its rows. Sums are chains of `fma`, one for each row
and lane, so how rows are put together in tiles changes no bit.
"""

from __future__ import annotations

from typing import Any

import numba
from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic

from meshnet.engine.compiled.cells import GROUP
from meshnet.engine.compiled.lanes import (
    F32,
    FLOAT,
    I64,
    INT,
    LANES,
    LONG,
    VECTOR,
    call,
    inlined,
    pointer,
    spread,
)

_VECTORS = {1: 4, 4: 4, 8: 2}
"""Keys or columns at once, in lanes, for rows of a tile: sums leave registers to load into."""
WIDEST = max(_VECTORS)


def _scores(rows: int, vectors: int) -> Any:
    @intrinsic
    def scores(
        context: Any,
        queries: Any,
        keys: Any,
        later: Any,
        size: Any,
        scaling: Any,
        out: Any,
        stride: Any,
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            queries, keys, later, size, scaling, out, stride = arguments
            sums = _Sums(builder, rows, vectors)
            with cgutils.for_range(builder, size) as loop:
                at = builder.mul(loop.index, LONG(GROUP))
                columns = _vectors(builder, keys, later, at, vectors)
                at = pointer(builder, queries, builder.mul(loop.index, LONG(rows)), FLOAT)
                for row in range(rows):
                    query = spread(builder, builder.load(builder.gep(at, [LONG(row)]), align=4))
                    sums.add(row, query, columns)
            scaling = spread(builder, scaling)
            sums.each(lambda total: builder.fmul(total, scaling)).write(out, stride)
            return context.get_dummy_value()

        return numba.void(I64, I64, I64, I64, F32, I64, I64), generate

    return scores


def _weighed(rows: int, vectors: int) -> Any:
    @intrinsic
    def weighed(
        context: Any,
        weights: Any,
        stride: Any,
        values: Any,
        later: Any,
        size: Any,
        count: Any,
        out: Any,
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            weights, stride, values, later, size, count, out = arguments
            sums = _Sums(builder, rows, vectors)
            sums.read(out, size)
            starts = [
                pointer(builder, weights, builder.mul(stride, LONG(row)), FLOAT)
                for row in range(rows)
            ]
            with cgutils.for_range(builder, count) as loop:
                at = builder.mul(loop.index, size)
                columns = _vectors(builder, values, later, at, vectors)
                for row, start in enumerate(starts):
                    weight = builder.load(builder.gep(start, [loop.index]), align=4)
                    sums.add(row, spread(builder, weight), columns)
            sums.write(out, size)
            return context.get_dummy_value()

        return numba.void(I64, I64, I64, I64, I64, I64, I64), generate

    return weighed


_BYTE = ir.IntType(8)


class _Sums:
    """Code for rows of vectors of sums, which LLVM keeps in registers."""

    def __init__(self, builder: Any, rows: int, vectors: int) -> None:
        zero = ir.Constant(VECTOR, [0.0] * LANES)
        self._builder = builder
        self._places = [
            [cgutils.alloca_once_value(builder, zero) for _ in range(vectors)] for _ in range(rows)
        ]

    def add(self, row: int, factor: Any, columns: list[Any]) -> None:
        builder = self._builder
        for place, column in zip(self._places[row], columns, strict=True):
            total = builder.load(place)
            builder.store(call(builder, "llvm.fma.v16f32", VECTOR, [factor, column, total]), place)

    def each(self, function: Any) -> _Sums:
        for row in self._places:
            for place in row:
                self._builder.store(function(self._builder.load(place)), place)
        return self

    def read(self, address: Any, stride: Any) -> None:
        for place, at in self._in_memory(address, stride):
            self._builder.store(self._builder.load(at, align=4), place)

    def write(self, address: Any, stride: Any) -> None:
        for place, at in self._in_memory(address, stride):
            self._builder.store(self._builder.load(place), at, align=4)

    def _in_memory(self, address: Any, stride: Any) -> Any:
        builder = self._builder
        for index, row in enumerate(self._places):
            start = pointer(builder, address, builder.mul(stride, LONG(index)), FLOAT)
            start = builder.bitcast(start, VECTOR.as_pointer())
            for vector, place in enumerate(row):
                yield place, builder.gep(start, [LONG(vector)])


def _vectors(builder: Any, address: Any, later: Any, index: Any, vectors: int) -> list[Any]:
    """Load, and ask the memory for what a later tile loads at the same index."""
    at, next_at = (
        builder.bitcast(pointer(builder, start, index, FLOAT), VECTOR.as_pointer())
        for start in (address, later)
    )
    for n in range(vectors):
        line = builder.bitcast(builder.gep(next_at, [LONG(n)]), _BYTE.as_pointer())
        call(builder, "llvm.prefetch.p0", ir.VoidType(), [line, INT(0), INT(3), INT(1)])
    return [builder.load(builder.gep(at, [LONG(n)]), align=4) for n in range(vectors)]


_scores1, _scores4, _scores8 = (_scores(*tile) for tile in _VECTORS.items())
_wide1, _wide4, _wide8 = (_weighed(*tile) for tile in _VECTORS.items())
_thin1, _thin4, _thin8 = (_weighed(rows, 1) for rows in _VECTORS)


@inlined
def tile_rows(rows):
    """Rows of the first tile of so many, which may be more than they are."""
    if rows == 1:
        return 1
    return WIDEST if rows > 4 else 4


@numba.njit(error_model="numpy")
def scores(rows, queries, keys, later, size, scaling, out, stride):
    """Write `rows` rows of GROUP scores, `stride` values apart.

    `queries` is [size][rows] and `keys` is [size][GROUP].
    """
    if rows == 1:
        _scores1(queries, keys, later, size, scaling, out, stride)
    elif rows == 4:
        _scores4(queries, keys, later, size, scaling, out, stride)
    else:
        for at in (0, GROUP // 2 * 4):
            _scores8(queries, keys + at, later + at, size, scaling, out + at, stride)


@inlined
def _wide(rows, weights, stride, values, later, size, count, out):
    if rows == 1:
        _wide1(weights, stride, values, later, size, count, out)
    elif rows == 4:
        _wide4(weights, stride, values, later, size, count, out)
    else:
        _wide8(weights, stride, values, later, size, count, out)


@inlined
def _thin(rows, weights, stride, values, later, size, count, out):
    if rows == 1:
        _thin1(weights, stride, values, later, size, count, out)
    elif rows == 4:
        _thin4(weights, stride, values, later, size, count, out)
    else:
        _thin8(weights, stride, values, later, size, count, out)


@numba.njit(error_model="numpy")
def add_weighed(rows, weights, stride, values, later, size, count, out):
    """Add `count` values, weighed, to `rows` rows of `out`. `values` is [count][size]."""
    step = GROUP // 2 if rows == WIDEST else GROUP
    wide = size // step * step
    for column in range(0, wide, step):
        at = column * 4
        _wide(rows, weights, stride, values + at, later + at, size, count, out + at)
    for column in range(wide, size, LANES):
        at = column * 4
        _thin(rows, weights, stride, values + at, later + at, size, count, out + at)
