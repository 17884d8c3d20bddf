"""What every registry must do, as scenarios that know none.

A backend runs each scenario on a loop of its own choice, lets time pass, kills its registry and
starts it again on what that left behind. A new backend runs these as they are: test_registry.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Protocol

import pytest
from tests.mesh.members import MODEL, member

from meshnet.core.vocabulary import LayerRange, MemberState
from meshnet.mesh.registry.ports import (
    VALUE_BYTES_MAX,
    Change,
    Joined,
    Left,
    Registry,
    RegistryLost,
    RegistryRefused,
    Resync,
    Revision,
    Updated,
    Written,
)

A, B = member(1), member(2)
TTL_S = 3.0
"""Long enough for a backend in real time."""


class Backend(Protocol):
    """One kind of registry under test, for one scenario."""

    @property
    def registry(self) -> Registry:
        """A client of it; after `start` another one."""
        ...

    @property
    def slack_s(self) -> float:
        """By how much a lease may end late."""
        ...

    async def pass_time(self, seconds: float) -> None: ...

    async def kill(self) -> None:
        """End the registry; what it wrote stays."""
        ...

    async def start(self) -> None:
        """Start it again on that."""
        ...


async def members_now(backend: Backend) -> list[str]:
    return sorted((await backend.registry.snapshot()).members)


@asynccontextmanager
async def watching(
    registry: Registry, since: Revision
) -> AsyncIterator[Callable[[int], Awaitable[list[Change | Resync]]]]:
    """Yield what waits for the next items of a watch."""
    queue: asyncio.Queue[Change | Resync] = asyncio.Queue()

    async def watch() -> None:
        async with aclosing(registry.watch(since)) as changes:  # type: ignore[type-var]
            async for change in changes:
                queue.put_nowait(change)

    async def items(count: int) -> list[Change | Resync]:
        async with asyncio.timeout(60):
            return [await queue.get() for _ in range(count)]

    task = asyncio.get_running_loop().create_task(watch())
    try:
        yield items
    finally:
        task.cancel()
        await asyncio.wait([task])


async def a_member_that_announced_itself_is_in_the_snapshot(backend: Backend) -> None:
    told = replace(A, state=MemberState.READY, model=MODEL, layers=LayerRange(0, 3), epoch=7)

    await backend.registry.announce(told, TTL_S)
    snapshot = await backend.registry.snapshot()

    assert {node: leased.member for node, leased in snapshot.members.items()} == {A.node: told}
    assert 0 < snapshot.members[A.node].left_s <= TTL_S + backend.slack_s


async def a_member_leaves_when_its_lease_ends_and_not_before(backend: Backend) -> None:
    await backend.registry.announce(A, TTL_S)

    await backend.pass_time(TTL_S - 1)
    before = await members_now(backend)
    await backend.pass_time(1 + backend.slack_s)

    assert before == [A.node]
    assert await members_now(backend) == []


async def a_member_that_is_announced_again_in_time_stays(backend: Backend) -> None:
    for _ in range(3):
        await backend.registry.announce(A, TTL_S)
        await backend.pass_time(TTL_S - 1)

    assert await members_now(backend) == [A.node]


async def a_member_that_came_back_at_its_address_is_one_member(backend: Backend) -> None:
    """Pit A85: restarts leave no ghosts behind."""
    for epoch in range(5):
        await backend.registry.announce(replace(A, epoch=epoch), TTL_S)

    snapshot = await backend.registry.snapshot()

    assert [leased.member.epoch for leased in snapshot.members.values()] == [4]


async def a_member_that_leaves_is_gone_at_once(backend: Backend) -> None:
    await backend.registry.announce(A, TTL_S)
    await backend.registry.announce(B, TTL_S)

    await backend.registry.leave(A.node)

    assert await members_now(backend) == [B.node]


async def leaving_twice_is_no_error(backend: Backend) -> None:
    await backend.registry.leave(A.node)
    await backend.registry.leave(A.node)

    assert await members_now(backend) == []


async def a_watch_tells_every_change_in_order(backend: Backend) -> None:
    since = (await backend.registry.snapshot()).revision
    busy = replace(A, state=MemberState.DRAINING)

    async with watching(backend.registry, since) as items:
        await backend.registry.announce(A, TTL_S)
        await backend.registry.announce(busy, TTL_S)
        await backend.registry.compare_and_set("k", None, b"v")
        await backend.registry.leave(A.node)
        seen = await items(4)

    assert [type(change) for change in seen] == [Joined, Updated, Written, Left]
    assert [change.member for change in seen if isinstance(change, Joined | Updated)] == [A, busy]
    revisions = [change.revision for change in seen if not isinstance(change, Resync)]
    assert revisions == sorted(set(revisions))
    assert min(revisions) > since


async def a_renewal_that_says_nothing_new_is_no_change(backend: Backend) -> None:
    await backend.registry.announce(A, TTL_S)
    since = (await backend.registry.snapshot()).revision

    async with watching(backend.registry, since) as items:
        await backend.registry.announce(A, TTL_S)
        await backend.registry.announce(B, TTL_S)
        seen = await items(1)

    assert [change.member for change in seen if isinstance(change, Joined)] == [B]


async def a_watch_tells_what_changed_before_it_began(backend: Backend) -> None:
    since = (await backend.registry.snapshot()).revision
    await backend.registry.announce(A, TTL_S)
    await backend.registry.announce(B, TTL_S)

    async with watching(backend.registry, since) as items:
        seen = await items(2)

    assert [change.member for change in seen if isinstance(change, Joined)] == [A, B]


async def a_watch_tells_that_a_lease_has_ended(backend: Backend) -> None:
    await backend.registry.announce(A, TTL_S)
    since = (await backend.registry.snapshot()).revision

    async with watching(backend.registry, since) as items:
        await backend.pass_time(TTL_S + backend.slack_s)
        seen = await items(1)

    assert [change.node for change in seen if isinstance(change, Left)] == [A.node]


async def a_value_is_written_only_over_the_revision_that_was_read(backend: Backend) -> None:
    registry = backend.registry

    assert await registry.get("k") is None
    assert await registry.compare_and_set("k", None, b"one")
    first = await registry.get("k")
    assert first is not None
    assert first.value == b"one"

    assert not await registry.compare_and_set("k", None, b"two")
    assert await registry.compare_and_set("k", first.revision, b"two")
    assert not await registry.compare_and_set("k", first.revision, b"three")
    second = await registry.get("k")
    assert second is not None
    assert second.value == b"two"
    assert second.revision > first.revision


async def a_value_is_deleted_only_at_the_revision_that_was_read(backend: Backend) -> None:
    registry = backend.registry
    await registry.compare_and_set("k", None, b"one")
    held = await registry.get("k")
    assert held is not None

    assert not await registry.compare_and_set("k", None, None)
    assert await registry.compare_and_set("k", held.revision, None)

    assert await registry.get("k") is None


async def of_two_writers_who_read_the_same_one_wins(backend: Backend) -> None:
    registry = backend.registry

    async with asyncio.TaskGroup() as writers:
        tasks = [
            writers.create_task(registry.compare_and_set("k", None, bytes([number])))
            for number in range(8)
        ]

    assert [task.result() for task in tasks].count(True) == 1
    held = await registry.get("k")
    assert held is not None
    assert tasks[held.value[0]].result()


async def a_value_may_be_any_bytes(backend: Backend) -> None:
    value = bytes(range(256))

    assert await backend.registry.compare_and_set("a/b?c=d&e #%", None, value)

    held = await backend.registry.get("a/b?c=d&e #%")
    assert held is not None
    assert held.value == value


async def a_value_too_large_is_refused(backend: Backend) -> None:
    with pytest.raises(RegistryRefused):
        await backend.registry.compare_and_set("k", None, b"x" * (VALUE_BYTES_MAX + 1))

    assert await backend.registry.get("k") is None


async def members_and_values_outlive_the_registry(backend: Backend) -> None:
    await backend.registry.announce(A, TTL_S)
    await backend.registry.compare_and_set("k", None, b"v")
    before = await backend.registry.get("k")

    await backend.kill()
    await backend.start()

    assert await members_now(backend) == [A.node]
    assert await backend.registry.get("k") == before


async def leases_start_anew_with_the_registry(backend: Backend) -> None:
    """Nobody can renew while it is away: they must not all end when it is back."""
    await backend.registry.announce(A, TTL_S)
    await backend.registry.announce(B, TTL_S)

    await backend.kill()
    await backend.pass_time(2 * TTL_S)
    await backend.start()
    await backend.pass_time(TTL_S - 1)

    assert await members_now(backend) == [A.node, B.node]


async def a_ghost_of_before_the_restart_leaves_within_its_lease(backend: Backend) -> None:
    await backend.registry.announce(A, TTL_S)
    await backend.registry.announce(B, TTL_S)
    await backend.kill()
    await backend.start()

    await backend.pass_time(TTL_S - 1)
    await backend.registry.announce(B, TTL_S)
    await backend.pass_time(1 + backend.slack_s)

    assert await members_now(backend) == [B.node]


async def revisions_grow_over_a_restart(backend: Backend) -> None:
    await backend.registry.announce(A, TTL_S)
    before = (await backend.registry.snapshot()).revision

    await backend.kill()
    await backend.start()
    await backend.registry.announce(B, TTL_S)

    assert (await backend.registry.snapshot()).revision > before


async def a_watch_from_before_a_restart_tells_all_or_says_that_it_cannot(backend: Backend) -> None:
    since = (await backend.registry.snapshot()).revision
    await backend.registry.announce(A, TTL_S)
    await backend.kill()
    await backend.start()

    async with watching(backend.registry, since) as items:
        first = (await items(1))[0]

    assert isinstance(first, Resync) or (isinstance(first, Joined) and first.member == A)


async def a_registry_that_is_away_says_so_in_every_call(backend: Backend) -> None:
    registry = backend.registry
    revision = (await registry.snapshot()).revision
    await backend.kill()

    for call in (
        registry.announce(A, TTL_S),
        registry.leave(A.node),
        registry.snapshot(),
        registry.get("k"),
        registry.compare_and_set("k", None, b"v"),
        anext(registry.watch(revision)),  # type: ignore[call-overload]
    ):
        with pytest.raises(RegistryLost):
            await call


async def a_watch_ends_when_the_registry_goes_away(backend: Backend) -> None:
    revision = (await backend.registry.snapshot()).revision
    watch = backend.registry.watch(revision)
    next_change = asyncio.ensure_future(anext(watch))  # type: ignore[call-overload]
    await backend.pass_time(0.1)

    await backend.kill()

    async with asyncio.timeout(60):
        with pytest.raises(RegistryLost):
            await next_change


SCENARIOS = (
    a_member_that_announced_itself_is_in_the_snapshot,
    a_member_leaves_when_its_lease_ends_and_not_before,
    a_member_that_is_announced_again_in_time_stays,
    a_member_that_came_back_at_its_address_is_one_member,
    a_member_that_leaves_is_gone_at_once,
    leaving_twice_is_no_error,
    a_watch_tells_every_change_in_order,
    a_renewal_that_says_nothing_new_is_no_change,
    a_watch_tells_what_changed_before_it_began,
    a_watch_tells_that_a_lease_has_ended,
    a_value_is_written_only_over_the_revision_that_was_read,
    a_value_is_deleted_only_at_the_revision_that_was_read,
    of_two_writers_who_read_the_same_one_wins,
    a_value_may_be_any_bytes,
    a_value_too_large_is_refused,
    members_and_values_outlive_the_registry,
    leases_start_anew_with_the_registry,
    a_ghost_of_before_the_restart_leaves_within_its_lease,
    revisions_grow_over_a_restart,
    a_watch_from_before_a_restart_tells_all_or_says_that_it_cannot,
    a_registry_that_is_away_says_so_in_every_call,
    a_watch_ends_when_the_registry_goes_away,
)
