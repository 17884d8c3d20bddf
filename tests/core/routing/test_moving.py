"""Who takes which layers over when a session leaves a route, and whether that pays."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.core.routing.test_finding import MODEL, node, shard

from meshnet.core.routing import Inventory, find_route
from meshnet.core.routing.moving import Taking, moving_pays, takings
from meshnet.core.vocabulary import Hop, KVBytes, LayerRange, NodeId, Route, ShardDescription


def moving(start: int, stop: int, **fields: object) -> ShardDescription:
    made = shard(start, stop)
    made = replace(
        made,
        capabilities=replace(made.capabilities, moves=True),
        kv_bytes=KVBytes(10 * (stop - start), 6),
    )
    return replace(made, **fields)  # type: ignore[arg-type]


def inventory(*spares: tuple[str, ShardDescription]) -> Inventory:
    nodes = [
        node("a", moving(0, 3)),
        replace(node("b", moving(3, 6)), draining=True),
        node("c", moving(6, 8)),
        *(node(name, held) for name, held in spares),
    ]
    return Inventory({each.node: each for each in nodes})


def route(*hops: tuple[str, int, int]) -> Route:
    made = tuple(Hop(NodeId(name), LayerRange(start, stop)) for name, start, stop in hops)
    return Route(MODEL, made, fingerprint="f")


OLD = route(("a", 0, 3), ("b", 3, 6), ("c", 6, 8))


def test_a_hop_that_stays_keeps_what_it_has():
    new = route(("a", 0, 3), ("s", 3, 6), ("c", 6, 8))

    found = takings(inventory(("s", moving(2, 7))), OLD, new, 100)

    assert found == (Taking(new.hops[1], NodeId("b"), 3006),)


def test_two_hops_share_the_layers_of_one():
    new = route(("a", 0, 3), ("s", 3, 4), ("t", 4, 6), ("c", 6, 8))

    found = takings(inventory(("s", moving(3, 4)), ("t", moving(4, 6))), OLD, new, 100)

    assert found == (
        Taking(new.hops[1], NodeId("b"), 1002),
        Taking(new.hops[2], NodeId("b"), 2004),
    )


@pytest.mark.parametrize(
    "spare",
    [
        moving(3, 6, arithmetic="other"),
        moving(3, 6, fingerprint="other"),
        replace(shard(3, 6)),
    ],
)
def test_a_shard_of_another_kind_takes_nothing_over(spare: ShardDescription):
    new = route(("a", 0, 3), ("s", 3, 6), ("c", 6, 8))

    assert takings(inventory(("s", spare)), OLD, new, 100) is None


def test_a_hop_over_a_cut_takes_nothing_over():
    new = route(("a", 0, 3), ("s", 3, 8))

    assert takings(inventory(("s", moving(3, 8))), OLD, new, 100) is None


def test_a_node_that_holds_layers_of_the_session_takes_no_more():
    new = route(("a", 0, 3), ("a", 3, 6), ("c", 6, 8))

    assert takings(inventory(), OLD, new, 100) is None


def test_a_node_that_drains_is_on_no_route():
    found = find_route(inventory(("s", moving(3, 6))), MODEL)

    assert isinstance(found, Route)
    assert [hop.node for hop in found.hops] == ["a", "s", "c"]
    assert not isinstance(find_route(inventory(), MODEL), Route)


@pytest.mark.parametrize(
    ("positions_per_s", "pays"), [(None, True), (10.0, True), (100.0, True), (1000.0, False)]
)
def test_moving_pays_where_computing_again_takes_longer(positions_per_s: float | None, pays: bool):
    assert pays == moving_pays(
        10_000, bytes_per_s=10_000, positions=100, positions_per_s=positions_per_s
    )
