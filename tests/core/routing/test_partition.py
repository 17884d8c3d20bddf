"""Dividing layers over parts."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshnet.core.routing import check_layers, parse_split, partition
from meshnet.core.vocabulary import BadField, LayerRange, check_cover


def shown(ranges: tuple[LayerRange, ...]) -> str:
    return " ".join(map(str, ranges))


def test_equal_parts_come_out_equal_and_the_larger_ones_first():
    assert shown(partition(30, 3)) == "0-10 10-20 20-30"
    assert shown(partition(31, 3)) == "0-11 11-21 21-31"
    assert shown(partition(5, 5)) == "0-1 1-2 2-3 3-4 4-5"


def test_a_part_of_twice_the_capacity_takes_twice_the_layers():
    assert shown(partition(32, 3, [1, 1, 2])) == "0-8 8-16 16-32"


def test_no_inseparable_run_is_cut():
    """Pit A74."""
    assert shown(partition(10, 2, inseparable=[LayerRange(4, 8)])) == "0-4 4-10"


@pytest.mark.parametrize("parts", [0, -1, 11, 1000])
def test_more_parts_than_layers_or_none_are_refused(parts):
    with pytest.raises(BadField, match="1 to 10 for 10 layers"):
        partition(10, parts)


def test_runs_bound_the_number_of_parts():
    with pytest.raises(BadField, match="1 to 7"):
        partition(10, 8, inseparable=[LayerRange(4, 8)])


@pytest.mark.parametrize("weights", [[1.0], [1.0, 0.0], [1.0, -1.0], [1.0, float("nan")]])
def test_weights_must_be_one_positive_number_a_part(weights):
    with pytest.raises(BadField, match="weights"):
        partition(10, 2, weights)


RUNS = st.sampled_from([(), (LayerRange(1, 3),), (LayerRange(2, 5),), (LayerRange(0, 4),)])


@settings(derandomize=True, deadline=None, max_examples=300)
@given(st.integers(5, 9), st.integers(1, 4), st.lists(st.integers(1, 5), min_size=4), RUNS)
def test_a_partition_is_a_cover_whose_fullest_part_is_as_small_as_can_be(total, parts, sizes, runs):
    weights = [float(size) for size in sizes[:parts]]
    allowed = [c for c in range(1, total) if not any(r.start < c < r.stop for r in runs)]
    fullest = [
        max((b - a) / w for a, b, w in zip((0, *cuts), (*cuts, total), weights, strict=True))
        for cuts in combinations(allowed, parts - 1)
    ]
    if not fullest:
        with pytest.raises(BadField):
            partition(total, parts, weights, runs)
        return

    ranges = partition(total, parts, weights, runs)

    check_cover(ranges)
    assert ranges[-1].stop == total
    assert {layers.start for layers in ranges[1:]} <= set(allowed)
    assert max(len(r) / w for r, w in zip(ranges, weights, strict=True)) == min(fullest)


def test_a_split_names_the_cuts():
    assert shown(parse_split("10,20", 30)) == "0-10 10-20 20-30"
    assert shown(parse_split(" 15 ", 30)) == "0-15 15-30"


WRONG = [
    "",
    ",",
    "10,",
    "20,10",
    "10,10",
    "0,10",
    "30",
    "31",
    "a",
    "-1",
    "1.5",
    "+3",
    "٣",
    "9" * 99,
]


@pytest.mark.parametrize("text", WRONG)
def test_a_split_that_is_none_is_refused_with_what_was_expected(text):
    with pytest.raises(BadField, match="split: expected ascending cuts from 1 to 29, such as 15"):
        parse_split(text, 30)


def test_a_split_must_not_cut_an_inseparable_run():
    with pytest.raises(BadField, match="split: expected no cut inside 4-8"):
        parse_split("5", 10, [LayerRange(4, 8)])


def test_layers_beyond_the_model_or_cutting_a_run_are_refused():
    runs = [LayerRange(4, 8)]

    check_layers(LayerRange(4, 10), 10, runs)
    with pytest.raises(BadField, match="layers within 0-10"):
        check_layers(LayerRange(4, 11), 10)
    with pytest.raises(BadField, match="a cut at 5"):
        check_layers(LayerRange(0, 5), 10, runs)
