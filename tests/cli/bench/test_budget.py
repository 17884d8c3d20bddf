"""The budget of a token adds up, whatever was measured, and shows what nobody accounts for."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet.cli.bench.budget import Budget, HopTimes, Shares, budget, middle_half
from meshnet.cli.bench.budget_command import budget_report

seconds = st.floats(0.0, 1.0)
shares = st.tuples(st.none() | st.floats(0.0, 0.5), st.floats(0.0, 0.5)).map(
    lambda pair: Shares(*pair)
)


def lines_of(told: Budget) -> dict[tuple[str, str], float]:
    return {(line.where, line.what): round(line.ms, 6) for line in told.lines}


def hop(node: str, compute: float, queue: float, step: float, wire: float, call: float) -> HopTimes:
    return HopTimes(node, *(1e-3 * ms for ms in (compute, queue, step, wire, call)))


def test_a_token_over_two_nodes():
    hops = [hop("a", 10, 0.25, 10.5, 0.125, 12), hop("b", 20, 0.5, 21, 0.25, 22.5)]

    told = budget(0.036, hops, {"a": Shares(0.5), "b": Shares(0.25, 0.1)})

    assert lines_of(told) == {
        ("a", "attention"): 5.0, ("a", "sampling"): 0.0, ("a", "layers"): 5.0,
        ("a", "queue"): 0.25, ("a", "node"): 0.25, ("a", "exchange"): 1.375, ("a", "wire"): 0.125,
        ("b", "attention"): 5.0, ("b", "sampling"): 2.0, ("b", "layers"): 13.0,
        ("b", "queue"): 0.5, ("b", "node"): 0.5, ("b", "exchange"): 1.25, ("b", "wire"): 0.25,
        ("head", "between calls"): 1.5,
    }  # fmt: skip
    assert told.compute_ms == pytest.approx(30.0)
    assert told.own_ms == pytest.approx(6.0)


def test_attention_that_cannot_be_told_apart_stays_in_the_layers_and_that_is_said():
    told = budget(0.012, [hop("a", 10, 0.5, 11, 0.5, 12)], {"a": Shares(None, 0.1)})

    assert lines_of(told)["a", "layers with attention"] == 9.0
    assert ("a", "attention") not in lines_of(told)
    assert told.compute_ms == pytest.approx(10.0)


def test_a_part_that_was_measured_too_large_shows_as_a_negative_line():
    told = budget(0.010, [hop("a", 9, 0.25, 9.5, 3, 9.75)], {})

    assert lines_of(told)["a", "exchange"] == -2.75


@given(seconds, st.lists(st.tuples(*[seconds] * 5, shares), min_size=1, max_size=5))
def test_the_lines_always_sum_to_the_total(total_s: float, measured: list):
    hops = [HopTimes(str(at), *times[:5]) for at, times in enumerate(measured)]
    by_node = {str(at): times[5] for at, times in enumerate(measured)}

    told = budget(total_s, hops, by_node)

    assert math.fsum(line.ms for line in told.lines) == pytest.approx(1e3 * total_s, abs=1e-6)
    assert told.compute_ms + told.own_ms == pytest.approx(told.total_ms)
    assert told.compute_ms == pytest.approx(1e3 * sum(hop.compute_s for hop in hops), abs=1e-6)


@pytest.mark.parametrize("parts", [(-0.1, 0.0), (0.6, 0.5)])
def test_shares_are_parts_of_one(parts: tuple[float, float]):
    with pytest.raises(ValueError, match="parts of one"):
        Shares(*parts)


def test_the_middle_half_leaves_interruptions_out():
    rows = [{"total_s": float(total), "part_s": total / 2} for total in (9, 1, 2, 3, 4, 5, 6, 99)]

    assert middle_half(rows, by="total_s") == {"total_s": 4.5, "part_s": 2.25}


@given(st.lists(st.tuples(seconds, seconds), min_size=1, max_size=30))
def test_columns_of_the_middle_half_add_up(parts: list[tuple[float, float]]):
    rows = [{"total": left + right, "left": left, "right": right} for left, right in parts]

    middle = middle_half(rows, by="total")

    assert middle["left"] + middle["right"] == pytest.approx(middle["total"])


def test_the_page_shows_every_line_and_the_own_cost():
    one = {"median": 0.9, "min": 0.8, "max": 1.2}
    typical = {
        "total_ms": 20.0,
        "lines": [
            {"where": "0-2", "what": "layers", "ms": 19.5},
            {"where": "head", "what": "rest", "ms": 0.5},
        ],
    }

    report = budget_report(
        {"model": "toy", "layers": ["0-2"], "typical": typical, "own_ms": one, "total_ms": one}
    )

    page = "\n".join(report.sections)
    assert "| 0-2 | layers | 19.5 | 97.5 % |" in page
    assert "| head | rest | 0.5 | 2.5 % |" in page
    assert "own cost beside model compute: 0.9 ms (0.8 to 1.2)" in page
