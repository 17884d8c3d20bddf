"""A stopwatch within compiled code, for who profiles a step that is one call.

`counter` is the address of a count of nanoseconds, or 0: then nothing is timed.
"""

from __future__ import annotations

import sys
from typing import Any

from llvmlite import ir
from numba.extending import intrinsic

from meshnet.engine.compiled.lanes import I64, INT, LONG, get_long, inlined, put_long

_MONOTONIC = 6 if sys.platform == "darwin" else 1


@intrinsic
def _nanoseconds(context: Any) -> Any:
    """The system's monotonic clock."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(INT, [INT, LONG.as_pointer()])
        name = "clock_gettime"
        read = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
        with builder.goto_entry_block():
            time = builder.alloca(LONG, 2)
        builder.call(read, [INT(_MONOTONIC), time])
        seconds, rest = (builder.load(builder.gep(time, [INT(at)])) for at in (0, 1))
        return builder.add(builder.mul(seconds, LONG(10**9)), rest)

    return I64(), generate


@inlined
def started(counter):
    """What `stopped` is to be told."""
    return _nanoseconds() if counter != 0 else 0


@inlined
def stopped(counter, began):
    """Add the time since `started` to the count."""
    if counter != 0:
        put_long(counter, 0, get_long(counter, 0) + _nanoseconds() - began)
