"""A step of the short forward: all rows through all layers in one call.

    hidden --norm, levels--> qkv --> rotary, K/V, attention --> levels --> out -+--> hidden
    hidden --norm, levels--> gate, up --> silu * --> levels --> down -----------+--> hidden
    hidden --norm--> what leaves, or --norm, levels--> head --> logits

Nothing of Python runs between two layers: in a small model that is most of what a token costs
beside reading the weights. Records (records.py) say where everything is. Several threads may run
the same step, each with its own `part` of `parts`; they meet between the phases.

Invariants
    * a row's bits depend on that row and its session's positions alone (products.py, attention.py);
    * how a step is shared among threads changes no bit.
"""

from __future__ import annotations

import numba

from meshnet.engine.compiled.attention import attend
from meshnet.engine.compiled.cache import compiled
from meshnet.engine.compiled.clock import started, stopped
from meshnet.engine.compiled.lanes import get, get_long, put
from meshnet.engine.compiled.meeting import meet
from meshnet.engine.compiled.placing import place
from meshnet.engine.compiled.pointwise import gate_levels, norm_levels, norms, row_levels
from meshnet.engine.compiled.products import multiply
from meshnet.engine.compiled.records import (
    Ends,
    Layer,
    Room,
    Segment,
    Shape,
    reader,
    record_bytes,
)

_plain = numba.njit(error_model="numpy")
_layer_at, _shape_at, _segment_at = reader(Layer), reader(Shape), reader(Segment)
_room_at, _ends_at = reader(Room), reader(Ends)
_LAYER_BYTES, _SEGMENT_BYTES = record_bytes(Layer), record_bytes(Segment)


@_plain
def _multiply(
    room, rows, pair, weights, scales, bias, inputs, outputs, out, add, meetings, part, parts
):
    """Multiply the room's levels into `out`; all threads are through when it returns."""
    multiply(
        room.levels, room.steps, room.sums, rows, pair,
        weights, scales, bias, inputs, outputs, out, add, part, parts,
    )  # fmt: skip
    return meet(room.meeting, meetings, parts)


@_plain
def _norm_levels(norm, eps, room, rows, shape, meetings, part, parts):
    """Levels of the room's hidden rows, normed; all threads are through when it returns."""
    norm_levels(
        room.hidden, norm, eps, rows, shape.hidden, shape.pair, room.own + part * room.own_bytes,
        room.levels, room.steps, room.sums, part, parts,
    )  # fmt: skip
    return meet(room.meeting, meetings, parts)


@_plain
def _attended(index, layer, shape, segments, count, room, meetings, part, parts):
    """From the product of queries, keys and values to what every row attends to."""
    scratch = room.scratch + part * room.scratch_bytes
    wide = (shape.queries + 2 * shape.keys) * shape.size * 4
    narrow = shape.queries * shape.size * 4
    for number in range(count):
        segment = _segment_at(segments + number * _SEGMENT_BYTES)
        place(
            room.product + segment.start * wide, layer.head_norms, layer.head_eps,
            segment.cosine, segment.sine, room.queries + segment.start * narrow,
            segment.cells, index, segment.past, segment.length,
            shape.queries, shape.keys, shape.size, scratch, part, parts,
        )  # fmt: skip
    meetings = meet(room.meeting, meetings, parts)
    counter = room.attention if part == 0 else 0
    began = started(counter)
    for number in range(count):
        segment = _segment_at(segments + number * _SEGMENT_BYTES)
        at = segment.start * narrow
        attend(
            room.queries + at, room.attended + at, segment.cells, index, segment.past,
            segment.length, shape.queries, shape.keys, shape.size, shape.scaling, layer.window,
            scratch, part, parts,
        )  # fmt: skip
    meetings = meet(room.meeting, meetings, parts)
    stopped(counter, began)
    return meetings


@_plain
def _gather(values, chosen, count, width, by):
    """Move the rows chosen to the front, by way of `by`."""
    for number in range(count):
        row = values + get_long(chosen, number) * width * 4
        for i in range(width):
            put(by, number * width + i, get(row, i))
    for i in range(count * width):
        put(values, i, get(by, i))


@_plain
def _mixed(layer, shape, room, rows, meetings, part, parts):
    """From what rows attend to through the rest of a layer."""
    heads = shape.queries * shape.size
    row_levels(
        room.attended, rows, heads, shape.pair, room.levels, room.steps, room.sums, part, parts
    )
    meetings = meet(room.meeting, meetings, parts)
    meetings = _multiply(
        room, rows, shape.pair, layer.out, layer.out_scales, layer.out_bias, heads, shape.hidden,
        room.hidden, 1, meetings, part, parts,
    )  # fmt: skip
    meetings = _norm_levels(layer.mlp_norm, layer.mlp_eps, room, rows, shape, meetings, part, parts)
    meetings = _multiply(
        room, rows, shape.pair, layer.gate_up, layer.gate_up_scales, layer.gate_up_bias,
        shape.hidden, 2 * shape.inner, room.product, 0, meetings, part, parts,
    )  # fmt: skip
    gate_levels(
        room.product, rows, shape.inner, shape.pair, room.own + part * room.own_bytes,
        room.levels, room.steps, room.sums, part, parts,
    )  # fmt: skip
    meetings = meet(room.meeting, meetings, parts)
    return _multiply(
        room, rows, shape.pair, layer.down, layer.down_scales, layer.down_bias, shape.inner,
        shape.hidden, room.hidden, 1, meetings, part, parts,
    )  # fmt: skip


@_plain
def _ended(ends, shape, room, rows, meetings, part, parts):
    """The final norm, and logits if there is a head."""
    if ends.head == 0:
        norms(room.hidden, ends.norm, ends.eps, ends.normed, rows, shape.hidden, part, parts)
        return meet(room.meeting, meetings, parts)
    meetings = _norm_levels(ends.norm, ends.eps, room, rows, shape, meetings, part, parts)
    return _multiply(
        room, rows, shape.pair, ends.head, ends.head_scales, ends.head_bias, shape.hidden,
        ends.outputs, ends.logits, 0, meetings, part, parts,
    )  # fmt: skip


@compiled("layers first stop shape segments count room ends part parts")
def run(layers, first, stop, shape, segments, count, room, ends, part, parts):
    """Run layers [first, stop) of those held, and what follows them.

    All arguments but the counts are addresses of records; each thread of `parts` calls this.
    """
    shape, room, ends = _shape_at(shape), _room_at(room), _ends_at(ends)
    rows, meetings = room.rows, 1
    for index in range(first, stop):
        layer = _layer_at(layers + index * _LAYER_BYTES)
        meetings = _norm_levels(
            layer.norm, layer.norm_eps, room, rows, shape, meetings, part, parts
        )
        outputs = (shape.queries + 2 * shape.keys) * shape.size
        meetings = _multiply(
            room, rows, shape.pair, layer.qkv, layer.qkv_scales, layer.qkv_bias, shape.hidden,
            outputs, room.product, 0, meetings, part, parts,
        )  # fmt: skip
        meetings = _attended(
            index - first, layer, shape, segments, count, room, meetings, part, parts
        )
        if index == stop - 1 and room.kept_count >= 0:
            rows = room.kept_count
            if part == 0:
                _gather(room.attended, room.kept, rows, shape.queries * shape.size, room.product)
                _gather(room.hidden, room.kept, rows, shape.hidden, room.product)
            meetings = meet(room.meeting, meetings, parts)
        meetings = _mixed(layer, shape, room, rows, meetings, part, parts)
    if ends.norm != 0:
        _ended(ends, shape, room, rows, meetings, part, parts)
