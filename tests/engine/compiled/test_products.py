"""Compiled products have the bits of the operators they stand for, in any company and shares."""

from __future__ import annotations

import numba
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from meshnet.engine.compiled.dots import WAYS, way_of_host
from meshnet.engine.compiled.lanes import SMALLEST_BITS, get, larger
from meshnet.engine.compiled.product import CompiledProduct, Panels
from meshnet.engine.compiled.products import INPUTS_MAX, levels_bytes, multiplying, put_levels
from meshnet.engine.linear import Int8Linear, quantised
from meshnet.engine.linear_products import IntegerProduct, PackedProduct

SHAPES = ((32, 64), (96, 64), (33, 97), (1, 1), (17, 5), (100, 31), (224, 576), (64, 1536))


def _layer_by(multiply):
    """A whole layer in one call, shared among parts."""

    @numba.njit(error_model="numpy")
    def layer(
        values, rows, width, pair, levels, steps, sums, weights, scales, bias, outputs, out, add,
        part, parts,
    ):  # fmt: skip
        for row in range(rows):
            at, top = values + row * width * 4, SMALLEST_BITS
            for i in range(width):
                top = larger(top, get(at, i))
            put_levels(at, row, rows, width, pair, top, levels, steps, sums)
        multiply(
            levels, steps, sums, rows, pair, weights, scales, bias, width, outputs, out, add,
            part, parts,
        )  # fmt: skip

    return layer


LAYERS = {way.name: _layer_by(multiplying(way)) for way in WAYS[WAYS.index(way_of_host()) :]}
"""By the ways that this processor can go, compiled at the first call and not kept."""


def _compiled(
    x: Tensor, levels: Tensor, scales: Tensor, bias: Tensor | None, pair: int,
    *, way: str = way_of_host().name, parts: int = 1, onto: Tensor | None = None,
) -> Tensor:  # fmt: skip
    rows, width = x.shape
    panels = Panels(levels)
    own = torch.empty(levels_bytes.py_func(rows, width, pair), dtype=torch.uint8)
    steps, sums = torch.empty(rows), torch.empty(rows * pair, dtype=torch.int32)
    out = torch.full((rows, len(scales)), torch.nan) if onto is None else onto
    for part in range(parts):
        LAYERS[way](
            x.data_ptr(), rows, width, pair, own.data_ptr(), steps.data_ptr(), sums.data_ptr(),
            panels.weights.data_ptr(), scales.data_ptr(), 0 if bias is None else bias.data_ptr(),
            len(scales), out.data_ptr(), int(onto is not None), part, parts,
        )  # fmt: skip
    return out


def _weights(outputs: int, inputs: int, seed: int, *, full: bool = False) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn((outputs, inputs), generator=generator)
    return quantised(values.sign() if full else values)


def _rows(count: int, inputs: int, seed: int, *, full: bool = False) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn((count, inputs), generator=generator)
    return (values.sign() if full else values) * torch.logspace(-4, 4, count)[:, None]


def _expected(x: Tensor, levels: Tensor, scales: Tensor, bias: Tensor | None, pair: int) -> Tensor:
    product = PackedProduct(levels, scales)
    return Int8Linear(product, scales, bias, inputs=x.shape[1], rows=pair)(x)


