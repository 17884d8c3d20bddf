"""Who takes which layers over when hops of a route drain, and whether that pays."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.routing.test_finding import MODEL, node, shard

from meshnet.core.routing import Inventory, find_route
from meshnet.core.routing.moving import Taking, find_move, moving_pays
from meshnet.core.vocabulary import (
    Capacity,
    Hop,
    KVBytes,
    LayerRange,
    Link,
    NodeDescription,
    NodeId,
    Route,
    ShardDescription,
)


def moving(start: int, stop: int, **fields: object) -> ShardDescription:
    made = shard(start, stop)
    made = replace(
        made,
        capabilities=replace(made.capabilities, moves=True),
        kv_bytes=KVBytes(10 * (stop - start), 6),
    )
    return replace(made, **fields)  # type: ignore[arg-type]


def inventory(*spares: NodeDescription, suspects: frozenset[str] = frozenset()) -> Inventory:
    nodes = [
        node("a", moving(0, 3)),
        replace(node("b", moving(3, 6)), draining=True),
        node("c", moving(6, 8)),
        *spares,
    ]
    return Inventory({each.node: each for each in nodes}, frozenset(map(NodeId, suspects)))


def hops(*made: tuple[str, int, int]) -> tuple[Hop, ...]:
    return tuple(Hop(NodeId(name), LayerRange(start, stop)) for name, start, stop in made)


OLD = Route(MODEL, hops(("a", 0, 3), ("b", 3, 6), ("c", 6, 8)), fingerprint="f")


def test_another_node_takes_over_and_the_other_hops_stay():
    found = find_move(inventory(node("s", moving(0, 8))), OLD, 100)

    assert found is not None
    route, takings = found
    assert route.hops == hops(("a", 0, 3), ("s", 3, 6), ("c", 6, 8))
    assert route.fingerprint == "f"
    assert takings == (Taking(route.hops[1], NodeId("b"), 3006),)


def test_two_nodes_share_the_layers_of_one():
    found = find_move(inventory(node("s", moving(0, 4)), node("t", moving(4, 8))), OLD, 100)

    assert found is not None
    route, takings = found
    assert route.hops == hops(("a", 0, 3), ("s", 3, 4), ("t", 4, 6), ("c", 6, 8))
    assert takings == (
        Taking(route.hops[1], NodeId("b"), 1002),
        Taking(route.hops[2], NodeId("b"), 2004),
    )


def test_of_two_nodes_the_one_with_more_room_takes_over():
    found = find_move(
        inventory(node("s", moving(3, 6), sessions=3), node("t", moving(3, 6))), OLD, 100
    )

    assert found is not None
    assert found[0].hops[1].node == "t"


@pytest.mark.parametrize(
    "spare",
    [
        node("s", moving(3, 6, arithmetic="other")),
        node("s", moving(3, 6, fingerprint="other")),
        node("s", moving(3, 6, layers=LayerRange(3, 5))),
        node("s", shard(3, 6)),
        node("s", moving(3, 6), ready=False),
        replace(node("s", moving(3, 6)), draining=True),
    ],
    ids=["arithmetic", "weights", "layers", "unable", "loading", "draining"],
)
def test_a_node_that_cannot_go_on_with_it_takes_nothing_over(spare: NodeDescription):
    assert find_move(inventory(spare), OLD, 100) is None


def test_a_node_that_failed_lately_takes_nothing_over():
    spare = node("s", moving(3, 6))

    assert find_move(inventory(spare, suspects=frozenset({"s"})), OLD, 100) is None


def test_a_node_that_holds_layers_of_the_session_takes_no_more():
    nodes = inventory().nodes | {NodeId("a"): node("a", moving(0, 8))}

    assert find_move(Inventory(nodes), OLD, 100) is None


def test_layers_that_share_their_keys_are_taken_over_together():
    runs = (LayerRange(4, 6),)
    spares = [
        node("s", moving(0, 5, inseparable=runs)),
        node("t", moving(4, 8, inseparable=runs)),
    ]

    found = find_move(inventory(*spares), OLD, 100)

    assert found is not None
    assert found[0].hops[1:3] == hops(("s", 3, 4), ("t", 4, 6))


@settings(derandomize=True, deadline=None, max_examples=200)
@given(
    spares=st.lists(st.tuples(st.integers(0, 7), st.integers(1, 8)).map(sorted), max_size=5),
    draining=st.sets(st.sampled_from("abc"), min_size=1),
)
def test_a_move_is_found_exactly_where_others_hold_the_layers(
    spares: list[list[int]], draining: set[str]
):
    made = [node(f"s{at}", moving(*held)) for at, held in enumerate(spares) if held[0] < held[1]]
    nodes = {
        name: replace(each, draining=name in draining)
        for name, each in inventory(*made).nodes.items()
    }

    found = find_move(Inventory(nodes), OLD, 10)

    if found is None:
        # With one hop to replace it is enough that the spares hold all its layers.
        (only, *more) = draining
        span = next(hop.layers for hop in OLD.hops if hop.node == only)
        held = {layer for each in made for layer in range(*_bounds(each))}
        assert more or not held >= set(range(span.start, span.stop))
        return
    route, takings = found
    givers = {hop.node: hop.layers for hop in OLD.hops}
    assert {taking.giver for taking in takings} == draining
    assert len({hop.node for hop in route.hops}) == len(route.hops)
    for taking in takings:
        assert givers[taking.giver].holds(taking.hop.layers)
        assert nodes[taking.hop.node].shards[0].layers.holds(taking.hop.layers)


def _bounds(described: NodeDescription) -> tuple[int, int]:
    layers = described.shards[0].layers
    return layers.start, layers.stop


def test_a_node_that_drains_is_on_no_route():
    found = find_route(inventory(node("s", moving(3, 6))), MODEL)

    assert isinstance(found, Route)
    assert [hop.node for hop in found.hops] == ["a", "s", "c"]
    assert not isinstance(find_route(inventory(), MODEL), Route)


@pytest.mark.parametrize(
    ("positions_per_s", "pays"), [(None, True), (10.0, True), (100.0, True), (1000.0, False)]
)
def test_moving_pays_where_computing_again_takes_longer(positions_per_s: float | None, pays: bool):
    half = Taking(OLD.hops[1], NodeId("b"), 5_000)

    assert pays == moving_pays(
        [half, half], bytes_per_s=10_000, positions=100, positions_per_s=positions_per_s
    )


def test_a_way_that_was_measured_counts_as_it_is():
    slow = Taking(OLD.hops[1], NodeId("b"), 5_000, bytes_per_s=10.0)

    assert not moving_pays([slow], bytes_per_s=10_000, positions=100, positions_per_s=10.0)


@pytest.mark.parametrize(("measures", "told"), [("s", "b"), ("b", "s")])
def test_the_way_between_two_nodes_is_as_fast_as_either_measured(measures: str, told: str):
    link = Link(NodeId(told), 0.001, 5e6)
    nodes = dict(inventory(node("s", moving(0, 8))).nodes)
    capacity = Capacity("machine", 0, 1, links=(link,))
    nodes[NodeId(measures)] = replace(nodes[NodeId(measures)], capacity=capacity)

    found = find_move(Inventory(nodes), OLD, 100)

    assert found is not None
    assert [taking.bytes_per_s for taking in found[1]] == [5e6]
