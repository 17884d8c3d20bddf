"""What a step reads: records of 64-bit fields, made in Python and read by compiled code.

`table` lays records out one after the other; `reader` makes the function that compiled code reads
one by. Whole numbers are mostly addresses; floats are fp32, in the lower half of their field.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any, NamedTuple, get_type_hints

import numpy as np
from numba.core.types import containers
from numba.extending import intrinsic

from meshnet.engine.compiled.lanes import F32, FLOAT, I64, LONG

FIELD_BYTES = 8


class Layer(NamedTuple):
    """A layer's weights, each with its scales and its bias or 0."""

    norm: int
    norm_eps: float
    qkv: int
    qkv_scales: int
    qkv_bias: int
    head_norms: int
    head_eps: float
    out: int
    out_scales: int
    out_bias: int
    mlp_norm: int
    mlp_eps: float
    gate_up: int
    gate_up_scales: int
    gate_up_bias: int
    down: int
    down_scales: int
    down_bias: int
    window: int
    """Positions up to its own that a row sees; 0 is all."""


class Shape(NamedTuple):
    """Of every layer."""

    hidden: int
    queries: int
    keys: int
    size: int
    inner: int
    pair: int
    """2 where rows' levels and their rests are multiplied, else 1."""
    scaling: float


class Segment(NamedTuple):
    """Rows of one session: the first, how many, the positions held before them."""

    start: int
    length: int
    past: int
    cosine: int
    sine: int
    cells: int


class Room(NamedTuple):
    """The memory of a step. `own` and `scratch` are of each thread: so many bytes."""

    rows: int
    hidden: int
    levels: int
    steps: int
    sums: int
    product: int
    queries: int
    attended: int
    own: int
    own_bytes: int
    scratch: int
    scratch_bytes: int
    meeting: int
    kept: int
    """Rows that leave the last layer's attention, and how many; all if that is negative."""
    kept_count: int
    attention: int
    """A count of the first thread's nanoseconds in attention, or 0."""


class Ends(NamedTuple):
    """What follows the layers: a norm unless 0, to `normed` or, if there is one, into the head."""

    norm: int
    eps: float
    normed: int
    head: int
    head_scales: int
    head_bias: int
    outputs: int
    logits: int


def table(records: Iterable[NamedTuple]) -> array[int]:
    """Records one after the other."""
    return array("q", [_field(value) for record in records for value in record])


def address(table: array[int]) -> int:
    return table.buffer_info()[0]


def record_bytes(kind: type[Any]) -> int:
    return FIELD_BYTES * len(kind._fields)


def reader(kind: type[Any]) -> Any:
    """Return the compiled function from an address to the record there."""
    fields = [F32 if hint is float else I64 for hint in get_type_hints(kind).values()]
    uniform = F32 not in fields
    made = (
        containers.NamedUniTuple(I64, len(fields), kind)
        if uniform
        else containers.NamedTuple(fields, kind)
    )

    @intrinsic
    def read(context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            values = []
            for index, field in enumerate(fields):
                start = builder.add(arguments[0], LONG(index * FIELD_BYTES))
                form = FLOAT if field == F32 else LONG
                at = builder.inttoptr(start, form.as_pointer())
                values.append(builder.load(at, align=4 if form is FLOAT else 8))
            return context.make_tuple(builder, made, values)

        return made(I64), generate

    return read


def _field(value: float) -> int:
    return int(np.float32(value).view(np.int32)) if isinstance(value, float) else value
