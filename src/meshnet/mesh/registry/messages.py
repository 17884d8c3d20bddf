"""What a registry and its clients say to each other, as JSON (docs/wire.md, "The registry").

Unknown keys are ignored. A change of a kind that this version does not know makes a watch end in a
snapshot; a member that it cannot read is none to it.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from meshnet.core.protocol.fields import Fields, print_object, read_object
from meshnet.core.protocol.limits import Limits
from meshnet.core.protocol.members import NODE_CHARS_MAX, member_values, node_url, read_member
from meshnet.core.vocabulary import MEMBERS_MAX, BadField, Buffer, Member, NodeId
from meshnet.mesh.registry.ports import (
    KEY_CHARS_MAX,
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

REQUEST_LIMITS = Limits(json_bytes=512 * 1024, json_containers=2048)
ANSWER_LIMITS = Limits(json_bytes=16 * 2**20, json_containers=2**18)
"""Of a snapshot of all members with all that they tell of themselves."""
CHANGES_COUNT_MAX = 4096


@dataclass(frozen=True, slots=True)
class Announcement:
    member: Member
    ttl_s: float


@dataclass(frozen=True, slots=True)
class Write:
    """Of one value: None deletes it; `expected` None: there must be none."""

    expected: Revision | None
    value: bytes | None


def encode_announcement(said: Announcement) -> bytes:
    return print_object({"ttl_s": said.ttl_s, "member": member_values(said.member)})


def decode_announcement(data: Buffer) -> Announcement:
    """Raises BadField."""
    fields = read_object(data, "announcement", REQUEST_LIMITS)
    return Announcement(read_member(fields.object("member")), fields.number("ttl_s"))


def encode_snapshot(snapshot: Snapshot) -> bytes:
    members = [
        {"left_s": leased.left_s, "member": member_values(leased.member)}
        for leased in snapshot.members.values()
    ]
    return print_object({"revision": snapshot.revision, "members": members})


def decode_snapshot(data: Buffer) -> Snapshot:
    """Raises BadField."""
    fields = read_object(data, "snapshot", ANSWER_LIMITS)
    members: dict[NodeId, Leased] = {}
    for entry in fields.objects("members", count_max=MEMBERS_MAX):
        member = _readable(entry)
        if member is not None:
            members[member.node] = Leased(member, entry.number("left_s"))
    return Snapshot(members, Revision(fields.integer("revision")))


def _readable(fields: Fields) -> Member | None:
    try:
        return read_member(fields.object("member"))
    except BadField:
        return None


def encode_changes(changes: Sequence[Change] | None) -> bytes:
    """None: what changed is not known any more."""
    if changes is None:
        return print_object({"resync": True})
    return print_object({"changes": [_change_values(change) for change in changes]})


def _change_values(change: Change) -> dict[str, Any]:
    match change:
        case Joined(member, revision):
            return {"kind": "joined", "revision": revision, "member": member_values(member)}
        case Updated(member, revision):
            return {"kind": "updated", "revision": revision, "member": member_values(member)}
        case Left(node, revision):
            return {"kind": "left", "revision": revision, "node": node}
        case Written(key, revision):
            return {"kind": "written", "revision": revision, "key": key}


def decode_changes(data: Buffer) -> tuple[Change, ...] | None:
    """None: take a snapshot. Raises BadField."""
    fields = read_object(data, "changes", ANSWER_LIMITS)
    if fields.has("resync") and fields.truth("resync"):
        return None
    return tuple(_change(entry) for entry in fields.objects("changes", count_max=CHANGES_COUNT_MAX))


def _change(fields: Fields) -> Change:
    revision = Revision(fields.integer("revision"))
    match fields.text("kind", chars_max=32):
        case "joined":
            return Joined(read_member(fields.object("member")), revision)
        case "updated":
            return Updated(read_member(fields.object("member")), revision)
        case "left":
            return Left(node_url(fields.text("node", chars_max=NODE_CHARS_MAX)), revision)
        case "written":
            return Written(fields.text("key", chars_max=KEY_CHARS_MAX), revision)
        case _:
            raise fields.refuse("kind", "joined, updated, left or written")


def encode_write(write: Write) -> bytes:
    return print_object({"expected": write.expected, "value": _text(write.value)})


def decode_write(data: Buffer) -> Write:
    """Raises BadField."""
    fields = read_object(data, "write", REQUEST_LIMITS)
    expected = Revision(fields.integer("expected")) if fields.has("expected") else None
    return Write(expected, _bytes(fields) if fields.has("value") else None)


def encode_value(versioned: Versioned | None) -> bytes:
    if versioned is None:
        return print_object({})
    return print_object({"revision": versioned.revision, "value": _text(versioned.value)})


def decode_value(data: Buffer) -> Versioned | None:
    """Raises BadField."""
    fields = read_object(data, "value", ANSWER_LIMITS)
    if not fields.has("value"):
        return None
    return Versioned(_bytes(fields), Revision(fields.integer("revision")))


def encode_written(*, written: bool) -> bytes:
    return print_object({"written": written})


def decode_written(data: Buffer) -> bool:
    """Raises BadField."""
    return read_object(data, "written", ANSWER_LIMITS).truth("written")


def _text(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def _bytes(fields: Fields) -> bytes:
    try:
        return base64.b64decode(fields.text("value", chars_max=VALUE_BYTES_MAX * 2), validate=True)
    except (binascii.Error, ValueError):
        raise fields.refuse("value", "base64") from None
