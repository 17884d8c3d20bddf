"""Which member is told to hold which layers."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.mesh.members import MODEL, member

from meshnet.core.routing import partition
from meshnet.core.routing import placement as placement_module
from meshnet.core.routing.placement import ModelSize, Placement, place, rooms_of, uncovered
from meshnet.core.vocabulary import LayerRange, Member, MemberState, NodeId

SIZE = ModelSize(MODEL, layers_total=12)
TIGHT = ModelSize(MODEL, layers_total=12, layer_bytes=100)
"""A member of 1,000 bytes has room for 5 layers of it: half of its memory is for sessions."""


def told(**ranges: str) -> dict[NodeId, LayerRange]:
    """`n1="0-4"` is what node 1 holds."""
    return {member(int(name[1:])).node: LayerRange.parse(text) for name, text in ranges.items()}


def shown(placement: Placement) -> dict[str, str]:
    """The same way back."""
    numbers = {member(number).node: f"n{number}" for number in range(1, 30)}
    return {numbers[node]: str(layers) for node, layers in sorted(placement.ranges.items())}


def test_members_that_hold_nothing_share_the_model_by_their_memory():
    members = [member(1, memory_bytes=1000), member(2, memory_bytes=3000)]

    placement = place(members, SIZE, {})

    assert shown(placement) == {"n1": "0-3", "n2": "3-12"}
    assert placement.reason == ""


def test_members_on_one_machine_share_its_memory():
    members = [member(1, machine="m"), member(2, machine="m"), member(3)]

    assert shown(place(members, SIZE, {})) == {"n1": "0-3", "n2": "3-6", "n3": "6-12"}


def test_who_serves_keeps_what_it_serves_when_another_joins():
    present = told(n1="0-5", n2="5-12")

    placement = place([member(1), member(2), member(3)], SIZE, present)

    assert placement.ranges.items() >= present.items()


def test_a_spare_member_doubles_what_the_fewest_hold():
    present = told(n1="0-4", n2="4-8", n3="8-12", n4="0-4")

    placement = place([member(number) for number in range(1, 7)], SIZE, present)

    assert shown(placement) == shown(Placement(present)) | {"n5": "4-8", "n6": "8-12"}


def test_a_spare_member_doubles_only_what_it_has_room_for():
    present = told(n1="0-8", n2="8-12")

    placement = place([member(1), member(2), member(3)], TIGHT, present)

    assert shown(placement)["n3"] == "8-12"


def test_a_hole_is_taken_by_a_member_that_holds_nothing():
    placement = place([member(1), member(3), member(4)], SIZE, told(n1="0-4", n3="8-12"))

    assert shown(placement) == {"n1": "0-4", "n3": "8-12", "n4": "4-8"}


def test_a_hole_too_large_for_one_is_shared_by_several():
    members = [member(1), *(member(number, memory_bytes=500) for number in (2, 3, 4, 5))]

    placement = place(members, TIGHT, told(n1="0-5"))

    parts = [placement.ranges[member(number).node] for number in (2, 3, 4, 5)]
    assert uncovered(parts, 12) == (LayerRange(0, 5),)
    assert placement.reason == ""


def test_a_hole_is_taken_by_a_spare_before_anybody_who_is_needed_moves():
    present = told(n1="0-4", n2="0-4", n3="8-12")

    placement = place([member(1), member(2), member(3)], SIZE, present)

    assert sorted(map(str, placement.ranges.values())) == ["0-4", "4-8", "8-12"]
    assert placement.ranges[member(3).node] == LayerRange(8, 12)


def test_without_spares_the_neighbours_of_a_hole_widen_into_it():
    placement = place([member(1), member(3)], SIZE, told(n1="0-4", n3="8-12"))

    assert shown(placement) == {"n1": "0-6", "n3": "6-12"}


def test_a_neighbour_without_room_leaves_the_hole_to_the_other():
    members = [member(1, memory_bytes=800), member(3, memory_bytes=2000)]

    placement = place(members, TIGHT, told(n1="0-4", n3="8-12"))

    assert shown(placement) == {"n1": "0-4", "n3": "4-12"}


def test_a_neighbour_that_says_it_has_no_memory_at_all_is_asked_for_nothing_more():
    members = [member(1, memory_bytes=0), member(3)]

    placement = place(members, SIZE, told(n1="0-4", n3="8-12"))

    assert shown(placement) == {"n1": "0-4", "n3": "4-12"}


def test_where_no_neighbour_has_room_all_is_divided_anew():
    members = [member(1), member(2), member(3)]

    placement = place(members, TIGHT, told(n1="0-5", n2="5-9", n3="0-5"))

    assert uncovered(placement.ranges.values(), 12) == ()
    assert placement.reason == ""


def test_what_does_not_fit_is_told_with_its_size():
    large = ModelSize(MODEL, layers_total=12, layer_bytes=10**9)
    members = [member(1, memory_bytes=8 * 10**9), member(2, memory_bytes=10 * 10**9)]

    placement = place(members, large, {})

    assert placement.ranges == {}
    assert placement.reason == (
        "layers 0-12 of tiny do not fit the nodes that joined: "
        "2 nodes offer 18.0 GB, these layers take 24.0 GB"
    )


def test_without_members_the_model_waits_for_one():
    assert place([], SIZE, {}) == Placement({}, "layers 0-12 of tiny wait for a node to join")


def test_what_an_operator_chose_counts_and_is_told_nothing():
    fixed = member(1, "0-6", assigned=False, state=MemberState.READY)

    placement = place([fixed, member(2)], SIZE, {})

    assert shown(placement) == {"n2": "6-12"}


def test_a_member_that_failed_is_told_nothing_and_its_layers_go_to_others():
    members = [member(1), member(2, failure="no space left"), member(3)]

    placement = place(members, SIZE, told(n1="0-6", n2="6-12"))

    assert shown(placement) == {"n1": "0-6", "n3": "6-12"}


def test_the_failure_is_what_is_missing_where_nobody_else_has_room():
    members = [member(1), member(2, failure="no space left")]

    placement = place(members, TIGHT, told(n1="0-5"))

    assert "http://10.0.0.2:9001: no space left" in placement.reason


def test_a_draining_member_is_replaced():
    members = [member(1), member(2, state=MemberState.DRAINING), member(3)]

    placement = place(members, SIZE, told(n1="0-6", n2="6-12"))

    assert shown(placement) == {"n1": "0-6", "n3": "6-12"}


def test_who_is_needed_takes_the_layers_of_a_draining_member_only_once_that_has_left():
    """It would load anew, and so lose the chats of both."""
    draining, members = member(2, state=MemberState.DRAINING), [member(1), member(3)]
    present = told(n1="0-4", n2="4-8", n3="8-12")

    waiting = place([*members, draining], SIZE, present)
    after = place(members, SIZE, told(n1="0-4", n3="8-12"))

    assert shown(waiting) == {"n1": "0-4", "n3": "8-12"}
    assert "4-8 of tiny are held by a node that drains" in waiting.reason
    assert shown(after) == {"n1": "0-6", "n3": "6-12"}


def test_a_hole_is_closed_at_once_though_another_member_drains():
    draining, members = member(2, state=MemberState.DRAINING), [member(1), member(4)]
    present = told(n1="0-2", n2="5-12", n4="5-8")

    placement = place([*members, draining], SIZE, present)

    assert shown(placement) == {"n1": "0-4", "n4": "4-8"}, "8-12 waits for n2 to leave"


def test_layers_of_a_model_that_is_shorter_now_are_told_anew():
    assert shown(place([member(1)], SIZE, told(n1="0-30"))) == {"n1": "0-12"}


def test_an_inseparable_run_is_never_cut():
    size = ModelSize(MODEL, layers_total=12, inseparable=(LayerRange(2, 11),))

    placement = place([member(1), member(2)], size, {})

    assert uncovered(placement.ranges.values(), 12) == ()
    assert not any(2 < cut < 11 for each in placement.ranges.values() for cut in _cuts(each))


def test_more_members_than_layers_leave_some_as_doubles():
    size = ModelSize(MODEL, layers_total=2)

    placement = place([member(number) for number in range(1, 6)], size, {})

    assert len(placement.ranges) == 5
    assert placement.reason == ""


def _cuts(layers: LayerRange) -> tuple[int, int]:
    return layers.start, layers.stop


@st.composite
def meshes(draw: st.DrawFn) -> tuple[list[Member], ModelSize, dict[NodeId, LayerRange]]:
    total = draw(st.integers(1, 16))
    runs = draw(st.lists(st.integers(1, total), max_size=4).map(lambda cuts: sorted({*cuts})))
    inseparable = tuple(LayerRange(a, b) for a, b in pairwise(runs) if b - a > 1)
    inside = {cut for run in inseparable for cut in range(run.start + 1, run.stop)}
    cuts = [cut for cut in range(total + 1) if cut not in inside]
    members, present = [], {}
    for number in range(1, draw(st.integers(0, 7)) + 1):
        memory = draw(st.integers(0, 40)) * 100
        each = member(
            number,
            memory_bytes=memory,
            state=draw(st.sampled_from([MemberState.READY, MemberState.DRAINING])),
            failure=draw(st.sampled_from(["", "", "", "broken"])),
        )
        members.append(each)
        start, stop = sorted([draw(st.sampled_from(cuts)), draw(st.sampled_from(cuts))])
        if start < stop and stop - start <= memory / 200:
            present[each.node] = LayerRange(start, stop)
    return members, ModelSize(MODEL, total, inseparable, 100), present


@given(meshes())
def test_whoever_joins_and_leaves_the_laws_of_placing_hold(
    mesh: tuple[list[Member], ModelSize, Mapping[NodeId, LayerRange]],
):
    members, size, present = mesh
    able = {
        each.node for each in members if not each.failure and each.state is not MemberState.DRAINING
    }
    rooms = rooms_of([each for each in members if each.node in able], size)
    held = {node: layers for node, layers in present.items() if node in able}

    placement = place(members, size, present)

    missing = uncovered(placement.ranges.values(), size.layers_total)
    assert bool(missing) == bool(placement.reason)
    assert placement.ranges.keys() <= able
    for node, layers in placement.ranges.items():
        assert len(layers) <= rooms[node]
        for run in size.inseparable:
            assert not any(run.start < cut < run.stop for cut in _cuts(layers))
    if not uncovered(held.values(), size.layers_total):
        assert placement.ranges.items() >= held.items(), "nobody moves while all is held"
    assert place(members[::-1], size, present) == placement


@given(meshes())
def test_a_placement_that_is_complete_stays_as_it_is(
    mesh: tuple[list[Member], ModelSize, Mapping[NodeId, LayerRange]],
):
    members, size, present = mesh
    once = place(members, size, present)
    if once.reason:
        return

    assert place(members, size, once.ranges) == once


@pytest.mark.parametrize(
    ("ranges", "gaps"),
    [
        ([], ["0-12"]),
        (["0-12"], []),
        (["0-4", "8-12"], ["4-8"]),
        (["2-6", "4-9"], ["0-2", "9-12"]),
        (["0-20"], []),
    ],
)
def test_gaps_are_what_no_range_holds(ranges: list[str], gaps: list[str]):
    found = uncovered([LayerRange.parse(text) for text in ranges], 12)

    assert [str(gap) for gap in found] == gaps


def test_a_thousand_members_are_placed_by_few_divisions(monkeypatch: pytest.MonkeyPatch):
    """Counted, not timed: a gateway answers nobody while it places."""
    divisions: list[int] = []

    def counted(total: int, parts: int, *more: object) -> tuple[LayerRange, ...]:
        divisions.append(parts)
        return partition(total, parts, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(placement_module, "partition", counted)
    size = ModelSize(MODEL, layers_total=128, layer_bytes=100)
    members = [member(number, memory_bytes=2000) for number in range(1024)]
    whole = place(members, size, {})
    lost = {node: held for node, held in whole.ranges.items() if held.start}

    again = place([each for each in members if each.node in lost], size, lost)

    assert (whole.reason, again.reason) == ("", "")
    assert len(whole.ranges) == 1024
    assert len(divisions) <= 4


def test_spare_members_too_small_for_what_others_hold_double_it_in_parts():
    """Else all of a model that fits one node would be gone with that node."""
    present = told(n1="0-12")
    small = [member(number, memory_bytes=800) for number in (2, 3, 4)]

    placement = place([member(1, memory_bytes=4000), *small], TIGHT, present)

    doubles = [layers for node, layers in placement.ranges.items() if "0.1:" not in node]
    assert not uncovered(doubles, TIGHT.layers_total)
