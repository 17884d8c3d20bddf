"""Routes are exact covers, found whenever there is one, and the best of them."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshnet.core.routing import Inventory, NoRoute, find_route
from meshnet.core.vocabulary import (
    Capabilities,
    DType,
    Hop,
    KVBytes,
    LayerRange,
    ModelId,
    NodeDescription,
    NodeId,
    Route,
    ShardDescription,
    check_cover,
)

MODEL = ModelId("m")


def shard(
    start: int,
    stop: int,
    *,
    total: int = 8,
    model: str = MODEL,
    fingerprint: str = "f",
    kv_cache: bool = True,
    multi_token: bool = True,
    inseparable: tuple[LayerRange, ...] = (),
    arithmetic: str = "a",
) -> ShardDescription:
    return ShardDescription(
        model=ModelId(model),
        fingerprint=fingerprint,
        layers=LayerRange(start, stop),
        layers_total=total,
        dtype=DType.FP32,
        hidden_size=8,
        vocab_size=16,
        context_length=64,
        capabilities=Capabilities(kv_cache, multi_token),
        kv_bytes=KVBytes(1),
        weight_bytes=1,
        bytes_read=1,
        arithmetic=arithmetic,
        inseparable=inseparable,
    )


def node(
    name: str, *shards: ShardDescription, ready: bool = True, sessions: int = 0
) -> NodeDescription:
    return NodeDescription(
        node=NodeId(name),
        wire=1,
        pid=1,
        ready=ready,
        shards=shards,
        sessions=sessions,
        sessions_max=8,
        kv_bytes=0,
        kv_bytes_max=100,
        compute_s=0.0,
        steps=0,
    )


def inventory(*nodes: NodeDescription, suspects: tuple[str, ...] = ()) -> Inventory:
    return Inventory(
        {described.node: described for described in nodes}, frozenset(map(NodeId, suspects))
    )


def hops(route: Route | NoRoute) -> list[tuple[str, str]]:
    assert isinstance(route, Route), str(route)
    return [(hop.node, str(hop.layers)) for hop in route.hops]


def test_shards_that_meet_make_a_route_in_layer_order():
    found = find_route(inventory(node("b", shard(0, 3)), node("a", shard(3, 8))), MODEL)

    assert hops(found) == [("b", "0-3"), ("a", "3-8")]


def test_of_overlapping_shards_a_sub_range_is_run():
    found = find_route(inventory(node("a", shard(0, 5)), node("b", shard(3, 8))), MODEL)

    assert hops(found) == [("a", "0-5"), ("b", "5-8")]


def test_one_node_that_holds_all_is_the_shortest_route():
    split = [node("a", shard(0, 4)), node("b", shard(4, 8))]

    assert hops(find_route(inventory(*split, node("c", shard(0, 8))), MODEL)) == [("c", "0-8")]


def test_a_suspect_is_the_second_choice():
    nodes = [node("a", shard(0, 8)), node("b", shard(0, 8), sessions=7)]

    assert hops(find_route(inventory(*nodes, suspects=("a",)), MODEL)) == [("b", "0-8")]


def test_a_suspect_serves_when_nobody_else_can():
    nodes = [node("a", shard(0, 4)), node("b", shard(4, 8))]

    found = find_route(inventory(*nodes, suspects=("a",)), MODEL)

    assert hops(found) == [("a", "0-4"), ("b", "4-8")]


def test_the_less_loaded_replica_is_taken_and_ties_fall_by_name():
    nodes = [node("a", shard(0, 8), sessions=2), node("b", shard(0, 8)), node("c", shard(0, 8))]

    assert hops(find_route(inventory(*nodes), MODEL)) == [("b", "0-8")]


def test_a_replica_that_caches_is_taken_before_one_that_does_not():
    nodes = [node("a", shard(0, 8, kv_cache=False)), node("b", shard(0, 8), sessions=5)]

    assert hops(find_route(inventory(*nodes), MODEL)) == [("b", "0-8")]


def test_a_route_can_only_what_all_its_shards_can():
    nodes = [node("a", shard(0, 4, kv_cache=False)), node("b", shard(4, 8, multi_token=False))]

    found = find_route(inventory(*nodes), MODEL)

    assert isinstance(found, Route)
    assert (found.kv_cache, found.multi_token) == (False, False)


def test_shards_of_two_fingerprints_never_meet():
    """Pit A34."""
    nodes = [node("a", shard(0, 4)), node("b", shard(4, 8, fingerprint="other"))]

    found = find_route(inventory(*nodes), MODEL)

    assert found == NoRoute(MODEL, (LayerRange(0, 4),))


def test_avoided_and_unready_nodes_and_other_models_are_not_used():
    """Pit A108."""
    nodes = [
        node("a", shard(0, 8)),
        node("b", shard(0, 8), ready=False),
        node("c", shard(0, 8, model="other")),
    ]

    found = find_route(inventory(*nodes), MODEL, avoid={NodeId("a")})

    assert found == NoRoute(MODEL, ())
    assert str(found) == "no ready node serves m"


def test_no_route_says_which_layers_nobody_holds():
    """Pit A108."""
    nodes = [node("a", shard(1, 3)), node("b", shard(2, 4)), node("c", shard(6, 7))]

    found = find_route(inventory(*nodes), MODEL)

    assert found == NoRoute(MODEL, (LayerRange(0, 1), LayerRange(4, 6), LayerRange(7, 8)))
    assert str(found) == "no ready node serves layers 0-1, 4-6, 7-8 of m"


def test_an_inseparable_run_is_not_cut():
    """Pit A74."""
    run = (LayerRange(4, 7),)
    nodes = [
        node("a", shard(0, 5, inseparable=run)),
        node("b", shard(3, 8, inseparable=run)),
    ]

    found = find_route(inventory(*nodes), MODEL)

    assert hops(found) == [("a", "0-4"), ("b", "4-8")]


def test_an_inseparable_run_that_no_shard_holds_whole_is_what_is_missing():
    run = (LayerRange(4, 7),)
    nodes = [node("a", shard(0, 5, inseparable=run)), node("b", shard(5, 8, inseparable=run))]

    assert find_route(inventory(*nodes), MODEL) == NoRoute(MODEL, run)


def test_two_shards_on_one_node_may_both_be_hops():
    nodes = [node("a", shard(0, 2), shard(5, 8)), node("b", shard(2, 5))]

    found = find_route(inventory(*nodes), MODEL)

    assert hops(found) == [("a", "0-2"), ("b", "2-5"), ("a", "5-8")]


TOTAL = 5
RANGES = [LayerRange(start, stop) for start in range(TOTAL) for stop in range(start + 1, TOTAL + 1)]


@st.composite
def inventories(draw: st.DrawFn) -> Inventory:
    runs = draw(st.sampled_from([(), (LayerRange(1, 3),), (LayerRange(1, 3), LayerRange(3, 5))]))
    nodes = []
    for index in range(draw(st.integers(0, 5))):
        layers = draw(st.sampled_from(RANGES))
        fingerprint = draw(st.sampled_from("fffg"))
        kind = shard(
            layers.start, layers.stop, total=TOTAL, fingerprint=fingerprint, inseparable=runs
        )
        ready = draw(st.integers(0, 4)) > 0
        nodes.append(node(f"n{index}", kind, ready=ready, sessions=draw(st.integers(0, 8))))
    suspects = tuple(described.node for described in nodes if draw(st.booleans()))
    return inventory(*nodes, suspects=suspects)


def fewest_hops(known: Inventory) -> int | None:
    """Try every set of cuts: how many hops the shortest cover has, None if there is no cover."""
    fingerprints = {"f", "g"}
    shards = [s for n in known.nodes.values() if n.ready for s in n.shards]
    for count in range(TOTAL):
        for cuts in combinations(range(1, TOTAL), count):
            ends = [0, *cuts, TOTAL]
            hops = [LayerRange(ends[at], ends[at + 1]) for at in range(len(ends) - 1)]
            for fingerprint in fingerprints:
                kind = [s for s in shards if s.fingerprint == fingerprint]
                runs = {run for s in kind for run in s.inseparable}
                whole = all(not run.start < cut < run.stop for run in runs for cut in cuts)
                if whole and all(any(s.layers.holds(hop) for s in kind) for hop in hops):
                    return count + 1
    return None


@settings(derandomize=True, deadline=None, max_examples=500)
@given(inventories())
def test_a_route_is_found_exactly_when_there_is_one_and_is_a_shortest_exact_cover(known):
    """Pit A90."""
    found = find_route(known, MODEL)

    shortest = fewest_hops(known)
    assert isinstance(found, Route) == (shortest is not None)
    if isinstance(found, Route):
        check_cover([hop.layers for hop in found.hops])
        assert found.hops[-1].layers.stop == TOTAL
        assert len(found.hops) == shortest
        kinds = {serving(known, hop).fingerprint for hop in found.hops}
        assert len(kinds) == 1


@settings(derandomize=True, deadline=None, max_examples=200)
@given(inventories(), st.randoms(use_true_random=False))
def test_the_order_in_which_nodes_are_known_does_not_matter(known, random):
    shuffled = list(known.nodes.items())
    random.shuffle(shuffled)

    assert find_route(Inventory(dict(shuffled), known.suspects), MODEL) == find_route(known, MODEL)


def serving(known: Inventory, hop: Hop) -> ShardDescription:
    described = known.nodes[hop.node]
    assert described.ready
    (holding,) = described.shards
    assert holding.layers.holds(hop.layers)
    return holding


def test_a_running_generation_is_routed_over_its_own_weights_only():
    """Nodes upgraded to other weights in the meantime may not continue its text."""
    old = [node("a", shard(0, 4, fingerprint="old")), node("b", shard(4, 8, fingerprint="old"))]
    new = node("c", shard(0, 8, fingerprint="new"))

    best = find_route(inventory(*old, new), MODEL)
    same = find_route(inventory(*old, new), MODEL, fingerprint="old")
    gone = find_route(inventory(old[0], new), MODEL, fingerprint="old")

    assert isinstance(best, Route)
    assert best.fingerprint == "new"
    assert isinstance(same, Route)
    assert [hop.node for hop in same.hops] == ["a", "b"]
    assert gone == NoRoute(MODEL, (LayerRange(4, 8),))


def test_a_node_of_wire_version_0_runs_all_it_holds_or_nothing():
    """It knows no layers field: asked for a part, it would run the whole and answer 200."""
    old = replace(node("old", shard(2, 6)), wire=0)
    inventory = {
        description.node: description
        for description in (node("a", shard(0, 4)), old, node("z", shard(5, 8)))
    }

    found = find_route(Inventory(inventory), MODEL)

    assert isinstance(found, Route)
    assert found.hops == (
        Hop(NodeId("a"), LayerRange(0, 2)),
        Hop(NodeId("old"), LayerRange(2, 6), wire=0),
        Hop(NodeId("z"), LayerRange(6, 8)),
    )


def chaining(description: NodeDescription, *peers: str) -> NodeDescription:
    return replace(description, stream=True, chain=True, peers=tuple(map(NodeId, peers)))


def test_a_route_is_a_chain_where_every_node_knows_the_one_behind_it():
    first, middle, last = (
        chaining(node("a", shard(0, 3)), "a", "b", "c"),
        chaining(node("b", shard(3, 6)), "c"),
        chaining(node("c", shard(6, 8))),
    )

    def chained(*nodes: NodeDescription) -> bool:
        route = find_route(Inventory({each.node: each for each in nodes}), MODEL)
        assert isinstance(route, Route)
        return route.chain

    assert chained(first, middle, last)
    assert not chained(first, replace(middle, peers=()), last), "it knows nobody"
    assert not chained(first, replace(middle, chain=False), last), "an older node"
    assert not chained(first, middle, replace(last, stream=False)), "no way to its answers"
    assert not chained(chaining(node("a", shard(0, 8)), "a")), "nobody to hand on to"


def test_a_way_that_is_no_chain_will_not_do_where_a_chain_is_asked_for():
    first, last = chaining(node("a", shard(0, 3)), "b"), chaining(node("b", shard(3, 8)))

    def found(*nodes: NodeDescription) -> Route | NoRoute:
        return find_route(Inventory({each.node: each for each in nodes}), MODEL, chained=True)

    assert isinstance(found(first, last), Route)
    assert isinstance(found(node("alone", shard(0, 8))), Route)
    none = found(replace(first, peers=()), last)
    assert str(none) == f"no chain for {MODEL}: a cannot hand on to the next node"


def test_an_older_node_parts_the_way_and_the_others_hand_on_where_they_can():
    nodes = [
        chaining(node("a", shard(0, 2)), "b"),
        chaining(node("b", shard(2, 4)), "old"),
        node("old", shard(4, 5)),
        chaining(node("c", shard(5, 7)), "d"),
        chaining(node("d", shard(7, 8))),
    ]

    route = find_route(Inventory({each.node: each for each in nodes}), MODEL)

    assert isinstance(route, Route)
    assert [[hop.node for hop in run] for run in route.segments] == [
        ["a", "b"],
        ["old"],
        ["c", "d"],
    ]


@pytest.mark.parametrize(
    ("capabilities", "told"),
    [
        ([{"truncate": True}, {"truncate": True}], (True, True)),
        ([{"truncate": True}, {"marks": 2}], (False, True)),
        ([{"marks": 2}, {"marks": 1}], (False, True)),
        ([{"truncate": True}, {}], (False, False)),
    ],
)
def test_a_route_shortens_sessions_as_its_least_able_hop_does(capabilities, told):
    able = [Capabilities(kv_cache=True, multi_token=True, **each) for each in capabilities]
    first = replace(shard(0, 4), capabilities=able[0])
    second = replace(shard(4, 8), capabilities=able[1])

    found = find_route(inventory(node("a", first), node("b", second)), MODEL)

    assert isinstance(found, Route)
    assert (found.truncate, found.marks) == told
