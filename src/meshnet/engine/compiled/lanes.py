"""Values in memory and lanes of sixteen of them, as compiled loops use them.

`Lanes` are 16 fp32 values that fit a register of 512 bits: `+`, `-`, `*` and the functions here
work on all at once. What compiles to one instruction is an intrinsic; nothing is contracted or
reassociated unless it says so (`fma`).

Addresses are int64; indexes count values. Loads and stores need no alignment beyond a value's.
"""

from __future__ import annotations

import operator
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.core.datamodel.models import PrimitiveModel
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, register_model

from meshnet.engine.linear import SMALLEST

LANES = 16
F32, I32, I64 = numba.float32, numba.int32, numba.int64
NEAREST = np.float32(1.5 * 2**23)
"""Adding it to less than 2^22 rounds to a whole number, ties to even."""
NEAREST_BITS = int(NEAREST.view(np.int32))
SMALLEST_BITS = np.float32(SMALLEST).view(np.int32)
ZERO, ONE = np.float32(0), np.float32(1)
_EXP_MIN, _EXP_MAX = np.float32(-87), np.float32(88)
_LOG2_E = np.float32(1.44269504088896341)
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
"""ln 2 in two parts: whole multiples of the first are exact."""
_C0, _C1, _C2 = map(np.float32, (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3))
_C3, _C4, _C5 = map(np.float32, (4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1))

INT, LONG, FLOAT = ir.IntType(32), ir.IntType(64), ir.FloatType()
VECTOR, INT_VECTOR = ir.VectorType(FLOAT, LANES), ir.VectorType(INT, LANES)

inlined = numba.njit(forceinline=True, error_model="numpy")


class _LanesType(types.Type):
    def __init__(self) -> None:
        super().__init__(name="Lanes")


@register_model(_LanesType)
class _LanesModel(PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, VECTOR)


Lanes = _LanesType()


def pointer(builder: Any, address: Any, index: Any, kind: Any) -> Any:
    """Code for the address of a value `index` values of `kind` behind `address`."""
    return builder.gep(builder.inttoptr(address, kind.as_pointer()), [index])


def spread(builder: Any, value: Any, lanes: int = LANES) -> Any:
    """Code for a vector with `value` in all lanes."""
    kind = ir.VectorType(value.type, lanes)
    first = builder.insert_element(ir.Constant(kind, ir.Undefined), value, INT(0))
    return builder.shuffle_vector(
        first, ir.Constant(kind, ir.Undefined), ir.Constant(ir.VectorType(INT, lanes), [0] * lanes)
    )


def picked(builder: Any, vector: Any, lanes: range) -> Any:
    """Code for a vector of some lanes of another."""
    mask = ir.Constant(ir.VectorType(INT, len(lanes)), list(lanes))
    return builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), mask)


def call(builder: Any, name: str, kind: Any, arguments: Any) -> Any:
    """Code for a call of one of LLVM's intrinsics."""
    function_type = ir.FunctionType(kind, [each.type for each in arguments])
    function = builder.module.globals.get(name) or ir.Function(builder.module, function_type, name)
    return builder.call(function, arguments)


