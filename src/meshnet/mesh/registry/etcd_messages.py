"""What is said to etcd's v3 JSON gateway, and what it answers.

Keys and values travel as base64, 64-bit numbers as strings, and what is zero or empty not at all.
A change of a key that is no member's and no value's is none; a member that this version cannot
read is none to it.

Source: etcd 3.4, Documentation/dev-guide/api_grpc_gateway.md and etcdserverpb/rpc.proto.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Any

from meshnet.core.protocol.fields import Fields, print_object, read_object
from meshnet.core.protocol.members import node_url
from meshnet.core.vocabulary import MEMBERS_MAX, BadField, Buffer
from meshnet.mesh.registry.messages import ANSWER_LIMITS, Announcement, decode_announcement
from meshnet.mesh.registry.ports import (
    Change,
    Joined,
    Left,
    RegistryRefused,
    Revision,
    Updated,
    Written,
)

EVENTS_MAX = 2**16
_NUMBER_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Held:
    """One key as it is; `lease` 0: it has none."""

    key: str
    value: bytes
    revision: Revision
    lease: int


@dataclass(frozen=True, slots=True)
class Keys:
    """Where in etcd one mesh keeps what: below a prefix of its own."""

    prefix: str

    @property
    def members(self) -> str:
        return f"{self.prefix}/members/"

    @property
    def values(self) -> str:
        return f"{self.prefix}/values/"


def read(key: str) -> bytes:
    return _said(key=_text(key))


def read_all(prefix: str, *, limit: int) -> bytes:
    return _said(**_below(prefix), limit=str(limit))


def count_all(prefix: str) -> bytes:
    return _said(**_below(prefix), count_only=True)


def put(key: str, value: bytes, lease: int) -> bytes:
    return _said(key=_text(key), value=_base64(value), lease=str(lease))


def delete(key: str) -> bytes:
    return _said(key=_text(key))


def grant(ttl_s: int) -> bytes:
    return _said(TTL=str(ttl_s))


def keep_alive(lease: int) -> bytes:
    return _said(ID=str(lease))


def swap(key: str, expected: Revision | None, value: bytes | None) -> bytes:
    """Write or delete (None) if the key's revision is `expected`; that of an absent one is 0."""
    revision = str(expected or 0)
    is_as_read = {
        "key": _text(key), "target": "MOD", "result": "EQUAL", "mod_revision": revision
    }  # fmt: skip
    if value is None:
        done: dict[str, Any] = {"request_delete_range": {"key": _text(key)}}
    else:
        done = {"request_put": {"key": _text(key), "value": _base64(value)}}
    return _said(compare=[is_as_read], success=[done])


def watch(prefix: str, since: Revision) -> bytes:
    return _said(create_request={**_below(prefix), "start_revision": str(since + 1)})


def authenticate(user: str, password: str) -> bytes:
    return _said(name=user, password=password)


def held(answer: Buffer) -> tuple[list[Held], Revision]:
    """Return the keys that were read, and the revision of all at that time. Raises BadField."""
    fields = _answer(answer)
    return [_held(each) for each in _entries(fields, "kvs", MEMBERS_MAX)], _revision_of(fields)


def counted(answer: Buffer) -> int:
    """Raises BadField."""
    return _number(_answer(answer), "count")


def granted(answer: Buffer) -> int:
    """Return the lease. Raises BadField."""
    return _number(_answer(answer), "ID")


def is_kept_alive(answer: Buffer) -> bool:
    """Whether there is that lease still. Raises BadField."""
    return _number(_result(_answer(answer)), "TTL") > 0


def swapped(answer: Buffer) -> bool:
    """Raises BadField."""
    fields = _answer(answer)
    return fields.has("succeeded") and fields.truth("succeeded")


def token(answer: Buffer) -> str:
    """Raises BadField."""
    return _answer(answer).text("token")


