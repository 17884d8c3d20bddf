"""Int8 layers: near fp32, and a row's bits are its own."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from meshnet.engine.linear import Int8Linear, TiledLinear, merged, quantised
from meshnet.engine.linear_choice import LinearChoice, expected, trial_rows
from meshnet.engine.linear_products import PRODUCTS

SHAPES = ((96, 64), (33, 97), (256, 576))


def _linear(outputs: int, inputs: int, *, seed: int = 0, bias: bool = False) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(inputs, outputs, bias=bias).requires_grad_(False)


def _int8(linear: nn.Linear, rows: int = 2, product: str = "packed") -> Int8Linear:
    levels, scales = quantised(linear.weight)
    made = PRODUCTS[product](levels, scales)
    return Int8Linear(made, scales, linear.bias, inputs=linear.in_features, rows=rows)


def _rows(count: int, inputs: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn((count, inputs), generator=generator) * torch.logspace(-3, 3, count)[:, None]


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_a_rows_bits_are_the_same_alone_in_any_batch_and_in_any_order(
    shape: tuple[int, int], rows: int, product: str, data: st.DataObject
):
    layer = _int8(_linear(*shape, bias=True), rows, product)
    count = data.draw(st.integers(1, 150), "rows")
    x = _rows(count, shape[1], data.draw(st.integers(0, 1000), "seed"))
    order = torch.tensor(data.draw(st.permutations(range(count)), "order"))
    cut = data.draw(st.integers(0, count), "cut")

    whole = layer(x)

    assert torch.equal(layer(x[order]), whole[order])
    assert torch.equal(torch.cat([layer(x[:cut]), layer(x[cut:])]), whole)
    assert torch.equal(layer(x[cut - 1 : cut]), whole[cut - 1 : cut])


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_exact_products_yield_the_same_bits(shape: tuple[int, int], rows: int):
    """A machine without the packed operator, or without numba, computes what others compute."""
    linear = _linear(*shape, bias=True)
    x = _rows(3000, shape[1], seed=2)

    expected = _int8(linear, rows, "packed")(x)

    for product in ("compiled", "integer"):
        assert torch.equal(_int8(linear, rows, product)(x), expected)


@pytest.mark.parametrize(("rows", "bound"), [(1, 0.02), (2, 0.0002)])
@pytest.mark.parametrize("product", ["compiled", "packed", "integer"])
def test_what_activations_lose_is_small_and_of_no_row_large(product: str, rows: int, bound: float):
    """Many rows, since a value just below one half is rare: rounded up in one place and down in
    the other it would cost a hundredth of the row's largest value."""
    linear = _linear(64, 576)
    layer = _int8(linear, rows, product)
    levels, scales = quantised(linear.weight)
    x = _rows(4000, 576, seed=3)

    want = expected(x, levels, scales, rows, exact=False)

    error = (layer(x) - want).norm(dim=-1) / want.norm(dim=-1)
    assert float(error.max()) < bound


def test_weights_lose_at_most_half_a_level():
    weight = _linear(40, 50).weight
    levels, scales = quantised(weight)

    assert float(((levels * scales[:, None] - weight).abs() / scales[:, None]).max()) <= 0.501
    assert levels.abs().amax(1).tolist() == [127] * 40


def test_quantising_leaves_the_weights_as_they_were():
    """They may be tied to an embedding that is looked up in full precision."""
    weight = _linear(40, 50).weight
    before = weight.clone()

    quantised(weight)

    assert torch.equal(weight, before)


@pytest.mark.parametrize("product", PRODUCTS)
def test_full_range_everywhere_does_not_overflow(product: str):
    """Kernels that add pairs in 16 bits saturate here."""
    levels = torch.full((8, 512), 127, dtype=torch.int8)
    scales = torch.full((8,), 1 / 127)
    layer = Int8Linear(PRODUCTS[product](levels, scales), scales, None, inputs=512, rows=2)

    result = layer(torch.ones(3, 512))

    assert torch.allclose(result, torch.full((3, 8), 512.0), rtol=1e-5)


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("rows", [1, 2])
def test_rows_of_zeros_and_no_rows_at_all(product: str, rows: int):
    linear = _linear(24, 32, bias=True)
    layer = _int8(linear, rows, product)

    assert torch.equal(layer(torch.zeros(2, 32)), linear.bias.expand(2, 24))
    assert layer(torch.zeros(0, 32)).shape == (0, 24)
    assert layer(torch.zeros(2, 0, 3, 32)).shape == (2, 0, 3, 24)


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_value_that_is_no_number_spoils_its_own_row_only(product: str, bad: float):
    layer = _int8(_linear(24, 32), 2, product)
    x = _rows(4, 32, seed=5)
    clean = layer(x)
    x[2, 7] = bad

    spoilt = layer(x)

    assert not torch.isfinite(spoilt[2]).any()
    assert torch.equal(spoilt[[0, 1, 3]], clean[[0, 1, 3]])


def test_any_leading_shape_is_taken_and_outputs_may_be_written_to():
    layer = _int8(_linear(24, 32))
    x = _rows(12, 32, seed=6)
    flat = layer(x)

    shaped = layer(x.view(3, 2, 2, 32).transpose(0, 1))
    layer(x).zero_()

    assert torch.equal(shaped, flat.view(3, 2, 2, 24).transpose(0, 1))
    assert torch.equal(layer(x), flat)


