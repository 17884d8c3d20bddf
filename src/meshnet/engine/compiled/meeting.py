"""Where the threads of a step wait for each other between its phases.

A count in memory goes up by one for each thread that arrives; whoever waits spins, since the others
are a few microseconds away, and lets go of the processor when they are not: two nodes may share
the cores that each of them counts on.

Invariants
    * what a thread wrote before a meeting the others see after it.
"""

from __future__ import annotations

import sys
from typing import Any

import numba
from llvmlite import ir
from numba.extending import intrinsic

from meshnet.engine.compiled.lanes import I64, INT, LONG

SPINS = 2_000
"""About ten microseconds."""
_CAN_YIELD = sys.platform != "win32"


@intrinsic
def _arrive(context: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        at = builder.inttoptr(arguments[0], LONG.as_pointer())
        builder.atomic_rmw("add", at, LONG(1), "acq_rel")
        return context.get_dummy_value()

    return numba.void(I64), generate


@intrinsic
def _arrived(context: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        at = builder.inttoptr(arguments[0], LONG.as_pointer())
        return builder.load_atomic(at, "acquire", 8)

    return I64(I64), generate


@intrinsic
def _yield_processor(context: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if _CAN_YIELD:
            name, kind = "sched_yield", ir.FunctionType(INT, [])
            yielding = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
            builder.call(yielding, [])
        return context.get_dummy_value()

    return numba.void(), generate


@numba.njit(error_model="numpy")
def meet(count, meetings, parts):
    """Wait until all `parts` threads were at this meeting; return the number of the next one.

    `count`: address of an int64 that was 0 before the first meeting, whose number is 1.
    """
    if parts > 1:
        _arrive(count)
        spins = 0
        while _arrived(count) < meetings * parts:
            spins += 1
            if spins > SPINS:
                _yield_processor()
    return meetings + 1
