"""Turns, repeats and ratios: what may be concluded from samples, before any is taken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet.cli.bench.paired import Rules, Sample, Values, ratios, spread, take_turns, told, turns


@dataclass
class Stage:
    """A machine whose other load is given in advance, and what was measured on it when."""

    loads: Iterator[float]
    measured: list[tuple[str, int]] = field(default_factory=list)

    async def measure(self, side: str, number: int) -> Values:
        self.measured.append((side, number))
        return {"tokens_per_s": float(len(self.measured))}

    def probe(self, side: str) -> Stage:
        return self

    def other_cores(self) -> float:
        return next(self.loads)


async def played(sides: Sequence[str], loads: Sequence[float], rules: Rules) -> tuple[Stage, dict]:
    stage = Stage(iter(loads))
    return stage, await take_turns(sides, stage.measure, stage.probe, rules)


def test_each_side_is_first_as_often_as_the_others():
    orders = [turns("ABC", number) for number in range(3)]

    assert orders == [["A", "B", "C"], ["B", "C", "A"], ["C", "A", "B"]]
    assert turns("ABC", -1)[0] == "C"


async def test_a_warm_up_is_measured_and_forgotten():
    stage, samples = await played("AB", [0.0] * 4, Rules(rounds=2, warmups=1))

    assert [side for side, _ in stage.measured] == ["B", "A", "A", "B", "B", "A"]
    assert [sample.values["tokens_per_s"] for sample in samples["A"]] == [3.0, 6.0]


async def test_a_disturbed_sample_is_taken_again_and_the_quiet_one_counts():
    rules = Rules(rounds=1, warmups=0, other_max=0.1, repeats_max=2)

    stage, samples = await played("A", [0.5, 0.05], rules)

    assert samples["A"] == [Sample({"tokens_per_s": 2.0}, 0.05, disturbed=False, tries=2)]
    assert len(stage.measured) == 2


async def test_on_a_machine_that_is_never_quiet_the_quietest_sample_stays_and_is_marked():
    rules = Rules(rounds=1, warmups=0, other_max=0.1, repeats_max=2)

    _, samples = await played("A", [0.5, 0.3, 0.4], rules)

    assert samples["A"] == [Sample({"tokens_per_s": 2.0}, 0.3, disturbed=True, tries=3)]
    assert "disturbed: others used 0.30 cores" in told(samples["A"][0])


async def test_no_number_is_given_to_a_side_twice():
    """Prompts are made of it: a repeated one would be answered from a cache."""
    rules = Rules(rounds=3, warmups=2, other_max=0.1, repeats_max=2)

    stage, _ = await played("AB", [0.9] * 18, rules)

    assert max(Counter(stage.measured).values()) == 1
    assert len(stage.measured) == 2 * (2 + 3 * 3)


async def test_sides_of_an_undisturbed_round_get_equal_numbers():
    stage, _ = await played("AB", [0.0] * 6, Rules(rounds=3, warmups=1))

    numbers = {side: [n for name, n in stage.measured if name == side] for side in "AB"}
    assert numbers["A"] == numbers["B"] == [0, 1, 2, 3]


def test_ratios_are_formed_within_a_round():
    fast = [quiet(2.0), quiet(40.0)]
    slow = [quiet(1.0), quiet(10.0)]

    assert ratios(fast, slow, "tokens_per_s") == [2.0, 4.0]


def test_a_round_in_which_one_side_told_nothing_gives_no_ratio():
    assert ratios(
        [quiet(2.0), quiet(3.0)], [Sample({}, 0.0, False), quiet(1.0)], "tokens_per_s"
    ) == [3.0]


def quiet(value: float) -> Sample:
    return Sample({"tokens_per_s": value}, 0.0, disturbed=False)


def test_a_spread_tells_the_middle_and_the_extremes():
    assert spread([5.0, 1.0, 2.0, 4.0, 3.0]) == {
        "median": 3.0, "q1": 2.0, "q3": 4.0, "min": 1.0, "max": 5.0,
    }  # fmt: skip
    assert set(spread([7.0]).values()) == {7.0}


@given(st.lists(st.floats(0.1, 1e6), min_size=1, max_size=20))
def test_a_spread_is_in_order_and_indifferent_to_the_order_of_samples(values: list[float]):
    told = spread(values)

    assert told["min"] <= told["q1"] <= told["median"] <= told["q3"] <= told["max"]
    assert told == spread(values[::-1])


@pytest.mark.parametrize("rounds", [0, -1])
def test_no_rounds_say_nothing(rounds: int):
    with pytest.raises(ValueError, match="at least one round"):
        Rules(rounds=rounds)
