"""What a registry and its clients say to each other, as JSON and back."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.protocol.test_members import members, nodes

from meshnet.core.vocabulary import BadField, Buffer
from meshnet.mesh.registry import messages
from meshnet.mesh.registry.messages import Announcement, Write
from meshnet.mesh.registry.ports import (
    VALUE_BYTES_MAX,
    Change,
    Joined,
    Leased,
    Left,
    Revision,
    Snapshot,
    Updated,
    Versioned,
    Written,
)

revisions = st.integers(0, 2**53).map(Revision)
seconds = st.floats(0, 1e6)
values = st.binary(max_size=200)
changes = st.one_of(
    st.builds(Joined, members(), revisions),
    st.builds(Updated, members(), revisions),
    st.builds(Left, nodes, revisions),
    st.builds(Written, st.text(st.characters(exclude_categories=["Cs"]), max_size=40), revisions),
)


@given(st.builds(Announcement, members(), seconds))
def test_an_announcement_is_read_as_it_was_written(said: Announcement):
    assert messages.decode_announcement(messages.encode_announcement(said)) == said


@given(st.lists(st.builds(Leased, members(), seconds), max_size=4), revisions)
def test_a_snapshot_is_read_as_it_was_written(leased: list[Leased], revision: Revision):
    snapshot = Snapshot({each.member.node: each for each in leased}, revision)

    assert messages.decode_snapshot(messages.encode_snapshot(snapshot)) == snapshot


@given(st.one_of(st.none(), st.lists(changes, max_size=5).map(tuple)))
def test_changes_are_read_as_they_were_written(told: tuple[Change, ...] | None):
    assert messages.decode_changes(messages.encode_changes(told)) == told


@given(st.builds(Write, st.one_of(st.none(), revisions), st.one_of(st.none(), values)))
def test_a_write_is_read_as_it_was_written(write: Write):
    assert messages.decode_write(messages.encode_write(write)) == write


@given(st.one_of(st.none(), st.builds(Versioned, values, revisions)))
def test_a_value_is_read_as_it_was_written(value: Versioned | None):
    assert messages.decode_value(messages.encode_value(value)) == value


def test_the_largest_value_fits_its_message():
    write = Write(None, b"\xff" * VALUE_BYTES_MAX)

    assert messages.decode_write(messages.encode_write(write)) == write
    assert len(messages.encode_write(write)) <= messages.REQUEST_LIMITS.json_bytes


def test_whether_it_was_written_is_read_as_it_was_said():
    assert messages.decode_written(messages.encode_written(written=True))
    assert not messages.decode_written(messages.encode_written(written=False))


@pytest.mark.parametrize(
    "decode",
    [
        messages.decode_announcement,
        messages.decode_snapshot,
        messages.decode_changes,
        messages.decode_write,
        messages.decode_value,
        messages.decode_written,
    ],
)
@given(data=st.binary(max_size=100))
def test_garbage_raises_one_error_only(decode: Callable[[Buffer], object], data: bytes):
    with pytest.raises(BadField):
        decode(data)


def test_a_member_that_cannot_be_read_does_not_hide_the_others():
    data = b'{"revision":1,"members":[{"left_s":1,"member":{"node":"?"}}]}'

    assert messages.decode_snapshot(data) == Snapshot({}, Revision(1))


def test_a_change_of_a_later_kind_is_not_guessed_at():
    with pytest.raises(BadField, match="kind: expected joined, updated, left or written"):
        messages.decode_changes(b'{"changes":[{"kind":"moved","revision":1}]}')
