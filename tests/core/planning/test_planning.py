"""Which nodes run what, in cases whose answer is plain."""

from __future__ import annotations

import random

import pytest
from tests.core.planning.meshes import (
    MB,
    MS,
    layer_of,
    mesh_of,
    node_of,
    shape_of,
    shown,
    speed_of,
    whole_chunks,
)

from meshnet.core.planning import Mesh, NoPlan, Plan, Wanted, assignments, plan
from meshnet.core.planning import planning as planning_module
from meshnet.core.planning.planning import shortlist
from meshnet.core.planning.scoring import Scores
from meshnet.core.planning.search import Search
from meshnet.core.vocabulary import Capacity, LayerRange, Link, NodeId, Reading, Speed, WeightFormat

SIX = shape_of([layer_of(10 * MB)] * 6)
SMALL = Wanted(256, prompt=100)
"""Takes 256 kB a layer beside its 10 MB."""


def planned(shape, mesh, wanted=SMALL, **others) -> Plan:
    made = plan(shape, mesh, wanted, cutting=whole_chunks, **others)
    assert isinstance(made, Plan), str(made)
    return made


def test_a_model_that_fits_one_node_is_not_split():
    made = planned(SIX, mesh_of(node_of("x"), node_of("y")))

    assert shown(made.hops) == "a 0-6"
    assert made.best
    assert [left.node for left in made.left_out] == ["b"]
    assert "with it a token would take" in made.left_out[0].reason


def test_two_nodes_whose_caches_hold_a_half_each_beat_one_that_holds_none():
    """Splitting wins where weights that fit a cache are read much faster."""
    cached = Speed(
        WeightFormat.INT8, (Reading(30 * MB, 100e9), Reading(60 * MB, 5e9)), 1e12, 1e12, 1e12, 0, 0
    )

    made = planned(SIX, mesh_of(node_of("x", speed=cached), node_of("y", speed=cached)))

    assert len(made.hops) == 2
    assert made.left_out == ()


def test_the_faster_node_gets_the_model():
    """Pit A88."""
    made = planned(SIX, mesh_of(node_of("x"), node_of("y", speed=speed_of(20e9))))

    assert shown(made.hops) == "b 0-6"


def test_a_fast_node_behind_a_slow_link_is_left_out():
    far = (Link(NodeId("a"), 0.2 * MS, 1e9), Link(NodeId("b"), 50 * MS, 1e9))

    made = planned(SIX, mesh_of(node_of("x"), node_of("y", speed=speed_of(20e9)), head=far))

    assert shown(made.hops) == "a 0-6"


def test_what_one_node_cannot_hold_is_split_so_that_prompts_flow_evenly():
    """Any cut gives equally fast tokens here."""
    wanted = Wanted(1024, prompt=512)
    room = 5 * (10 * MB + 1024 * 1000)

    made = planned(SIX, mesh_of(node_of("x", room), node_of("y", room)), wanted)

    assert [len(hop.layers) for hop in made.hops] == [3, 3]


def test_the_order_of_nodes_follows_the_links():
    room = 2 * (10 * MB + 256_000)
    near = {("a", "c"), ("c", "b")}

    def links(name: str) -> list[Link]:
        return [
            Link(NodeId(other), (0.1 if (name, other) in near else 40) * MS, 1e9)
            for other in "abc"
            if other > name or (name, other) in near
        ]

    mesh = mesh_of(*(node_of(name, room, links=links(name)) for name in "abc"))

    made = planned(SIX, mesh)

    assert [hop.node for hop in made.hops] in (["a", "c", "b"], ["b", "c", "a"])


def test_kv_of_all_sessions_counts_as_memory():
    """Pit A89."""
    room = 6 * (10 * MB + 256_000)

    alone = planned(SIX, mesh_of(node_of("x", room), node_of("y", room)))
    many = planned(SIX, mesh_of(node_of("x", room), node_of("y", room)), Wanted(256, 8, prompt=100))

    assert len(alone.hops) == 1
    assert len(many.hops) == 2


def test_layers_that_belong_together_stay_on_one_node():
    shape = shape_of([layer_of(10 * MB)] * 6, inseparable=(LayerRange(1, 5),))
    room = 5 * (10 * MB + 256_000)

    made = planned(shape, mesh_of(node_of("x", room), node_of("y", room)))

    assert shown(made.hops)[2:5] in ("0-1", "0-5")


def test_nodes_of_one_machine_share_its_memory():
    room = 6 * (10 * MB + 256_000)

    made = plan(
        shape_of([layer_of(10 * MB)] * 8), mesh_of(node_of("x", room), node_of("x", room)),
        SMALL, cutting=whole_chunks,
    )  # fmt: skip

    assert isinstance(made, NoPlan)
    assert "the nodes have 61,536,000" in made.reason


def test_a_node_without_room_for_the_smallest_piece_is_left_out_and_told_why():
    made = planned(SIX, mesh_of(node_of("x"), node_of("y", 5 * MB)))

    assert made.left_out[0].reason == (
        "it has room for 5,000,000 bytes, and the smallest piece takes 10,256,000"
    )


def test_a_node_whose_machine_is_full_is_left_out_and_told_why():
    """Alone on its machine it could hold a layer; beside the other it has half the room."""
    fast = speed_of(20e9)
    mesh = mesh_of(node_of("x", 90 * MB, fast), node_of("x", 12 * MB), node_of("y", 12 * MB))

    made = planned(SIX, mesh)

    assert shown(made.hops) == "a 0-6"
    assert made.left_out[0].reason == "it has no room beside the others of its machine"
    assert "with it a token would take" in made.left_out[1].reason


