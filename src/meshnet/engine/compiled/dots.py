"""Sums of products of bytes, by the instructions that a processor has for it.

    wide     AVX512-VNNI: 64 products added to 16 sums by one instruction
    narrow   AVX-VNNI, or AVX512-VNNI on 256 bits: 32 products to 8 sums
    pairs    AVX2: 16 products of 16 bits to 8 sums
    plain    whole numbers of 32 bits, on any processor

A tile is a few rows by a panel of 32 outputs. Its sums stay in registers while it runs through
all inputs, four at a time; so many rows are taken at once as there are registers.

    weights   [inputs / 4][32 outputs][4]      unsigned bytes
    rows      [inputs / 4][rows of a tile][4]  signed bytes
    sums      [rows of a tile][32 outputs]     int32, modulo 2^32 as all of it
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba
from llvmlite import ir
from numba.core import cgutils, config
from numba.core.codegen import get_host_cpu_features
from numba.extending import intrinsic

from meshnet.engine.compiled.lanes import (
    FLOAT,
    I32,
    I64,
    INT,
    INT_VECTOR,
    LONG,
    VECTOR,
    Lanes,
    call,
    spread,
)

PANEL = 32
"""Outputs of a panel."""
ROWS_MAX = 12
"""Rows of a tile."""
PANEL_STEP = PANEL * 4
"""Bytes of a panel for four inputs."""


@dataclass(frozen=True, slots=True)
class Way:
    """How sums are done."""

    name: str
    lanes: int
    rows: int
    """That are summed at once."""
    instruction: str
    """LLVM's name of it; empty: none in particular."""


WAYS = (
    Way("wide", 16, 12, "llvm.x86.avx512.vpdpbusd.512"),
    Way("narrow", 8, 2, "llvm.x86.avx512.vpdpbusd.256"),
    Way("pairs", 8, 2, "llvm.x86.avx2.pmadd.wd"),
    Way("plain", 8, 2, ""),
)


def way_of_host() -> Way:
    """Return the best way that the processor compiled for can go."""
    told = config.CPU_FEATURES
    features = set((get_host_cpu_features() if told is None else told).split(","))
    wide, narrow, pairs, plain = WAYS
    if {"+avx512f", "+avx512vnni"} <= features:
        return wide
    if "+avxvnni" in features or {"+avx512vl", "+avx512vnni"} <= features:
        return narrow
    return pairs if "+avx2" in features else plain


