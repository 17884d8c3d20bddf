"""Members and assignments as JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet.core.protocol.capacities import capacity_values
from meshnet.core.protocol.fields import print_object, read_object
from meshnet.core.protocol.limits import Limits
from meshnet.core.protocol.members import (
    EPOCH_MAX,
    decode_assignments,
    encode_assignments,
    member_values,
    node_url,
    read_member,
)
from meshnet.core.vocabulary import (
    MEMBERS_MAX,
    WIRE_VERSION,
    Assignments,
    BadField,
    Capacity,
    LayerRange,
    Member,
    MemberState,
    ModelId,
    NodeId,
)

LIMITS = Limits()
MEMBER = Member(
    node=NodeId("http://10.0.0.1:9001"),
    wire=1,
    state=MemberState.READY,
    capacity=Capacity("f00d", 8_000_000_000, 4),
    description="beef",
    model=ModelId("tiny"),
    layers=LayerRange(0, 2),
    assigned=True,
    epoch=3,
    failure="no such model",
)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
nodes = st.builds(
    lambda host, port: NodeId(f"http://{host}:{port}"),
    st.from_regex(r"[a-z][a-z0-9]{0,20}", fullmatch=True),
    st.integers(1, 65535),
)
layers = st.builds(lambda start, more: LayerRange(start, start + more), *[st.integers(1, 999)] * 2)
epochs = st.integers(1, EPOCH_MAX)


@st.composite
def members(draw: st.DrawFn) -> Member:
    held = draw(st.one_of(st.none(), st.tuples(texts.map(ModelId), layers)))
    return Member(
        node=draw(nodes),
        wire=draw(st.integers(0, WIRE_VERSION)),
        state=draw(st.sampled_from(MemberState)),
        capacity=Capacity(draw(texts), draw(st.integers(0, 2**53)), draw(st.integers(1, 999))),
        description=draw(texts),
        model=held and held[0],
        layers=held and held[1],
        assigned=draw(st.booleans()),
        epoch=draw(st.integers(0, EPOCH_MAX)),
        failure=draw(texts),
    )


def read(values: dict[str, Any]) -> Member:
    return read_member(read_object(print_object(values), "member", LIMITS))


@given(members())
def test_a_member_is_read_as_it_was_written(member: Member):
    assert read(member_values(member)) == member


@given(
    st.builds(
        Assignments,
        model=texts.map(ModelId),
        source=texts,
        weights=st.sampled_from(["auto", "int8"]),
        epoch=epochs,
        held=st.dictionaries(nodes, st.tuples(layers, epochs), max_size=5),
    )
)
def test_assignments_are_read_as_they_were_written(assignments: Assignments):
    assert decode_assignments(encode_assignments(assignments)) == assignments


@given(st.binary(max_size=200))
def test_what_are_no_assignments_raises_one_error_only(data: bytes):
    with pytest.raises(BadField):
        decode_assignments(data)


def test_as_many_members_as_there_may_be_can_be_assigned():
    held = {
        NodeId(f"http://node-{number}.a-rather-long-domain.example.org:9001"): (
            LayerRange(number, number + 1),
            EPOCH_MAX,
        )
        for number in range(MEMBERS_MAX)
    }
    assignments = Assignments(ModelId("m"), "org/model", "int8", EPOCH_MAX, held)

    data = encode_assignments(assignments)

    assert len(data) < 256 * 1024
    assert decode_assignments(data) == assignments


@pytest.mark.parametrize("absent", ["description", "assigned", "epoch", "failure"])
def test_what_an_older_node_does_not_tell_has_a_meaning(absent: str):
    values = member_values(MEMBER)
    del values[absent]

    assert getattr(read(values), absent) in ("", False, 0)


def test_a_member_without_a_model_holds_nothing():
    values = member_values(MEMBER)
    del values["model"], values["layers"]

    assert (read(values).model, read(values).layers) == (None, None)


def test_unknown_keys_are_ignored():
    assert read({**member_values(MEMBER), "speed": [1, {"a": 2}]}) == MEMBER


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"state": "asleep"}, "member.state: expected joining, loading, ready, draining"),
        ({"wire": 2}, "member.wire: expected at most 1, the version of this mesh, got 2"),
        ({"node": "10.0.0.1:9001"}, "member.node: expected a URL such as"),
        ({"layers": "2-0"}, "member.layers: expected layers A-B"),
        ({"layers": None}, "member.layers"),
        ({"capacity": capacity_values(MEMBER.capacity) | {"memory_bytes": -1}}, "memory_bytes"),
        ({"capacity": None}, "member.capacity"),
        ({"epoch": 2**60}, "member.epoch"),
        ({"failure": "x" * 2000}, "member.failure"),
    ],
)
def test_what_is_present_and_wrong_is_refused_by_name(change: dict[str, Any], told: str):
    with pytest.raises(BadField) as refused:
        read({**member_values(MEMBER), **change})

    assert told in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "", "a:9001", "http://a", "http://a:0", "http://a:99999", "ftp://a:9001", "http://a:9001/",
        "http://a:9001/x", "http://a:9001?q", "http://a:9001#f", "http://u:p@a:9001",
        "http://a b:9001", "http://ä:9001", "http://[::1:9001", "http://a:9001\n", "x" * 300,
    ],
)  # fmt: skip
def test_a_node_is_a_url_of_host_and_port_and_nothing_else(text: str):
    with pytest.raises(BadField):
        node_url(text)


@pytest.mark.parametrize("text", ["http://a:9001", "https://10.0.0.1:443", "http://[::1]:9001"])
def test_a_node_goes_by_the_url_that_others_dial(text: str):
    assert node_url(text) == text


def test_who_keeps_its_layers_keeps_its_epoch():
    a, b, c = (NodeId(f"http://{name}:1") for name in "abc")
    first = Assignments(ModelId("m"), "m", "auto").changed(
        {a: LayerRange(0, 2), b: LayerRange(2, 4)}
    )

    second = first.changed({a: LayerRange(0, 2), c: LayerRange(2, 4)})

    assert second.epoch == 2
    assert second.held == {a: (LayerRange(0, 2), 1), c: (LayerRange(2, 4), 2)}
    told = second.of(c)
    assert told is not None
    assert (told.layers, told.epoch) == (LayerRange(2, 4), 2)
    assert second.of(b) is None


def test_the_json_of_a_member_is_what_the_wire_page_shows():
    page = json.loads(print_object(member_values(MEMBER)))

    assert list(page) == [
        "node", "wire", "state", "capacity", "description", "assigned", "epoch", "failure",
        "model", "layers",
    ]  # fmt: skip
