"""A registry followed from afar: every change is seen, and its absence takes nothing away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.mesh.members import AsgiExchange, member, served, sqlite_registry

from meshnet.mesh.registry.following import RETRY_MAX_S, Following, View
from meshnet.mesh.registry.http_client import HttpRegistry
from meshnet.mesh.registry.http_server import registry_app
from meshnet.simulation.loop import run
from meshnet.telemetry.events import Event, RegistryAway

A, B = member(1), member(2)
TTL_S = 1000.0
RESYNC_S = 20.0


class Follower:
    """Keeps every view, and the events."""

    def __init__(self, exchange: AsgiExchange) -> None:
        self.views: list[View] = []
        self.events: list[Event] = []
        self.following = Following(
            HttpRegistry(exchange),
            self.views.append,
            resync_s=RESYNC_S,
            jitter=lambda: 1.0,
            record=self.events.append,
        )

    @property
    def members(self) -> list[str]:
        return sorted(self.views[-1].members)


@asynccontextmanager
async def followed(exchange: AsgiExchange) -> AsyncIterator[Follower]:
    follower = Follower(exchange)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(follower.following.run())
        yield follower
        running.cancel()


def test_changes_are_seen_as_they_happen():
    async def main():
        registry = sqlite_registry()
        await registry.announce(A, TTL_S)

        async with followed(served(registry)) as follower:
            await asyncio.sleep(0.1)
            first = follower.members
            await registry.announce(B, TTL_S)
            await registry.leave(A.node)
            await registry.compare_and_set("k", None, b"v")
            await asyncio.sleep(0.1)

            assert first == [A.node]
            assert follower.members == [B.node]
            assert [view.may_have_written("k") for view in follower.views] == [
                True, False, False, True,
            ]  # fmt: skip

    run(main, 0)


def test_a_watch_that_fell_silent_is_healed_by_the_next_snapshot():
    async def main():
        registry = sqlite_registry()
        exchange = served(registry)
        exchange.deaf = "/registry/changes"

        async with followed(exchange) as follower:
            await asyncio.sleep(1)
            await registry.announce(A, TTL_S)
            await asyncio.sleep(RESYNC_S)

            assert follower.members == [A.node]

    run(main, 0)


def test_while_the_registry_is_away_its_members_stay_and_it_is_told_once():
    async def main():
        registry = sqlite_registry()
        await registry.announce(A, TTL_S)
        exchange = served(registry)

        async with followed(exchange) as follower:
            await asyncio.sleep(1)
            exchange.app = None
            registry.close()
            await asyncio.sleep(10 * RESYNC_S)

            assert follower.members == [A.node]
            assert [type(event) for event in follower.events] == [RegistryAway]
            assert follower.following.trouble == "connection refused"

    run(main, 0)


def test_a_registry_that_came_back_is_followed_again_soon():
    async def main():
        exchange = AsgiExchange(None)

        async with followed(exchange) as follower:
            await asyncio.sleep(100)
            registry = sqlite_registry()
            await registry.announce(B, TTL_S)
            exchange.app = registry_app(registry, token=None)
            await asyncio.sleep(RETRY_MAX_S)

            assert follower.members == [B.node]
            assert follower.following.trouble == ""

    run(main, 0)


def test_a_registry_that_lost_everything_is_believed():
    """Its members announce themselves again: see test_lease.py."""

    async def main():
        registry = sqlite_registry()
        await registry.announce(A, TTL_S)
        exchange = served(registry)

        async with followed(exchange) as follower:
            await asyncio.sleep(1)
            fresh = sqlite_registry(born=10_000)
            await fresh.announce(B, TTL_S)
            exchange.app = registry_app(fresh, token=None)
            registry.close()
            await asyncio.sleep(RETRY_MAX_S)

            assert follower.members == [B.node]

    run(main, 0)


@pytest.mark.parametrize(
    ("status", "said", "told"),
    [(200, b'{"resync":true}', 0), (403, b'{"error":"forbidden","message":"no"}', 1)],
    ids=["resync", "refused"],
)
def test_a_registry_that_ends_every_watch_at_once_is_asked_ever_more_rarely(
    status: int, said: bytes, told: int
):
    async def main():
        async def exchange(method: str, path: str, body: bytes, _: float) -> tuple[int, bytes]:
            calls.append(path)
            if path.startswith("/registry/changes"):
                return status, said
            return 200, b'{"revision":1,"members":[]}'

        calls: list[str] = []
        events: list[Event] = []
        following = Following(
            HttpRegistry(exchange),
            lambda view: None,
            resync_s=RESYNC_S,
            jitter=lambda: 1.0,
            record=events.append,
        )
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(following.run())
            await asyncio.sleep(100)
            running.cancel()

        assert len(calls) <= 2 * (100 / RETRY_MAX_S + 5)
        assert [type(event) for event in events] == [RegistryAway] * told

    run(main, 0)
