"""A seed is a schedule, and every schedule tries everything."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.chaos.fault_proxy import CLEAR, Weather
from tests.chaos.schedule import (
    OF_HEADS,
    OF_LINKS,
    OF_NODES,
    Fault,
    links_between,
    schedule,
)

NODES, HEADS = {"a": "0-2", "b": "2-4", "c": "4-6"}, ("head-1", "head-2")
seeds = st.integers(0, 2**32)


@given(seeds)
def test_a_seed_draws_the_same_schedule_again(seed: int):
    assert schedule(seed, 40, nodes=NODES, heads=HEADS) == schedule(
        seed, 40, nodes=NODES, heads=HEADS
    )


@given(seeds)
def test_each_kind_comes_once_in_as_many_events_as_there_are_kinds(seed: int):
    drawn = schedule(seed, 2 * len(Fault), nodes=NODES, heads=HEADS)

    assert Counter(event.fault for event in drawn) == Counter(2 * list(Fault))
    assert {event.fault for event in drawn[: len(Fault)]} == set(Fault)


@given(seeds)
def test_a_fault_strikes_what_it_can_strike(seed: int):
    for event in schedule(seed, len(Fault), nodes=NODES, heads=HEADS):
        assert event.target in (NODES if event.fault in OF_NODES | OF_LINKS else HEADS)
        assert (event.source is not None) == (event.fault in OF_LINKS)
        assert event.source != event.target
        needs_weather = event.fault in OF_LINKS - {Fault.RESET} | {Fault.PARTITION}
        assert (event.weather not in (None, CLEAR)) == needs_weather


@given(seeds)
def test_what_is_left_out_never_comes(seed: int):
    drawn = schedule(seed, 40, nodes=NODES, heads=HEADS, without=tuple(OF_HEADS))

    assert not {event.fault for event in drawn} & OF_HEADS


def test_other_seeds_draw_other_schedules():
    drawn = {schedule(seed, 10, nodes=NODES, heads=HEADS) for seed in range(20)}

    assert len(drawn) == 20


def test_links_are_those_that_steps_may_take():
    overlapping = {"a": "0-3", "b": "2-4", "c": "4-6"}

    assert links_between(overlapping, ("h",)) == (
        *(("h", node) for node in "abc"), ("a", "b"), ("b", "c"),
    )  # fmt: skip


@pytest.mark.parametrize(("field", "value"), [("delay_s", -1.0), ("bytes_per_s", 0.0)])
def test_weather_that_cannot_be_is_refused_by_its_field(field: str, value: float):
    with pytest.raises(ValueError, match=field):
        Weather(**{field: value})
