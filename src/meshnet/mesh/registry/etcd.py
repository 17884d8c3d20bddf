"""A registry that etcd keeps, for a mesh whose gateways come and go.

    PREFIX/members/URL   what the member says of itself, with a lease of etcd's
    PREFIX/values/KEY    a value; its revision is the key's

Nothing is remembered here between calls: what a member's lease is, its key says. etcd starts each
lease anew when it has a new leader, so nobody is lost by an election.

Invariants
    * a renewal that says nothing new writes nothing: it asks for the key and keeps its lease alive;
    * a change is made by one call, which etcd does wholly or not at all;
    * every call ends within CALL_S.

A snapshot says how long each lease was granted for, which is at most what is left of it: what is
left etcd tells by a call for each.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import TypeVar

from meshnet.core.vocabulary import MEMBERS_MAX, BadField, Buffer, Member, NodeId
from meshnet.mesh.registry import etcd_messages as say
from meshnet.mesh.registry.etcd_gateway import EtcdGateway, NotFound
from meshnet.mesh.registry.etcd_messages import Held, Keys
from meshnet.mesh.registry.messages import Announcement, encode_announcement
from meshnet.mesh.registry.ports import (
    CALL_S,
    KEY_CHARS_MAX,
    TTL_MAX_S,
    TTL_MIN_S,
    VALUE_BYTES_MAX,
    VALUES_MAX,
    Change,
    Leased,
    RegistryLost,
    RegistryRefused,
    Resync,
    Revision,
    Snapshot,
    Versioned,
)

T = TypeVar("T")


class EtcdRegistry:
    """Of one mesh: others in the same etcd have other prefixes."""

    def __init__(self, gateway: EtcdGateway, prefix: str) -> None:
        self._gateway, self._keys = gateway, Keys(prefix)

    async def announce(self, member: Member, ttl_s: float) -> None:
        if not TTL_MIN_S <= ttl_s <= TTL_MAX_S:
            raise RegistryRefused(f"ttl_s: expected {TTL_MIN_S:g} to {TTL_MAX_S:g}, got {ttl_s:g}")
        said = Announcement(member, ttl_s)
        key, value = self._keys.members + member.node, encode_announcement(said)
        async with _deadline():
            held = await self._read(key)
            lease = await self._renewed(held, ttl_s)
            if held is not None and lease is not None and held.value == value:
                return
            if held is None:
                await self._room(self._keys.members, "members", MEMBERS_MAX)
            try:
                await self._put(key, value, lease, ttl_s)
            except NotFound:  # it ended just now
                await self._put(key, value, None, ttl_s)

    async def leave(self, node: NodeId) -> None:
        async with _deadline():
            await self._gateway.call("/v3/kv/deleterange", say.delete(self._keys.members + node))

    async def snapshot(self) -> Snapshot:
        asked = say.read_all(self._keys.members, limit=MEMBERS_MAX)
        async with _deadline():
            held, revision = await self._asked("/v3/kv/range", asked, say.held)
        told = (say.announced(each, self._keys) for each in held)
        members = {
            said.member.node: Leased(said.member, said.ttl_s) for said in told if said is not None
        }
        return Snapshot(members, revision)

    async def watch(self, since: Revision) -> AsyncIterator[Change | Resync]:
        known = True
        while known:
            said = say.watch(f"{self._keys.prefix}/", since)
            async with aclosing(self._gateway.stream("/v3/watch", said)) as lines:
                async for line in lines:
                    with _readable():
                        changes = say.changes(line, self._keys, since)
                    known = changes is not None
                    if changes is None:
                        break
                    for change in changes:
                        since = change.revision
                        yield change
        yield Resync()

    async def get(self, key: str) -> Versioned | None:
        async with _deadline():
            held = await self._read(self._keys.values + key)
        return None if held is None else Versioned(held.value, held.revision)

    async def compare_and_set(
        self, key: str, expected: Revision | None, value: bytes | None
    ) -> bool:
        if not 0 < len(key) <= KEY_CHARS_MAX:
            raise RegistryRefused(f"key: expected 1 to {KEY_CHARS_MAX} characters, got {len(key)}")
        if value is not None and len(value) > VALUE_BYTES_MAX:
            raise RegistryRefused(f"{key}: expected at most {VALUE_BYTES_MAX} bytes")
        async with _deadline():
            if expected is None and value is not None:
                await self._room(self._keys.values, "values", VALUES_MAX)
            swap = say.swap(self._keys.values + key, expected, value)
            return await self._asked("/v3/kv/txn", swap, say.swapped, once=True)

    async def _read(self, key: str) -> Held | None:
        held, _ = await self._asked("/v3/kv/range", say.read(key), say.held)
        return held[0] if held else None

    async def _renewed(self, held: Held | None, ttl_s: float) -> int | None:
        """Keep the lease of a key alive and return it; None: it needs one of that time."""
        said = None if held is None else say.announced(held, self._keys)
        if held is None or said is None or said.ttl_s != ttl_s:
            return None
        asked = say.keep_alive(held.lease)
        kept = await self._asked("/v3/lease/keepalive", asked, say.is_kept_alive)
        return held.lease if kept else None

    async def _put(self, key: str, value: bytes, lease: int | None, ttl_s: float) -> None:
        if lease is None:
            asked = say.grant(math.ceil(ttl_s))
            lease = await self._asked("/v3/lease/grant", asked, say.granted)
        await self._gateway.call("/v3/kv/put", say.put(key, value, lease))

    async def _room(self, prefix: str, name: str, count_max: int) -> None:
        """Raises RegistryRefused. Two who come at one moment may both find the last place."""
        if await self._asked("/v3/kv/range", say.count_all(prefix), say.counted) >= count_max:
            raise RegistryRefused(f"{name}: expected at most {count_max}, and all are there")

    async def _asked(
        self, path: str, said: bytes, decode: Callable[[Buffer], T], *, once: bool = False
    ) -> T:
        answer = await self._gateway.call(path, said, once=once)
        with _readable():
            return decode(answer)


@asynccontextmanager
async def _deadline() -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(CALL_S):
            yield
    except TimeoutError:
        raise RegistryLost(f"no answer within {CALL_S:g} s") from None


@contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except BadField as error:
        raise RegistryLost(f"unreadable answer: {error}") from None
