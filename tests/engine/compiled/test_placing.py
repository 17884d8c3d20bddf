"""Queries and keys are normed and turned, and go with the values to where they are read."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from meshnet.engine.compiled.cells import CellBuffer
from meshnet.engine.compiled.placing import place

EPS = np.float32(1e-5)
ROWS = 7


def _placed(
    product: Tensor, norms: Tensor | None, turns: tuple[Tensor, Tensor], held: CellBuffer,
    query_heads: int, kv_heads: int, size: int, *, parts: int = 1,
) -> Tensor:  # fmt: skip
    """The queries; keys and values are in `held`, which has room for them already."""
    rows = len(product)
    queries, scratch = torch.full((rows, query_heads, size), torch.nan), torch.empty(size)
    for part in range(parts):
        place(
            product.data_ptr(), 0 if norms is None else norms.data_ptr(), EPS,
            turns[0].data_ptr(), turns[1].data_ptr(), queries.data_ptr(), held.table, 0,
            held.length - rows, rows, query_heads, kv_heads, size, scratch.data_ptr(), part, parts,
        )  # fmt: skip
    return queries


def _turned(heads_TNS: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    cosine, sine = (turn[:, None] for turn in turns)
    return heads_TNS * cosine + heads_TNS.roll(heads_TNS.shape[-1] // 2, -1) * sine


@pytest.mark.parametrize("parts", [1, 2, 9])
@pytest.mark.parametrize("past", [0, 60, 252])
@pytest.mark.parametrize("shape", [(9, 3, 64), (2, 2, 16), (4, 1, 80), (8, 2, 128)])
def test_heads_are_turned_and_put_where_they_stay(
    shape: tuple[int, int, int], past: int, parts: int
):
    query_heads, kv_heads, size = shape
    torch.manual_seed(past)
    product = torch.randn(ROWS, (query_heads + 2 * kv_heads) * size) * 3
    cosine, sine = torch.randn(2, ROWS, size).unbind(0)
    before = torch.randn(kv_heads, past, size)
    held = CellBuffer(None, heads=kv_heads, size=size)
    room = torch.full((kv_heads, ROWS, size), torch.nan)
    held.append(torch.cat([before, room], 1), torch.cat([-before, room], 1))

    queries = _placed(product, None, (cosine, sine), held, *shape, parts=parts)

    heads_TNS = product.view(ROWS, -1, size)
    turned_TNS = _turned(heads_TNS[:, : query_heads + kv_heads], (cosine, sine))
    keys, values = held.last(past + ROWS)
    assert torch.equal(queries, turned_TNS[:, :query_heads])
    assert torch.equal(keys[:, :past], before)
    assert torch.equal(keys[:, past:], turned_TNS[:, query_heads:].transpose(0, 1))
    assert torch.equal(values[:, :past], -before)
    assert torch.equal(values[:, past:], heads_TNS[:, query_heads + kv_heads :].transpose(0, 1))


@pytest.mark.parametrize("size", [16, 64, 80, 128])
def test_heads_are_normed_before_they_are_turned(size: int):
    product, norms = torch.randn(ROWS, 4 * size) * 3, torch.rand(3, size) + 0.5
    cosine, sine = torch.randn(2, ROWS, size).unbind(0)
    held = CellBuffer(None, heads=1, size=size)
    held.append(torch.zeros(1, ROWS, size), torch.zeros(1, ROWS, size))

    queries = _placed(product, norms, (cosine, sine), held, 2, 1, size)

    heads_TNS = product.view(ROWS, 4, size)[:, :3].double()
    scales = (heads_TNS.square().mean(-1, keepdim=True) + float(EPS)).sqrt()
    expected = _turned(heads_TNS / scales * norms, (cosine, sine))
    torch.testing.assert_close(queries.double(), expected[:, :2], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(held.last(ROWS)[0][0].double(), expected[:, 2], rtol=1e-5, atol=1e-5)


def test_rows_have_the_same_bits_one_by_one():
    product, norms = torch.randn(ROWS, 4 * 80), torch.rand(3, 80)
    cosine, sine = torch.randn(2, ROWS, 80).unbind(0)
    together, alone = (CellBuffer(None, heads=1, size=80) for _ in range(2))
    room = torch.zeros(1, ROWS, 80)
    together.append(room, room)

    queries = _placed(product, norms, (cosine, sine), together, 2, 1, 80)

    for row in range(ROWS):
        alone.append(room[:, :1], room[:, :1])
        rows = slice(row, row + 1)
        turns = cosine[rows], sine[rows]
        assert torch.equal(_placed(product[rows], norms, turns, alone, 2, 1, 80), queries[rows])
    for one, other in zip(alone.last(ROWS), together.last(ROWS), strict=True):
        assert torch.equal(one, other)