def summing(way: Way, rows: int, ahead: int = 0) -> Any:
    """Return an intrinsic that writes the sums of a tile of so many rows.

    ahead: bytes by which weights are asked for before they are needed.
    """

    @intrinsic
    def sums(context: Any, weights: Any, levels: Any, steps: Any, out: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            for start in range(0, rows, way.rows):
                some = range(start, min(start + way.rows, rows))
                _sum_rows(builder, way, rows, some, ahead, arguments)
            return context.get_dummy_value()

        return numba.void(I64, I64, I64, I64), generate

    return sums


def _sum_rows(builder: Any, way: Way, rows: int, some: range, ahead: int, arguments: Any) -> None:
    weights, levels, steps, out = arguments
    vector, count = ir.VectorType(INT, way.lanes), PANEL // way.lanes
    zero = ir.Constant(vector, [0] * way.lanes)
    places = range(len(some) * count)
    totals = [cgutils.alloca_once_value(builder, zero) for _ in places]
    with cgutils.for_range(builder, steps) as loop:
        at = builder.add(weights, builder.mul(loop.index, LONG(PANEL_STEP)))
        parts = [_load(builder, at, i * way.lanes * 4, vector) for i in range(count)]
        if ahead:
            for line in range(0, PANEL_STEP, 64):
                _ask_for(builder, at, ahead + line)
        row_at = builder.add(levels, builder.mul(loop.index, LONG(rows * 4)))
        for number, row in enumerate(some):
            four = spread(builder, _load(builder, row_at, row * 4, INT), way.lanes)
            for i, part in enumerate(parts):
                total = totals[number * count + i]
                builder.store(_dot(builder, way, builder.load(total), part, four), total)
    for place in places:
        to = builder.add(out, LONG((some.start * count + place) * way.lanes * 4))
        builder.store(
            builder.load(totals[place]), builder.inttoptr(to, vector.as_pointer()), align=4
        )


def _dot(builder: Any, way: Way, total: Any, weights: Any, levels: Any) -> Any:
    """Add four products of bytes to each lane."""
    if not way.instruction:
        return _dot_plainly(builder, total, weights, levels)
    if way.name == "pairs":
        return _dot_by_pairs(builder, way, total, weights, levels)
    return call(builder, way.instruction, total.type, [total, weights, levels])


def _dot_by_pairs(builder: Any, way: Way, total: Any, weights: Any, levels: Any) -> Any:
    """Every second byte at a time, as 16 bits."""
    halves = ir.VectorType(ir.IntType(16), 2 * way.lanes)
    weights, levels = (builder.bitcast(each, halves) for each in (weights, levels))
    byte, low = _all(halves, 8), _all(halves, 0xFF)
    for weight, level in (
        (builder.and_(weights, low), builder.ashr(builder.shl(levels, byte), byte)),
        (builder.lshr(weights, byte), builder.ashr(levels, byte)),
    ):
        total = builder.add(total, call(builder, way.instruction, total.type, [weight, level]))
    return total


def _dot_plainly(builder: Any, total: Any, weights: Any, levels: Any) -> Any:
    kind = total.type
    for byte in range(4):
        weight = builder.and_(builder.lshr(weights, _all(kind, 8 * byte)), _all(kind, 0xFF))
        level = builder.shl(levels, _all(kind, 24 - 8 * byte))
        level = builder.ashr(level, _all(kind, 24))
        total = builder.add(total, builder.mul(weight, level))
    return total


def _all(kind: Any, number: int) -> Any:
    return ir.Constant(kind, [number] * kind.count)


def _load(builder: Any, address: Any, offset: int, kind: Any) -> Any:
    at = builder.add(address, LONG(offset))
    return builder.load(builder.inttoptr(at, kind.as_pointer()), align=4)


def _ask_for(builder: Any, address: Any, offset: int) -> None:
    at = builder.inttoptr(builder.add(address, LONG(offset)), ir.PointerType())
    kind = ir.FunctionType(ir.VoidType(), [at.type, INT, INT, INT])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    builder.call(function, [at, INT(0), INT(3), INT(1)])


@intrinsic
def room_for_sums(context: Any) -> Any:
    """Address of memory of the calling function for the sums of a tile of any size."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        room = cgutils.alloca_once(builder, ir.ArrayType(INT_VECTOR, ROWS_MAX * PANEL // 16))
        return builder.ptrtoint(room, LONG)

    return I64(), generate


def _wholes(read: Any, made: Any, result: Any) -> Any:
    @intrinsic
    def whole(context: Any, address: Any, index: Any, added: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            address, index, added = arguments
            at = builder.add(address, builder.mul(index, LONG(4)))
            sums = builder.load(builder.inttoptr(at, read.as_pointer()), align=4)
            if read == INT_VECTOR:
                added = spread(builder, added)
            return builder.sitofp(builder.add(sums, added), made)

        return result(I64, I64, I32), generate

    return whole


whole_lanes = _wholes(INT_VECTOR, VECTOR, Lanes)
"""The 16 int32 from `index` on and a number added to each, as fp32."""
whole = _wholes(INT, FLOAT, numba.float32)
"""One int32 and a number added to it, as fp32."""


@intrinsic
def put_fours(context: Any, address: Any, stride: Any, count: Any, shifted: Any) -> Any:
    """Write signed bytes, four by four, `stride` bytes apart.

    Args:
        count: fours to write, 1 to 4.
        shifted: `NEAREST` + 128 and the whole numbers, of -128 to 127.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address, stride, count, shifted = arguments
        small = builder.trunc(
            builder.bitcast(shifted, INT_VECTOR), ir.VectorType(ir.IntType(8), 16)
        )
        fours = builder.bitcast(small, ir.VectorType(INT, 4))
        fours = builder.xor(fours, ir.Constant(fours.type, [0x80808080] * 4))
        for number in range(4):
            with builder.if_then(builder.icmp_signed(">", count, LONG(number))):
                at = builder.add(address, builder.mul(stride, LONG(number)))
                four = builder.extract_element(fours, INT(number))
                builder.store(four, builder.inttoptr(at, INT.as_pointer()), align=4)
        return context.get_dummy_value()

    return numba.void(I64, I64, I64, Lanes), generate


@intrinsic
def some_lanes(context: Any, address: Any, index: Any, count: Any) -> Any:
    """The `count` values from `index` on, and zeros; memory behind them is not read."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address, index, count = arguments
        numbers = ir.Constant(INT_VECTOR, list(range(16)))
        inside = builder.icmp_signed("<", numbers, spread(builder, builder.trunc(count, INT)))
        at = builder.inttoptr(builder.add(address, builder.mul(index, LONG(4))), ir.PointerType())
        zeros = ir.Constant(VECTOR, [0.0] * 16)
        return call(builder, "llvm.masked.load.v16f32.p0", VECTOR, [at, INT(4), inside, zeros])

    return Lanes(I64, I64, I64), generate


@intrinsic
def whole_number(context: Any, value: Any) -> Any:
    """The int32 of a whole number; 0 of NaN."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return call(builder, "llvm.fptosi.sat.i32.f32", INT, arguments)

    return I32(numba.float32), generate
