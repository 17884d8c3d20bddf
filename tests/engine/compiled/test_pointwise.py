"""What a compiled step does to rows between its products, against fp64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from meshnet.engine.compiled import lanes
from meshnet.engine.compiled.pointwise import gate_levels, norm_levels, norms, row_levels
from meshnet.engine.compiled.products import levels_bytes
from meshnet.engine.linear import LEVELS, REST

EPS = np.float32(1e-5)
WIDTHS = (16, 64, 70, 130, 576)
HALF_A_LEVEL = 0.5 / LEVELS
"""Of a row's largest value: what one row of levels loses; with rests 1 / `REST` of it."""


def _drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _row_norm(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.double()
    return wide * (wide.square().mean(-1, keepdim=True) + float(EPS)).rsqrt() * weight.double()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("parts", [1, 3])
def test_a_norm_is_that_of_fp64_but_for_rounding(width: int, parts: int):
    x, weight, out = _drawn(5, width).mul_(7), _drawn(width, seed=1), torch.empty(5, width)

    for part in range(parts):
        norms(x.data_ptr(), weight.data_ptr(), EPS, out.data_ptr(), 5, width, part, parts)

    expected = _row_norm(x, weight)
    assert float(((out - expected).abs() / expected.abs().amax(-1, keepdim=True)).max()) < 1e-6


def _levels(loop: Any, before: tuple[Any, ...], rows: int, width: int, pair: int) -> Tensor:
    """What the levels of rows stand for, by a row of each that a block holds."""
    own = torch.empty(width)
    levels = torch.zeros(levels_bytes.py_func(rows, width, pair), dtype=torch.int8)
    steps, sums = torch.empty(rows), torch.empty(rows * pair, dtype=torch.int32)
    memory = [each.data_ptr() for each in (levels, steps, sums)]
    between = (own.data_ptr(),) if loop is not row_levels else ()
    loop(*before, rows, width, pair, *between, *memory, 0, 1)
    fours = -(-width // 4)
    block = levels.numel() // (fours * 4)
    by_row = levels.view(fours, block, 4).transpose(0, 1).reshape(block, -1)[:, :width].double()
    whole, rest = by_row[0 : rows * pair : pair], by_row[1 : rows * pair : pair]
    return (whole + rest / REST if pair == 2 else whole) * steps[:, None].double()


def _assert_meant(got: Tensor, expected: Tensor, pair: int) -> None:
    scale = expected.abs().amax(-1, keepdim=True)
    bound = HALF_A_LEVEL / (REST if pair == 2 else 1)
    assert float(((got - expected).abs() / scale).max()) < bound + 1e-6


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("pair", [1, 2])
def test_levels_stand_for_rows_and_for_normed_rows(width: int, pair: int):
    x, weight = _drawn(4, width), _drawn(width, seed=1)

    plain = _levels(row_levels, (x.data_ptr(),), 4, width, pair)
    normed = _levels(norm_levels, (x.data_ptr(), weight.data_ptr(), EPS), 4, width, pair)

    _assert_meant(plain, x.double(), pair)
    _assert_meant(normed, _row_norm(x, weight), pair)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("pair", [1, 2])
def test_what_is_let_up_is_the_gates_silu_times_it(width: int, pair: int):
    product = _drawn(4, 2 * width).mul_(3)

    let_up = _levels(gate_levels, (product.data_ptr(),), 4, width, pair)

    gate, up = product.double().chunk(2, -1)
    _assert_meant(let_up, torch.nn.functional.silu(gate) * up, pair)


def test_the_exponential_is_off_by_two_units_at_most():
    x = np.linspace(-87, 88, 30011).astype(np.float32)
    expected = np.exp(x.astype(np.float64))

    got = np.array([lanes.exp(value) for value in x])

    assert np.array_equal(got, got.astype(np.float32))
    assert np.max(np.abs(got - expected) / np.spacing(expected.astype(np.float32))) <= 2


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_number_stays_in_its_row(value: float):
    x, weight, out = _drawn(3, 70), torch.ones(70), torch.empty(3, 70)
    x[1, 66] = value

    norms(x.data_ptr(), weight.data_ptr(), EPS, out.data_ptr(), 3, 70, 0, 1)

    assert not torch.isfinite(out[1]).all()
    assert torch.isfinite(out[[0, 2]]).all()


def test_a_row_of_zeros_stays_zero():
    x, weight, out = torch.zeros(1, 70), torch.ones(70), torch.ones(1, 70)

    norms(x.data_ptr(), weight.data_ptr(), EPS, out.data_ptr(), 1, 70, 0, 1)

    assert not out.any()
    assert not _levels(row_levels, (x.data_ptr(),), 1, 70, 2).any()
