"""Compiled loops yield what torch's operators would, and the same bits in any company."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from meshnet.engine import fused
from meshnet.engine.linear import REST, Int8Linear

EPS = 1e-5
HEADS, KV_HEADS, SLOTS = 3, 2, 40
WIDTHS = st.sampled_from([1, 2, 7, 15, 16, 17, 63, 64, 65, 130, 576])


@dataclass(frozen=True)
class Values:
    """Random values of a call, and what its loops wrote."""

    rows: int
    width: int
    pair: bool
    seed: int = 0

    @property
    def behind(self) -> int:
        return self.rows if self.pair else 0

    def of_rows(self, *shape: int, name: str) -> Tensor:
        """Of a row the same values whatever the number of rows."""
        return self.random(16, *shape, name=name)[: self.rows].clone()

    def random(self, *shape: int, name: str) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed + sum(map(ord, name)))
        return torch.randn(shape, generator=generator) * 3

    def product(self, width: int) -> Tensor:
        levels, rests = (self.of_rows(width, name=f"product {part}") for part in ("level", "rest"))
        return torch.cat([levels, rests * 60]) if self.pair else levels

    def scales(self) -> Tensor:
        return self.of_rows(name="scales").abs() + 0.1

    def empty(self) -> Tensor:
        return torch.empty(self.rows + self.behind, self.width)


def _summed(product: Tensor, scales: Tensor, values: Values) -> Tensor:
    """What a product means, in fp64."""
    levels = product[: values.rows].double()
    if values.pair:
        levels = levels + product[values.rows :].double() / REST
    return levels * scales[:, None].double()


def _meant(levels: Tensor, scales: Tensor, values: Values) -> Tensor:
    return _summed(levels, scales, values)


class _Recording:
    """A product that keeps what enters it."""

    exact = True

    def __call__(self, rows_RK: Tensor) -> Tensor:
        self.entered = rows_RK.clone()
        return rows_RK.new_zeros((len(rows_RK), 1))

    def unpacked(self) -> tuple[Tensor, Tensor]:
        raise NotImplementedError


def _entering(x: Tensor, *, pair: bool) -> Tensor:
    """What `Int8Linear` lets enter its product: levels, and then rests."""
    product = _Recording()
    layer = Int8Linear(product, torch.ones(1), None, inputs=x.shape[1], rows=1 + pair)
    layer(x)
    if not pair:
        return product.entered
    rests, levels = product.entered.chunk(2)
    return torch.cat([levels, rests])


def _levels(values: Values) -> list[Tensor]:
    x, out, scales = (
        values.of_rows(values.width, name="x"),
        values.empty(),
        torch.empty(values.rows),
    )
    fused.levels(
        x.data_ptr(), out.data_ptr(), scales.data_ptr(), values.rows, values.width, values.behind
    )
    return [out, scales]


def _norm_levels(values: Values) -> list[Tensor]:
    x, weight = values.of_rows(values.width, name="x"), _weight(values)
    out, scales = values.empty(), torch.empty(values.rows)
    fused.norm_levels(
        x.data_ptr(),
        weight.data_ptr(),
        EPS,
        out.data_ptr(),
        scales.data_ptr(),
        values.rows,
        values.width,
        values.behind,
    )
    return [out, scales]


def _weight(values: Values) -> Tensor:
    return values.random(values.width, name="weight").abs() + 0.5


def _add(values: Values, bias: bool = True) -> list[Tensor]:
    product, scales = values.product(values.width), values.scales()
    hidden, biases = values.of_rows(values.width, name="x"), _bias(values, bias)
    fused.add(
        product.data_ptr(),
        scales.data_ptr(),
        0 if biases is None else biases.data_ptr(),
        hidden.data_ptr(),
        values.rows,
        values.width,
        values.behind,
    )
    return [hidden]


def _bias(values: Values, wanted: bool, width: int | None = None) -> Tensor | None:
    return values.random(width or values.width, name="bias") if wanted else None


def _add_norm_levels(values: Values, bias: bool = True) -> list[Tensor]:
    product, scales = values.product(values.width), values.scales()
    hidden, biases = values.of_rows(values.width, name="x"), _bias(values, bias)
    weight, out = _weight(values), values.empty()
    fused.add_norm_levels(
        product.data_ptr(),
        scales.data_ptr(),
        0 if biases is None else biases.data_ptr(),
        hidden.data_ptr(),
        weight.data_ptr(),
        EPS,
        out.data_ptr(),
        values.rows,
        values.width,
        values.behind,
    )
    return [out, scales, hidden]


def _gate_levels(values: Values, bias: bool = True) -> list[Tensor]:
    product, scales, out = values.product(2 * values.width), values.scales(), values.empty()
    biases = _bias(values, bias, 2 * values.width)
    fused.gate_levels(
        product.data_ptr(),
        scales.data_ptr(),
        0 if biases is None else biases.data_ptr(),
        out.data_ptr(),
        scales.data_ptr(),
        values.rows,
        values.width,
        values.behind,
    )
    return [out, scales]


def _heads(values: Values, bias: bool = True, normed: bool = True) -> list[Tensor]:
    """Heads of an even size; the first row goes to slot 5."""
    size, turned = 2 * values.width, HEADS + KV_HEADS
    product, scales = values.product((turned + KV_HEADS) * size), values.scales()
    biases = _bias(values, bias, (turned + KV_HEADS) * size)
    norms = values.random(turned, size, name="norms").abs() + 0.5 if normed else None
    cosine, sine = (values.of_rows(size, name=name) for name in ("cosine", "sine"))
    queries = torch.zeros(values.rows, HEADS, size)
    keys, kept = (torch.zeros(KV_HEADS, SLOTS, size) for _ in range(2))
    scratch = torch.empty(size)
    fused.heads(
        product.data_ptr(),
        scales.data_ptr(),
        0 if biases is None else biases.data_ptr(),
        0 if norms is None else norms.data_ptr(),
        EPS,
        cosine.data_ptr(),
        sine.data_ptr(),
        scratch.data_ptr(),
        queries.data_ptr(),
        keys[:, 5:].data_ptr(),
        kept[:, 5:].data_ptr(),
        values.rows,
        values.behind,
        HEADS,
        turned,
        size,
        SLOTS,
    )
    rows = slice(5, 5 + values.rows)
    assert not keys[:, 5 + values.rows :].any()
    assert not keys[:, :5].any()
    return [queries, keys[:, rows].transpose(0, 1), kept[:, rows].transpose(0, 1)]


LOOPS: dict[str, Callable[[Values], list[Tensor]]] = {
    "levels": _levels,
    "norm_levels": _norm_levels,
    "add": _add,
    "add_norm_levels": _add_norm_levels,
    "gate_levels": _gate_levels,
    "heads": _heads,
}


@pytest.mark.parametrize("name", LOOPS)
@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    width=WIDTHS,
    rows=st.integers(2, 9),
    pair=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_a_row_has_the_same_bits_in_any_company(
    name: str, width: int, rows: int, pair: bool, seed: int
):
    alone = LOOPS[name](Values(1, width, pair, seed))

    together = LOOPS[name](Values(rows, width, pair, seed))

    for one, many in zip(alone, together, strict=True):
        assert torch.equal(one[0], many[0])
        if len(one) == 2:
            assert torch.equal(one[1], many[rows])


@pytest.mark.parametrize("pair", [True, False])
@pytest.mark.parametrize("width", [1, 17, 576, 5632])
def test_levels_are_the_bits_that_int8_layers_make(width: int, pair: bool):
    values = Values(7, width, pair)
    x = values.of_rows(width, name="x")

    levels, _ = _levels(values)

    assert torch.equal(levels, _entering(x, pair=pair))


@pytest.mark.parametrize("pair", [True, False])
@pytest.mark.parametrize("width", [1, 17, 576, 5632])
def test_a_norm_is_that_of_fp64_but_for_rounding(width: int, pair: bool):
    values = Values(5, width, pair)
    x, weight = values.of_rows(width, name="x").double(), _weight(values).double()
    expected = x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * weight

    levels, scales = _norm_levels(values)

    _assert_close(_meant(levels, scales, values), expected)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("pair", [True, False])
@pytest.mark.parametrize("width", [3, 576])
def test_products_are_added_and_normed(width: int, pair: bool, bias: bool):
    values = Values(5, width, pair)
    expected = values.of_rows(width, name="x").double()
    expected += _summed(values.product(width), values.scales(), values)
    expected += values.random(width, name="bias") if bias else 0
    normed = expected / (expected.square().mean(-1, keepdim=True) + EPS).sqrt() * _weight(values)

    levels, scales, hidden = _add_norm_levels(values, bias)
    (added,) = _add(values, bias)

    assert torch.equal(added, hidden)
    _assert_close(hidden, expected)
    _assert_close(_meant(levels, scales, values), normed)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("pair", [True, False])
@pytest.mark.parametrize("width", [3, 1536])
def test_what_is_let_up_is_the_gates_silu_times_it(width: int, pair: bool, bias: bool):
    values = Values(5, width, pair)
    both = _summed(values.product(2 * width), values.scales(), values)
    both += values.random(2 * width, name="bias") if bias else 0
    gate, up = both.chunk(2, -1)

    levels, scales = _gate_levels(values, bias)

    _assert_close(_meant(levels, scales, values), gate * gate.sigmoid() * up)


@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("pair", [True, False])
def test_heads_are_normed_turned_and_put_where_they_stay(pair: bool, bias: bool, normed: bool):
    values = Values(4, 32, pair)
    size, turned = 64, HEADS + KV_HEADS
    every = _summed(values.product((turned + KV_HEADS) * size), values.scales(), values)
    every += values.random((turned + KV_HEADS) * size, name="bias") if bias else 0
    every = every.view(4, turned + KV_HEADS, size)
    expected, held = every[:, :turned], every[:, turned:]
    if normed:
        expected = expected / (expected.square().mean(-1, keepdim=True) + EPS).sqrt()
        expected = expected * (values.random(turned, size, name="norms").abs() + 0.5)
    cosine, sine = (values.of_rows(size, name=name)[:, None] for name in ("cosine", "sine"))
    expected = expected * cosine + expected.roll(size // 2, -1) * sine

    queries, keys, kept = _heads(values, bias, normed)

    _assert_close(queries, expected[:, :HEADS])
    _assert_close(keys, expected[:, HEADS:])
    _assert_close(kept, held)


def _assert_close(got: Tensor, expected: Tensor) -> None:
    """Levels of one row are off by 1/2 of 1/127 of the largest, which is not our matter here."""
    scale = expected.abs().max()
    error = float((got.double() - expected).abs().max() / scale)
    assert error < 5e-5, error


def test_the_exponential_is_off_by_two_units_at_most():
    x = np.linspace(-87, 88, 30011).astype(np.float32)
    expected = np.exp(x.astype(np.float64))

    got = np.array([fused.exp(value) for value in x])

    assert np.array_equal(got, got.astype(np.float32))
    assert np.max(np.abs(got - expected) / np.spacing(expected.astype(np.float32))) <= 2


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", ["levels", "norm_levels"])
def test_what_is_no_number_makes_its_row_none(name: str, value: float):
    loop: Any = getattr(fused, name)
    x, weight = torch.randn(3, 70), torch.ones(70)
    x[1, 66] = value
    out, scales = torch.empty(6, 70), torch.empty(3)
    beside = (weight.data_ptr(), EPS) if name == "norm_levels" else ()

    loop(x.data_ptr(), *beside, out.data_ptr(), scales.data_ptr(), 3, 70, 3)

    meant = (out[:3] + out[3:] / REST) * scales[:, None]
    assert not torch.isfinite(meant[1]).all()
    assert torch.isfinite(meant[[0, 2]]).all()


def test_a_row_of_zeros_stays_zero():
    x, out, scales = torch.zeros(1, 70), torch.ones(2, 70), torch.ones(1)

    fused.levels(x.data_ptr(), out.data_ptr(), scales.data_ptr(), 1, 70, 1)

    assert not out.any()
    assert 0 < float(scales) < 1e-20


def test_nothing_is_contracted():
    """A product rounded together with a sum would round otherwise where a loop is not unrolled."""
    values = Values(1, 130, pair=True)
    product, scales = values.product(130), values.scales()
    hidden = values.of_rows(130, name="x")
    expected = product[:1] + product[1:] * torch.tensor(1 / REST)
    expected = expected * scales[:, None] + hidden

    (added,) = _add(values, bias=False)

    assert torch.equal(added, expected)