def test_the_stand_in_for_weights_has_shape_and_type_and_no_value():
    layer = _int8(_linear(24, 32))

    assert layer.weight.shape == (24, 32)
    assert layer.weight.dtype == torch.float32
    assert layer.weight.isnan().all()


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("rows", [1, 2])
def test_a_merged_layer_yields_the_bits_of_its_parts(product: str, rows: int):
    parts = [
        _int8(_linear(outputs, 96, seed=outputs, bias=outputs == 32), rows, product)
        for outputs in (64, 32, 33)
    ]
    x = _rows(70, 96, seed=7)

    joined = merged(parts)

    assert torch.equal(joined(x), torch.cat([part(x) for part in parts], -1))
    assert torch.equal(joined(x[:1]), torch.cat([part(x[:1]) for part in parts], -1))


def test_floating_point_layers_are_merged_too():
    parts = [_linear(outputs, 96, bias=outputs == 32) for outputs in (64, 32)]
    tiles = [TiledLinear.of(part) for part in parts]
    x = _rows(70, 96, seed=8)
    apart = torch.cat([part(x) for part in parts], -1)

    assert torch.allclose(merged(parts)(x), apart, rtol=1e-4, atol=1e-4)
    assert isinstance(merged(tiles), TiledLinear)


@pytest.mark.parametrize(
    "pair",
    [
        (_linear(8, 16), _int8(_linear(8, 16))),
        (_int8(_linear(8, 16), 1), _int8(_linear(8, 16), 2)),
        (_int8(_linear(8, 16)), _int8(_linear(8, 16), product="integer")),
    ],
)
def test_unlike_layers_are_not_merged(pair: tuple[nn.Module, nn.Module]):
    with pytest.raises(TypeError, match="cannot join"):
        merged(pair)


@given(count=st.integers(1, 200), seed=st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_a_tiled_layers_rows_do_not_depend_on_the_batch(count: int, seed: int):
    layer = TiledLinear.of(_linear(8, 64, bias=True))
    x = _rows(count, 64, seed)

    whole = layer(x)

    assert torch.equal(layer(x[-1:]), whole[-1:])
    assert torch.equal(layer(x.flip(0)), whole.flip(0))


def test_a_tiled_layer_yields_what_the_plain_one_does():
    linear = _linear(8, 64, bias=True)
    x = _rows(130, 64, seed=9)

    assert torch.allclose(TiledLinear.of(linear)(x), linear(x), rtol=1e-4, atol=1e-4)


class _Lying:
    """A product that is right but for one thing."""

    exact = True

    def __init__(self, lie: str):
        self.lie = lie

    def of(self, levels, scales):
        if self.lie == "absent":
            raise RuntimeError("no such operator\nand a long trace")
        return _Lie(self.lie, PRODUCTS["integer"](levels, scales))


class _Lie:
    exact = True

    def __init__(self, lie, honest):
        self.lie, self.honest = lie, honest

    def __call__(self, rows):
        result = self.honest(rows)
        if self.lie == "saturates":
            # Sums of pairs in 16 bits, as of old vector instructions.
            levels, scales = self.honest.unpacked()
            unsigned = rows.add(128).round_().to(torch.int32)
            pairs = unsigned[:, None, :] * levels.to(torch.int32)[None]
            pairs = pairs[..., ::2] + pairs[..., 1::2]
            sums = pairs.clamp(-(2**15), 2**15 - 1).sum(-1) - 128 * levels.sum(
                -1, dtype=torch.int32
            )
            result = sums * scales
        elif self.lie == "batch" and len(rows) > 5:
            result = result * (1 + 2**-20)
        elif self.lie == "nan":
            result[0, 0] = torch.nan
        return result

    def unpacked(self):
        return self.honest.unpacked()


@pytest.mark.parametrize("lie", ["saturates", "batch", "nan", "absent"])
def test_a_product_that_lies_is_passed_over_and_told(lie: str):
    products = {"lying": _Lying(lie).of, **PRODUCTS}
    choice = LinearChoice(2, products)
    linear = _linear(48, 64)
    # Small weights never saturate: the trial must not depend on those at hand.
    linear.weight.data[:, 1:] *= 0.01

    layer = choice.linear(linear.weight, None)

    assert choice.operators == "compiled"
    assert len(choice.notes) == 1
    assert "'lying' is not used for 48 x 64" in choice.notes[0]
    assert torch.equal(
        layer(trial_rows(64, torch.device("cpu"))),
        _int8(linear)(trial_rows(64, torch.device("cpu"))),
    )


def test_without_an_exact_product_weights_alone_are_int8():
    lies = {"one": _Lying("absent").of, "two": _Lying("nan").of}
    choice = LinearChoice(2, {**lies, "weight-only": PRODUCTS["weight-only"]})

    choice.linear(_linear(48, 64).weight, None)

    assert choice.operators == "weight-only"
    assert choice.steady


def test_an_unsteady_product_serves_if_nothing_better_does_and_is_told():
    choice = LinearChoice(2, {"batch": _Lying("batch").of, "absent": _Lying("absent").of})

    choice.linear(_linear(48, 64).weight, None)

    assert choice.operators == "batch"
    assert not choice.steady
    assert "recovery is not bitwise" in choice.notes[-1]


def test_the_best_product_is_used_where_nothing_is_wrong():
    choice = LinearChoice(2)

    choice.linear(_linear(48, 64).weight, None)
    choice.linear(_linear(64, 576).weight, None)

    assert (choice.operators, choice.notes, choice.steady) == ("compiled", [], True)


def test_a_digest_tells_formats_apart_and_not_two_exact_products():
    cpu = torch.device("cpu")
    integer = {"integer": PRODUCTS["integer"]}

    assert LinearChoice(2).digest(cpu) != LinearChoice(1).digest(cpu)
    assert LinearChoice(2).digest(cpu) == LinearChoice(2, integer).digest(cpu)
