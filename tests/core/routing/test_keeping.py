"""Routes for generations that run: hops that may still hold their part of a session stay."""

from __future__ import annotations

from dataclasses import replace

from tests.core.routing.test_finding import MODEL, node, shard

from meshnet.core.routing import Inventory, find_route
from meshnet.core.vocabulary import Hop, LayerRange, NodeDescription, NodeId, Route

THREE = (node("n0", shard(0, 3)), node("n1", shard(3, 6)), node("n2", shard(6, 8)))


def hop(name: str, start: int, stop: int) -> Hop:
    return Hop(NodeId(name), LayerRange(start, stop))


KEPT = (hop("n0", 0, 3), hop("n2", 6, 8))


def hops_of(*nodes: NodeDescription, keep: tuple[Hop, ...] = KEPT, avoid: str = "n1") -> list[str]:
    inventory = Inventory({each.node: each for each in nodes})
    route = find_route(inventory, MODEL, [NodeId(avoid)], keep=keep)
    assert isinstance(route, Route), route
    return [f"{each.node} {each.layers}" for each in route.hops]


def test_a_lost_hop_alone_is_replaced_though_one_node_could_run_all_layers():
    everything = node("all", shard(0, 8))

    assert hops_of(*THREE, everything) == ["n0 0-3", "all 3-6", "n2 6-8"]
    assert hops_of(*THREE, everything, keep=()) == ["all 0-8"]


def test_two_nodes_that_share_the_lost_layers_replace_it():
    halves = (node("left", shard(3, 5)), node("right", shard(4, 6)))

    assert hops_of(*THREE, *halves) == ["n0 0-3", "left 3-5", "right 5-6", "n2 6-8"]


def test_no_node_is_visited_twice_since_it_holds_one_part_of_a_session():
    everything, middle = node("all", shard(0, 8)), node("middle", shard(2, 7))
    kept = (hop("middle", 3, 6),)

    assert hops_of(everything, middle, keep=kept) == ["all 0-8"]


def test_a_hop_of_like_arithmetic_is_better_than_one_that_moves_fewer_layers():
    """What was emitted goes on bit for bit only there."""
    other = node("other", shard(3, 6, arithmetic="b"))
    like = node("like", shard(2, 8))

    assert hops_of(*THREE, other) == ["n0 0-3", "other 3-6", "n2 6-8"]
    assert hops_of(*THREE, other, like) == ["n0 0-3", "like 3-6", "n2 6-8"]


def test_a_hop_that_cannot_cache_is_the_last_choice():
    """It would make every further step a prefill of all layers."""
    cacheless = node("cacheless", shard(3, 6, kv_cache=False))
    everything = node("all", shard(0, 8))

    assert hops_of(*THREE, cacheless, everything) == ["n0 0-3", "all 3-6", "n2 6-8"]


def test_a_cache_beside_kept_hops_counts_more_than_a_good_name():
    """However many cacheless holders of the same layers there are."""
    cacheless = [node(name, shard(3, 6, kv_cache=False)) for name in ("a", "b", "d", "e")]
    suspect = node("suspect", shard(3, 6))

    nodes = {each.node: each for each in (*THREE[::2], *cacheless, suspect)}
    route = find_route(Inventory(nodes, frozenset({suspect.node})), MODEL, keep=KEPT)

    assert isinstance(route, Route)
    assert [each.node for each in route.hops] == ["n0", "suspect", "n2"]


def test_a_route_tells_which_nodes_know_replays_and_of_what_arithmetic_they_are():
    nodes = [replace(THREE[0], replay=True), *THREE[1:]]
    route = find_route(Inventory({each.node: each for each in nodes}), MODEL)

    assert isinstance(route, Route)
    assert route.replay == {"n0"}
    assert route.arithmetic == {"a"}
