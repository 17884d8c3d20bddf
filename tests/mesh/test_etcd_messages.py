"""What etcd's JSON gateway tells, read strictly and without believing it."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.mesh.members import member

from meshnet.core.protocol.fields import print_object
from meshnet.core.protocol.members import member_values
from meshnet.core.vocabulary import BadField, Buffer
from meshnet.mesh.registry import etcd_messages
from meshnet.mesh.registry.etcd_messages import Keys
from meshnet.mesh.registry.messages import Announcement, encode_announcement
from meshnet.mesh.registry.ports import Joined, Left, RegistryRefused, Revision, Updated, Written

A = member(1)
KEYS = Keys("mesh")
SAID = encode_announcement(Announcement(A, 10.0))


def line(key: str, value: bytes, **more: Any) -> bytes:
    held = {
        "key": base64.b64encode(key.encode()).decode(),
        "value": base64.b64encode(value).decode(),
        "mod_revision": "7",
    }
    event = {"kv": held | more.pop("kv", {}), **more}
    return json.dumps({"result": {"header": {"revision": "9"}, "events": [event]}}).encode()


def changed(said: bytes) -> list[object] | None:
    changes = etcd_messages.changes(said, KEYS, Revision(5))
    return None if changes is None else list(changes)


def test_a_key_that_is_new_has_joined_and_one_that_was_there_is_updated():
    new = line(KEYS.members + A.node, SAID, kv={"create_revision": "7"})
    old = line(KEYS.members + A.node, SAID, kv={"create_revision": "3"})

    assert changed(new) == [Joined(A, Revision(7))]
    assert changed(old) == [Updated(A, Revision(7))]


def test_a_deleted_member_has_left_and_a_value_was_written_either_way():
    assert changed(line(KEYS.members + A.node, b"", type="DELETE")) == [Left(A.node, Revision(7))]
    assert changed(line(KEYS.values + "k/1", b"v")) == [Written("k/1", Revision(7))]
    assert changed(line(KEYS.values + "k/1", b"", type="DELETE")) == [Written("k/1", Revision(7))]


@pytest.mark.parametrize(
    "said",
    [
        b"garbage",
        print_object({"ttl_s": 10, "member": {**member_values(A), "wire": A.wire + 1}}),
        encode_announcement(Announcement(replace(A, node=member(2).node), 10.0)),
    ],
    ids=["garbage", "of a later wire version", "of another name"],
)
def test_what_cannot_be_believed_of_a_member_is_none(said: bytes):
    assert changed(line(KEYS.members + A.node, said)) == [Left(A.node, Revision(7))]


@pytest.mark.parametrize("more", [{}, {"type": "DELETE"}], ids=["put", "deleted"])
@pytest.mark.parametrize("key", ["mesh/else", "mesh/members/", "mesh/members/no url"])
def test_keys_of_others_below_the_prefix_are_none(key: str, more: dict[str, str]):
    assert changed(line(key, b"v", **more)) == []


def test_a_key_that_is_no_text_is_none_and_hides_no_other():
    odd = {"key": base64.b64encode(b"mesh/members/\xff").decode(), "mod_revision": "7"}
    said = print_object({"header": {"revision": "9"}, "kvs": [odd]})

    (held,), _ = etcd_messages.held(said)
    assert etcd_messages.announced(held, KEYS) is None
    assert changed(line("", b"", kv=odd)) == []


def test_who_may_not_watch_is_refused():
    """etcd says so in the stream, in the words of 3.4 and later."""
    told = {
        "header": {}, "created": True, "canceled": True, "watch_id": "-1",
        "cancel_reason": "rpc error: code = PermissionDenied desc = etcdserver: permission denied",
    }  # fmt: skip
    with pytest.raises(RegistryRefused, match=r"mesh/.*permission denied"):
        changed(json.dumps({"result": told}).encode())


@pytest.mark.parametrize(
    "told",
    [
        {"header": {"revision": "4"}, "created": True},
        {"header": {"revision": "9"}, "canceled": True, "compact_revision": "8"},
    ],
    ids=["another etcd", "compacted"],
)
def test_a_watch_that_cannot_tell_all_says_so(told: object):
    assert changed(json.dumps({"result": told}).encode()) is None


@pytest.mark.parametrize(
    "decode",
    [
        etcd_messages.held,
        etcd_messages.counted,
        etcd_messages.granted,
        etcd_messages.is_kept_alive,
        etcd_messages.swapped,
        etcd_messages.token,
        lambda data: etcd_messages.changes(data, KEYS, Revision(0)),
    ],
)
@given(
    data=st.one_of(
        st.binary(max_size=60),
        st.sampled_from([b'{"result":[]}', b'{"kvs":[1]}', b'{"count":"-1"}', b'{"ID":5}']),
    )
)
def test_garbage_raises_one_error_only(decode: Callable[[Buffer], object], data: bytes):
    with suppress(BadField):
        decode(data)


@given(data=st.binary(max_size=60))
def test_any_answer_that_is_none_has_a_reason(data: bytes):
    _, said = etcd_messages.trouble(data)

    assert said