@pytest.mark.parametrize("way", LAYERS)
@pytest.mark.parametrize("pair", [1, 2])
@given(
    shape=st.sampled_from(SHAPES),
    rows=st.integers(1, 70),
    seed=st.integers(0, 1000),
    full=st.booleans(),
    biased=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_the_bits_are_those_of_the_packed_operator(
    way: str, pair: int, shape: tuple[int, int], rows: int, seed: int, full: bool, biased: bool
):
    levels, scales = _weights(*shape, seed, full=full)
    x = _rows(rows, shape[1], seed + 1, full=full)
    bias = torch.linspace(-3, 3, shape[0]) if biased else None

    got = _compiled(x, levels, scales, bias, pair, way=way)

    assert torch.equal(got, _expected(x, levels, scales, bias, pair))


@pytest.mark.parametrize("way", LAYERS)
@pytest.mark.parametrize("pair", [1, 2])
def test_every_number_of_rows_up_to_seventy_has_the_bits_of_the_packed_operator(
    way: str, pair: int
):
    levels, scales = _weights(40, 70, 1)
    x = _rows(70, 70, 2)
    expected = _expected(x, levels, scales, None, pair)

    for rows in range(1, 71):
        assert torch.equal(
            _compiled(x[:rows], levels, scales, None, pair, way=way), expected[:rows]
        )


@pytest.mark.parametrize("pair", [1, 2])
def test_rounding_is_that_of_the_packed_operator_for_many_rows(pair: int):
    """A value just below one half is rare, and which way it goes is a matter of one addition."""
    levels, scales = _weights(32, 576, 3)
    x = _rows(4000, 576, 4)

    assert torch.equal(
        _compiled(x, levels, scales, None, pair), _expected(x, levels, scales, None, pair)
    )


@pytest.mark.parametrize("way", LAYERS)
@given(shape=st.sampled_from(SHAPES), rows=st.integers(1, 30), parts=st.integers(1, 7))
@settings(max_examples=30, deadline=None)
def test_shares_change_no_bit_and_leave_nothing_out(
    way: str, shape: tuple[int, int], rows: int, parts: int
):
    levels, scales = _weights(*shape, 5)
    x, bias = _rows(rows, shape[1], 6), torch.linspace(-1, 1, shape[0])

    shared = _compiled(x, levels, scales, bias, 2, way=way, parts=parts)

    assert torch.equal(shared, _compiled(x, levels, scales, bias, 2, way=way))


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_result_can_be_added_to_what_is_there(shape: tuple[int, int], parts: int):
    levels, scales = _weights(*shape, 7)
    x, there = _rows(9, shape[1], 8), _rows(9, shape[0], 9)
    bias = torch.linspace(-1, 1, shape[0])

    added = _compiled(x, levels, scales, bias, 2, parts=parts, onto=there.clone())

    assert torch.equal(added, _expected(x, levels, scales, bias, 2) + there)


def test_nothing_is_written_behind_the_results_and_nothing_read_behind_the_rows():
    """What lies behind the last row is no number here."""
    levels, scales = _weights(33, 97, 10)
    values = torch.full((8, 97), torch.nan)
    values[:7] = _rows(7, 97, 11)
    out = torch.zeros((8, 33))
    out[7] = 5

    _compiled(values[:7], levels, scales, None, 2, onto=out[:7])

    assert torch.equal(out[:7], _expected(values[:7], levels, scales, None, 2))
    assert torch.equal(out[7], torch.full((33,), 5.0))


@pytest.mark.parametrize("way", LAYERS)
@pytest.mark.parametrize("pair", [1, 2])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_no_number_in_a_row_spoils_all_of_it_and_no_other(way: str, pair: int, bad: float):
    levels, scales = _weights(40, 50, 12)
    x = _rows(27, 50, 13)
    clean = _compiled(x, levels, scales, None, pair, way=way)
    x[13, 49] = bad

    spoilt = _compiled(x, levels, scales, None, pair, way=way)

    assert not torch.isfinite(spoilt[13]).any()
    others = [row for row in range(27) if row != 13]
    assert torch.equal(spoilt[others], clean[others])


def test_rows_of_zeros_yield_zeros():
    levels, scales = _weights(40, 50, 14)

    assert torch.equal(_compiled(torch.zeros(3, 50), levels, scales, None, 2), torch.zeros(3, 40))


@pytest.mark.parametrize("way", LAYERS)
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_sums_there_can_be_are_exact(way: str, sign: int):
    """All inputs and all weights at full range: no sum of fewer bits would hold it."""
    levels = torch.full((2, INPUTS_MAX), 127, dtype=torch.int8)
    levels[1] = -127
    x = torch.full((1, INPUTS_MAX), float(sign * 127))

    got = _compiled(x, levels, torch.ones(2), None, 1, way=way)

    assert got.tolist() == [[sign * 127.0 * 127 * INPUTS_MAX, -sign * 127.0 * 127 * INPUTS_MAX]]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_weights_can_be_taken_out_again(shape: tuple[int, int]):
    levels, scales = _weights(*shape, 15)

    taken, their_scales = CompiledProduct(levels, scales).unpacked()

    assert torch.equal(taken, levels)
    assert torch.equal(their_scales, scales)


def test_a_product_takes_levels_as_the_others_do():
    levels, scales = _weights(96, 64, 16)
    rows = torch.randint(-127, 128, (9, 64), generator=torch.Generator().manual_seed(1)).float()

    result = CompiledProduct(levels, scales)(rows)

    assert torch.equal(result, IntegerProduct(levels, scales)(rows))
    assert torch.equal(result, PackedProduct(levels, scales)(rows))


def test_neither_rows_nor_biases_need_lie_one_behind_the_other():
    levels, scales = _weights(96, 64, 17)
    x, biases = _rows(64, 9, 18), _rows(96, 2, 19)

    got = CompiledProduct(levels, scales).linear(x.t(), biases[:, 1], 2)

    expected = _expected(x.t().contiguous(), levels, scales, biases[:, 1].contiguous(), 2)
    assert torch.equal(got, expected)


def test_rows_of_another_width_are_refused():
    """Loops would read what lies behind them."""
    product = CompiledProduct(*_weights(96, 64, 17))

    with pytest.raises(RuntimeError, match="expected rows of 64 values, got 60"):
        product.linear(torch.zeros(2, 60), None, 2)


def test_products_of_whole_panels_are_joined_as_they_are():
    parts = [_weights(outputs, 70, outputs) for outputs in (64, 32, 33)]
    products = [CompiledProduct(*part) for part in parts]

    joined = CompiledProduct.joined(products)

    assert joined is not None
    assert torch.equal(joined.unpacked()[0], torch.cat([levels for levels, _ in parts]))
    x = _rows(5, 70, 19)
    apart = torch.cat([product.linear(x, None, 2) for product in products], dim=1)
    assert torch.equal(joined.linear(x, None, 2), apart)


def test_products_of_broken_panels_are_not_joined():
    products = [CompiledProduct(*_weights(outputs, 70, outputs)) for outputs in (33, 64)]

    assert CompiledProduct.joined(products) is None


def test_more_inputs_than_sums_can_hold_are_refused():
    with pytest.raises(RuntimeError, match="may not fit"):
        CompiledProduct(torch.zeros((1, INPUTS_MAX + 1), dtype=torch.int8), torch.ones(1))