def test_a_node_that_measured_another_format_is_left_out_and_told_why():
    other = Speed(WeightFormat.BF16, (Reading(MB, 1e9),), 1e9, 1e9, 1e9, 0, 0)

    made = planned(SIX, mesh_of(node_of("x"), node_of("y", speed=other)))

    assert made.left_out[0].reason == "it has measured nothing in int8"


def test_a_model_too_large_for_all_nodes_has_no_plan_and_the_bytes_are_told():
    made = plan(SIX, mesh_of(node_of("x", 20 * MB)), SMALL, cutting=whole_chunks)

    assert isinstance(made, NoPlan)
    assert str(made) == (
        "m in int8 takes 61,536,000 bytes, 1,536,000 of them for 1 session(s) of 256 tokens;"
        " the nodes have 20,000,000"
    )


def test_a_mesh_that_measured_nothing_has_no_plan():
    made = plan(SIX, mesh_of(Capacity("x", 100 * MB, 1)), SMALL, cutting=whole_chunks)

    assert str(made) == "no node has measured how fast it is in int8"


def test_pieces_that_fit_nowhere_are_told_apart_from_too_little_memory():
    shape = shape_of([layer_of(30 * MB)] * 2)

    made = plan(
        shape, mesh_of(*(node_of(name, 25 * MB) for name in "xyz")), SMALL, cutting=whole_chunks
    )

    assert isinstance(made, NoPlan)
    assert "in pieces that its layers do not fit" in made.reason


def test_layers_stay_where_they_are_if_moving_them_gains_little():
    mesh = mesh_of(node_of("x", 40 * MB), node_of("y", 40 * MB), node_of("z", 40 * MB))
    present = {NodeId("b"): LayerRange(0, 3), NodeId("c"): LayerRange(3, 6)}

    told = assignments(SIX, mesh, SMALL, present, cutting=whole_chunks)

    assert told == present


def test_a_hole_is_filled_around_the_layers_that_are_in_their_places():
    mesh = mesh_of(node_of("x", 40 * MB), node_of("y", 40 * MB), node_of("z", 40 * MB))
    present = {NodeId("b"): LayerRange(0, 3), NodeId("gone"): LayerRange(3, 6)}

    told = assignments(SIX, mesh, SMALL, present, cutting=whole_chunks)

    assert told[NodeId("b")] == LayerRange(0, 3)
    assert sorted(told.values()) == [LayerRange(0, 3), LayerRange(3, 6)]


def test_layers_move_where_that_makes_tokens_much_faster():
    mesh = mesh_of(node_of("x", speed=speed_of(1e9)), node_of("y", speed=speed_of(20e9)))
    present = {NodeId("a"): LayerRange(0, 6)}

    told = assignments(SIX, mesh, SMALL, present, cutting=whole_chunks)

    assert told[NodeId("b")] == LayerRange(0, 6)


def test_an_assignment_that_cannot_be_is_told_like_a_plan():
    mesh = mesh_of(node_of("x", 20 * MB))

    assert isinstance(assignments(SIX, mesh, SMALL, {}, cutting=whole_chunks), NoPlan)


def many_nodes(count: int, *, memory_bytes: int, seed: int = 1) -> list[Capacity]:
    draw = random.Random(seed)
    return [
        node_of(
            f"m{at}",
            draw.randint(memory_bytes // 2, memory_bytes),
            speed_of(draw.uniform(5e9, 40e9)),
        )
        for at in range(count)
    ]


@pytest.mark.parametrize("memory_bytes", [40 * MB, 400 * MB, 4000 * MB])
def test_a_thousand_nodes_cost_no_more_work_than_the_model_asks(memory_bytes, monkeypatch):
    """Work is counted, not timed: hops evaluated, and labels tried."""
    nodes = {
        NodeId(f"n{at}"): node
        for at, node in enumerate(many_nodes(1000, memory_bytes=memory_bytes))
    }
    shape = shape_of([layer_of(10 * MB)] * 128)
    counted: list[Search] = []

    class Counted(Search):
        def __init__(self, *given: object) -> None:
            super().__init__(*given)  # type: ignore[arg-type]
            counted.append(self)

    monkeypatch.setattr(planning_module, "Search", Counted)

    made = planned(shape, Mesh(nodes))

    assert len(made.left_out) == 1000 - len(made.hops)
    assert sum(search.extended for search in counted) < 1_000_000
    assert not made.best


def test_of_many_nodes_those_are_looked_at_that_add_least():
    mesh_nodes = {
        NodeId(f"n{at}"): node for at, node in enumerate(many_nodes(200, memory_bytes=40 * MB))
    }

    scores = Scores(SIX, Mesh(mesh_nodes), SMALL)

    chosen = shortlist(scores, sorted(mesh_nodes), {})

    rates = sorted(node.speeds[0].reading[0].bytes_per_s for node in mesh_nodes.values())
    slowest = min(mesh_nodes[node].speeds[0].reading[0].bytes_per_s for node in chosen)
    assert len(chosen) == 12
    assert slowest > rates[100]


def test_a_dozen_unlike_nodes_that_need_each_other_are_planned_exactly():
    draw = random.Random(7)
    room = 12 * (10 * MB + 256_000)
    nodes = [
        node_of(f"m{at}", round(room * draw.uniform(0.8, 1.2)), speed_of(draw.uniform(9e9, 11e9)))
        for at in range(12)
    ]
    mesh = Mesh({NodeId(f"n{at}"): node for at, node in enumerate(nodes)})

    made = planned(shape_of([layer_of(10 * MB)] * 30), mesh)

    assert len(made.hops) == 3
    assert made.best
