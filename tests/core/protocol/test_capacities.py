"""What a node measured of itself, in the JSON of GET /node."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.protocol.test_description import NODE

from meshnet.core.protocol.capacities import LINKS_MAX, READINGS_MAX, SPEEDS_MAX
from meshnet.core.protocol.codec import decode_node, encode_node
from meshnet.core.protocol.limits import Limits
from meshnet.core.vocabulary import (
    BadField,
    Capacity,
    Link,
    NodeDescription,
    NodeId,
    Reading,
    Speed,
    WeightFormat,
)

LIMITS = Limits()
SPEED = Speed(
    weights=WeightFormat.INT8,
    reading=(Reading(10**7, 2.5e10), Reading(10**9, 9e9)),
    multiplies_per_s=3e11,
    attention_bytes_per_s=5e9,
    together_attention_bytes_per_s=5e10,
    layer_s=2e-5,
    step_s=0.0,
)
CAPACITY = Capacity(
    machine="5a0f",
    memory_bytes=2**34,
    threads=4,
    cores=8,
    speeds=(SPEED, replace(SPEED, weights=WeightFormat.BF16)),
    links=(Link(NodeId("http://10.0.0.2:9001"), 0.0, 1e8), Link(NodeId("b"), 0.02, 1e6)),
)
RATES = st.floats(min_value=1e-3, max_value=1e18)
TIMES = st.floats(min_value=0.0, max_value=1e6)


def readings() -> st.SearchStrategy[tuple[Reading, ...]]:
    held = st.sets(st.integers(1, 2**50), min_size=1, max_size=READINGS_MAX).map(sorted)
    return held.flatmap(
        lambda sizes: st.tuples(*(st.builds(Reading, st.just(size), RATES) for size in sizes))
    )


def capacities() -> st.SearchStrategy[Capacity]:
    speeds = st.builds(
        Speed,
        weights=st.sampled_from(WeightFormat),
        reading=readings(),
        multiplies_per_s=RATES,
        attention_bytes_per_s=RATES,
        together_attention_bytes_per_s=RATES,
        layer_s=TIMES,
        step_s=TIMES,
    )
    links = st.builds(Link, node=st.text("abc/:.1é", max_size=20), round_trip_s=TIMES,
                      bytes_per_s=RATES)  # fmt: skip
    return st.builds(
        Capacity,
        machine=st.text("abcdef0123456789", max_size=32),
        memory_bytes=st.integers(0, 2**50),
        threads=st.integers(1, 1024),
        cores=st.integers(0, 1024),
        speeds=st.lists(speeds, max_size=5, unique_by=lambda speed: speed.weights).map(tuple),
        links=st.lists(links, max_size=8, unique_by=lambda link: link.node).map(tuple),
    )


def told(**changes: object) -> bytes:
    """The JSON of a node, with some values of its capacity replaced."""
    values = json.loads(encode_node(measured(CAPACITY)))
    values["capacity"] |= changes
    return json.dumps(values).encode()


def measured(capacity: Capacity) -> NodeDescription:
    return replace(NODE, capacity=capacity)


@given(capacities())
@settings(derandomize=True, deadline=None, max_examples=200)
def test_a_capacity_is_read_as_it_was_told(capacity):
    node = measured(capacity)

    assert decode_node(encode_node(node), LIMITS) == node


def test_a_node_that_tells_no_capacity_did_not_measure_itself():
    values = json.loads(encode_node(measured(CAPACITY)))
    del values["capacity"]

    assert decode_node(json.dumps(values).encode(), LIMITS).capacity is None


def test_a_speed_in_a_format_of_a_later_version_is_passed_over():
    speeds = json.loads(encode_node(measured(CAPACITY)))["capacity"]["speeds"]
    speeds[0]["weights"] = "int3"

    read = decode_node(told(speeds=speeds), LIMITS)

    assert read.capacity == replace(CAPACITY, speeds=CAPACITY.speeds[1:])


def test_of_too_many_links_as_many_are_told_as_will_be_read():
    links = tuple(Link(NodeId(f"n{number}"), 0.0, 1e9) for number in range(LINKS_MAX + 5))

    read = decode_node(encode_node(measured(replace(CAPACITY, links=links))), LIMITS)

    assert read.capacity == replace(CAPACITY, links=links[:LINKS_MAX])


READING = {"held_bytes": 10, "bytes_per_s": 1e9}
SPEED_VALUES = json.loads(encode_node(measured(CAPACITY)))["capacity"]["speeds"][0]
LINK = {"node": "n", "round_trip_s": 0.1, "bytes_per_s": 1e9}
NONSENSE = [
    {"machine": 5},
    {"machine": "m" * 129},
    {"memory_bytes": -1},
    {"threads": 0},
    {"threads": 1.5},
    {"cores": -1},
    {"speeds": None},
    {"speeds": [SPEED_VALUES] * 2},
    {"speeds": [{"weights": "int8"}]},
    {"speeds": [SPEED_VALUES | {"reading": []}]},
    {"speeds": [SPEED_VALUES | {"reading": [READING, READING]}]},
    {"speeds": [SPEED_VALUES | {"reading": [READING | {"bytes_per_s": 0}]}]},
    {"speeds": [SPEED_VALUES | {"reading": [READING | {"held_bytes": 0}]}]},
    {"speeds": [SPEED_VALUES | {"reading": [READING] * (READINGS_MAX + 1)}]},
    {"speeds": [SPEED_VALUES | {"multiplies_per_s": 0}]},
    {"speeds": [SPEED_VALUES | {"attention_bytes_per_s": -1.0}]},
    {"speeds": [SPEED_VALUES | {"together_attention_bytes_per_s": 0.0}]},
    {"speeds": [SPEED_VALUES | {"layer_s": -1e-9}]},
    {"speeds": [SPEED_VALUES | {"step_s": "fast"}]},
    {"speeds": [SPEED_VALUES | {"weights": f"later-{n}"} for n in range(SPEEDS_MAX + 1)]},
    {"links": [LINK, LINK]},
    {"links": [LINK | {"node": "n" * 513}]},
    {"links": [LINK | {"round_trip_s": -0.1}]},
    {"links": [LINK | {"bytes_per_s": 0}]},
    {"links": [LINK | {"node": f"n{number}"} for number in range(LINKS_MAX + 1)]},
]


@pytest.mark.parametrize("changes", NONSENSE, ids=lambda changes: str(changes)[:60])
def test_a_capacity_that_is_nonsense_is_refused_with_its_field(changes):
    with pytest.raises(BadField, match="capacity"):
        decode_node(told(**changes), LIMITS)