def trouble(answer: Buffer) -> tuple[int, str]:
    """Return gRPC's code and message of an answer that is none, or of the end of a stream."""
    try:
        fields = _answer(answer)
        fields = fields.object("error") if fields.names() == ["error"] else fields
        name = "grpc_code" if fields.has("grpc_code") else "code"
        return fields.integer(name), fields.text("message")
    except BadField:
        return 0, "is that the client address of an etcd of version 3.4 or later?"


def changes(line: Buffer, keys: Keys, since: Revision) -> list[Change] | None:
    """Read one line of a watch. None: what changed is not known any more.

    Raises BadField, and RegistryRefused for who may not watch: etcd says so in the stream.
    """
    fields = _result(_answer(line))
    if fields.has("canceled") and fields.truth("canceled"):
        reason = fields.text("cancel_reason") if fields.has("cancel_reason") else ""
        if "permission denied" in reason:
            raise RegistryRefused(
                f"watch of {keys.prefix}/: {reason}: its role needs readwrite on this prefix"
            )
        return None
    if fields.has("created") and _revision_of(fields) < since:
        return None  # this is another etcd: what it was asked for lies in its future
    events = (_change(event, keys) for event in _entries(fields, "events", EVENTS_MAX))
    return [change for change in events if change is not None]


def _change(fields: Fields, keys: Keys) -> Change | None:
    held = _held(fields.object("kv"))
    if held.key.startswith(keys.values):
        return Written(held.key.removeprefix(keys.values), held.revision)
    if not held.key.startswith(keys.members):
        return None
    said = None if fields.has("type") else announced(held, keys)
    if said is None:
        try:
            return Left(node_url(held.key.removeprefix(keys.members)), held.revision)
        except BadField:
            return None  # a stranger's key: it was no member
    is_new = _number(fields.object("kv"), "create_revision") == held.revision
    return (Joined if is_new else Updated)(said.member, held.revision)


def announced(held: Held, keys: Keys) -> Announcement | None:
    """Return what a member said of itself under its own name; None: nothing that can be read."""
    try:
        said = decode_announcement(held.value)
    except BadField:
        return None
    return said if held.key == keys.members + said.member.node else None


def _held(fields: Fields) -> Held:
    return Held(
        _bytes(fields, "key").decode(errors="replace"),  # none of ours has what replaces
        _bytes(fields, "value"),
        Revision(_number(fields, "mod_revision")),
        _number(fields, "lease"),
    )


def _said(**values: object) -> bytes:
    return print_object(values)


def _below(prefix: str) -> dict[str, str]:
    """Return the half-open range of all keys that begin so; a prefix ends with a slash."""
    return {"key": _text(prefix), "range_end": _text(prefix[:-1] + chr(ord(prefix[-1]) + 1))}


def _text(text: str) -> str:
    return _base64(text.encode())


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _answer(data: Buffer) -> Fields:
    return read_object(data, "etcd", ANSWER_LIMITS)


def _result(fields: Fields) -> Fields:
    """Return what one message of a stream says."""
    if not fields.has("result"):
        raise fields.refuse("result", "an object")
    return fields.object("result")


def _revision_of(fields: Fields) -> Revision:
    return Revision(_number(fields.object("header"), "revision"))


def _entries(fields: Fields, name: str, count_max: int) -> list[Fields]:
    return fields.objects(name, count_max=count_max) if fields.has(name) else []


def _number(fields: Fields, name: str) -> int:
    """Read a number that is absent where it is 0."""
    if not fields.has(name):
        return 0
    text = fields.text(name, chars_max=20)
    if not (text.isascii() and text.isdigit() and int(text) <= _NUMBER_MAX):
        raise fields.refuse(name, "a number of 63 bits as a string")
    return int(text)


def _bytes(fields: Fields, name: str) -> bytes:
    if not fields.has(name):
        return b""
    try:
        return base64.b64decode(
            fields.text(name, chars_max=ANSWER_LIMITS.json_bytes), validate=True
        )
    except (binascii.Error, ValueError):
        raise fields.refuse(name, "base64") from None
