"""Lanes of sixteen values do what single values do."""

from __future__ import annotations

import math

import pytest
import torch

from meshnet.engine.compiled import lanes
from meshnet.engine.compiled.cache import compiled


@compiled("values out count")
def exps(values, out, count):
    for i in range(0, count, lanes.LANES):
        lanes.put_lanes(out, i, lanes.lanes_exp(lanes.get_lanes(values, i)))


@compiled("values out count")
def exps_one_by_one(values, out, count):
    for i in range(count):
        lanes.put(out, i, lanes.exp(lanes.get(values, i)))


@compiled("values out")
def folded(values, out):
    one, other = lanes.get_lanes(values, 0), lanes.get_lanes(values, 16)
    lanes.put(out, 0, lanes.lanes_sum(one))
    lanes.put(out, 1, lanes.lanes_top(one))
    lanes.put_lanes(out, 2, lanes.fma(one, other, one))
    lanes.put_lanes(out, 18, lanes.more(one, other))
    lanes.put_lanes(out, 34, (one + other) * other - one)


@compiled("values out start stop")
def cut(values, out, start, stop):
    kept = lanes.within(lanes.get_lanes(values, 0), start, stop, lanes.get_lanes(values, 16))
    lanes.put_lanes(out, 0, kept)


def drawn(count: int, scale: float = 1.0) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(3)) * scale


def test_e_to_the_power_of_lanes_has_the_bits_of_one_value_at_a_time():
    values = torch.cat([drawn(4096, 30), torch.tensor([-1e9, 1e9, math.inf, -math.inf] * 4)])
    one_by_one, many = torch.empty_like(values), torch.empty_like(values)

    exps_one_by_one(values.data_ptr(), one_by_one.data_ptr(), len(values))
    exps(values.data_ptr(), many.data_ptr(), len(values))

    assert torch.equal(many, one_by_one)
    meant = values.double().clamp(-87, 88).exp()
    assert float(((many - meant) / meant).abs().max()) < 2e-7


def test_e_to_the_power_of_no_number_is_none_and_its_neighbours_stay():
    values = drawn(16)
    values[5] = math.nan
    out = torch.empty(16)

    exps(values.data_ptr(), out.data_ptr(), 16)

    assert torch.isnan(out).nonzero()[:, 0].tolist() == [5]


def test_sums_and_largest_values_and_sums_of_products():
    values, out = drawn(32), torch.empty(50)
    one, other = values.chunk(2)

    folded(values.data_ptr(), out.data_ptr())

    tree = one
    while len(tree) > 1:
        tree = tree[: len(tree) // 2] + tree[len(tree) // 2 :]
    assert float(out[0]) == float(tree)
    assert float(out[1]) == float(one.max())
    assert torch.equal(out[2:18], (one.double() * other.double() + one.double()).float())
    assert torch.equal(out[18:34], torch.maximum(one, other))
    assert torch.equal(out[34:50], (one + other) * other - one)


@pytest.mark.parametrize(
    ("start", "stop"), [(0, 16), (3, 9), (-700, 4), (12, 900), (20, 30), (5, 5)]
)
def test_lanes_outside_of_bounds_are_the_other_ones(start: int, stop: int):
    values, out = drawn(32), torch.empty(16)

    cut(values.data_ptr(), out.data_ptr(), start, stop)

    inside = torch.tensor([start <= lane < stop for lane in range(16)])
    assert torch.equal(out, torch.where(inside, values[:16], values[16:]))
