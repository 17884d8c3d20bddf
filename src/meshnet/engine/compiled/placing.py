"""Where queries, keys and values of a step go, once their product is there.

    product row    q heads | k heads | v heads
                   (norm), turn to queries and to the keys of the session's cells; v as it is

Invariants
    * a row's values depend on that row alone.

Legend of `cells` and `index`: see cells.py.
"""

from __future__ import annotations

import numba

from meshnet.engine.compiled.cells import GROUP
from meshnet.engine.compiled.lanes import get, get_long, inlined, put
from meshnet.engine.compiled.pointwise import normed
from meshnet.engine.kv import KEY_GRID

_plain = numba.njit(error_model="numpy")


@_plain
def place(
    product,
    norms,
    eps,
    cosine,
    sine,
    queries,
    cells,
    index,
    past,
    rows,
    query_heads,
    kv_heads,
    size,
    scratch,
    part,
    parts,
):
    """Place rows of positions [past, past + rows); `cosine` and `sine` are of the first.

    `norms`: weights of each head that is turned, or 0. `scratch`: room for a head, of this part.
    """
    held, turned = get_long(cells, index), query_heads + kv_heads
    for row in range(rows * part // parts, rows * (part + 1) // parts):
        cell, slot = get_long(held, (past + row) // KEY_GRID), (past + row) % KEY_GRID
        keys = cell + (slot // GROUP * GROUP * size + slot % GROUP) * 4
        values = cell + (kv_heads * KEY_GRID + slot) * size * 4
        turn, width = row * size * 4, (turned + kv_heads) * size
        for head in range(turned):
            at = product + (row * width + head * size) * 4
            if norms != 0:
                normed(at, norms + head * size * 4, eps, scratch, size)
                at = scratch
            if head < query_heads:
                to = queries + (row * query_heads + head) * size * 4
                _turned(at, cosine + turn, sine + turn, to, 1, size)
            else:
                to = keys + (head - query_heads) * KEY_GRID * size * 4
                _turned(at, cosine + turn, sine + turn, to, GROUP, size)
        for head in range(kv_heads):
            at = product + (row * width + (turned + head) * size) * 4
            for i in range(size):
                put(values + head * KEY_GRID * size * 4, i, get(at, i))


@inlined
def _turned(head, cosine, sine, to, step, size):
    """Write a head turned, its values `step` places apart."""
    half = size // 2
    for i in range(half):
        value = get(head, i) * get(cosine, i) + get(head, half + i) * get(sine, i)
        put(to, i * step, value)
    for i in range(half, size):
        value = get(head, i) * get(cosine, i) + get(head, i - half) * get(sine, i)
        put(to, i * step, value)