def _loading(kind: Any, result: Any, align: int) -> Any:
    @intrinsic
    def load(context: Any, address: Any, index: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            start = builder.inttoptr(arguments[0], kind.as_pointer())
            return builder.load(builder.gep(start, [arguments[1]]), align=align)

        return result(I64, I64), generate

    return load


def _storing(kind: Any, taken: Any, align: int) -> Any:
    @intrinsic
    def store(context: Any, address: Any, index: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            start = builder.inttoptr(arguments[0], kind.as_pointer())
            builder.store(arguments[2], builder.gep(start, [arguments[1]]), align=align)
            return context.get_dummy_value()

        return numba.void(I64, I64, taken), generate

    return store


get, put = _loading(FLOAT, F32, 4), _storing(FLOAT, F32, 4)
get_int, put_int = _loading(INT, I32, 4), _storing(INT, I32, 4)
get_long, put_long = _loading(LONG, I64, 8), _storing(LONG, I64, 8)


@intrinsic
def get_lanes(context: Any, address: Any, index: Any) -> Any:
    """The 16 values from `index` on: it counts values, not lanes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        at = pointer(builder, arguments[0], arguments[1], FLOAT)
        return builder.load(builder.bitcast(at, VECTOR.as_pointer()), align=4)

    return Lanes(I64, I64), generate


@intrinsic
def put_lanes(context: Any, address: Any, index: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        at = pointer(builder, arguments[0], arguments[1], FLOAT)
        builder.store(arguments[2], builder.bitcast(at, VECTOR.as_pointer()), align=4)
        return context.get_dummy_value()

    return numba.void(I64, I64, Lanes), generate


@intrinsic
def lanes_of(context: Any, value: Any) -> Any:
    """The same value in all lanes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return spread(builder, arguments[0])

    return Lanes(F32), generate


@intrinsic
def fma(context: Any, one: Any, other: Any, added: Any) -> Any:
    """one * other + added, rounded once; of values or of lanes."""
    kind = Lanes if one == Lanes else F32

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        name = "llvm.fma.v16f32" if kind == Lanes else "llvm.fma.f32"
        return call(builder, name, arguments[0].type, arguments)

    return kind(kind, kind, kind), generate


@intrinsic
def more(context: Any, one: Any, other: Any) -> Any:
    """The larger of each lane; `other` where one of them is no number."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", *arguments), *arguments)

    return Lanes(Lanes, Lanes), generate


@intrinsic
def less(context: Any, one: Any, other: Any) -> Any:
    """The smaller of each lane; `other` where one of them is no number."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.select(builder.fcmp_ordered("<", *arguments), *arguments)

    return Lanes(Lanes, Lanes), generate


@intrinsic
def within(context: Any, value: Any, start: Any, stop: Any, other: Any) -> Any:
    """Lanes of `value` from `start` up to, not with, `stop`; those of `other` elsewhere.

    Bounds may lie outside of 0 to 16, but within an int32.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value, start, stop, other = arguments
        numbers = ir.Constant(INT_VECTOR, list(range(LANES)))
        low, high = (spread(builder, builder.trunc(bound, INT)) for bound in (start, stop))
        inside = builder.and_(
            builder.icmp_signed(">=", numbers, low), builder.icmp_signed("<", numbers, high)
        )
        return builder.select(inside, value, other)

    return Lanes(Lanes, I64, I64, Lanes), generate


def _folding(combine: Any) -> Any:
    @intrinsic
    def fold(context: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            lanes, half = arguments[0], LANES // 2
            while half:
                low, high = (picked(builder, lanes, range(at, at + half)) for at in (0, half))
                lanes, half = combine(builder, low, high), half // 2
            return builder.extract_element(lanes, INT(0))

        return F32(Lanes), generate

    return fold


lanes_sum = _folding(lambda builder, low, high: builder.fadd(low, high))
"""Sum down one tree: lane i and lane i + 8, then i and i + 4, ..."""
lanes_top = _folding(
    lambda builder, low, high: builder.select(builder.fcmp_ordered(">", low, high), low, high)
)
"""The largest; of lanes that are no number nothing is said."""


def _arithmetic(function: Any, name: str) -> None:
    @infer_global(function)
    class Template(AbstractTemplate):  # type: ignore[misc]
        def generic(self, args: Any, kws: Any) -> Any:
            return signature(Lanes, Lanes, Lanes) if args == (Lanes, Lanes) else None

    @lower_builtin(function, Lanes, Lanes)
    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return getattr(builder, name)(*args)


_arithmetic(operator.add, "fadd")
_arithmetic(operator.sub, "fsub")
_arithmetic(operator.mul, "fmul")
_arithmetic(operator.truediv, "fdiv")


@intrinsic
def larger(context: Any, bits: Any, value: Any) -> Any:
    """The larger of magnitudes, the first given by its bits: they are in order, NaN last."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        one, other = arguments[0], builder.bitcast(arguments[1], INT)
        other = builder.and_(other, INT(0x7FFFFFFF))
        return builder.select(builder.icmp_signed(">", one, other), one, other)

    return I32(I32, F32), generate


@intrinsic
def real(context: Any, bits: Any) -> Any:
    """The value of these bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], FLOAT)

    return F32(I32), generate


@intrinsic
def two_to(context: Any, shifted: Any) -> Any:
    """Two to the power of a whole number to which `NEAREST` was added; of a value or of lanes."""
    kind = Lanes if shifted == Lanes else F32

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        whole = INT_VECTOR if kind == Lanes else INT
        constant = (lambda n: ir.Constant(whole, [n] * LANES)) if kind == Lanes else INT
        bits = builder.bitcast(arguments[0], whole)
        exponent = builder.shl(builder.add(bits, constant(127 - NEAREST_BITS)), constant(23))
        return builder.bitcast(exponent, arguments[0].type)

    return kind(kind), generate


@inlined
def exp(x):
    """e to the power of a value from -87 to 88, which others are taken as; NaN stays."""
    x = _EXP_MAX if x > _EXP_MAX else x
    x = _EXP_MIN if x < _EXP_MIN else x
    shifted = x * _LOG2_E + NEAREST
    whole = shifted - NEAREST
    x = (x - whole * _LN2_HIGH) - whole * _LN2_LOW
    series = ((((_C0 * x + _C1) * x + _C2) * x + _C3) * x + _C4) * x + _C5
    return (series * (x * x) + x + ONE) * two_to(shifted)


@inlined
def lanes_exp(x):
    """`exp` of each lane, the same bits."""
    x = less(lanes_of(_EXP_MAX), x)
    x = more(lanes_of(_EXP_MIN), x)
    shifted = x * lanes_of(_LOG2_E) + lanes_of(NEAREST)
    whole = shifted - lanes_of(NEAREST)
    x = (x - whole * lanes_of(_LN2_HIGH)) - whole * lanes_of(_LN2_LOW)
    series = lanes_of(_C0) * x + lanes_of(_C1)
    series = series * x + lanes_of(_C2)
    series = series * x + lanes_of(_C3)
    series = series * x + lanes_of(_C4)
    series = series * x + lanes_of(_C5)
    return (series * (x * x) + x + lanes_of(ONE)) * two_to(shifted)
