"""A member's place in a registry, kept over whatever happens to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from tests.mesh.members import AsgiExchange, member, served, sqlite_registry

from meshnet.core.vocabulary import MemberState
from meshnet.mesh.registry.http_client import HttpRegistry
from meshnet.mesh.registry.http_server import registry_app
from meshnet.mesh.registry.lease import Lease
from meshnet.mesh.registry.ports import RegistryRefused
from meshnet.simulation.loop import run
from meshnet.telemetry.events import Event, RegistryAway

A = member(1)
TTL_S = 9.0


def lease_of(exchange: AsgiExchange, events: list[Event] | None = None) -> Lease:
    return Lease(
        HttpRegistry(exchange),
        A,
        ttl_s=TTL_S,
        clock=asyncio.get_running_loop().time,
        jitter=lambda: 1.0,
        record=[].append if events is None else events.append,
    )


@asynccontextmanager
async def kept(lease: Lease) -> AsyncIterator[None]:
    """Keep the lease while the block runs."""
    async with asyncio.TaskGroup() as tasks:
        keeping = tasks.create_task(lease.keep())
        yield
        keeping.cancel()


def test_it_is_renewed_for_as_long_as_it_is_kept():
    async def main():
        registry = sqlite_registry()
        lease = lease_of(served(registry))

        async with kept(lease):
            await asyncio.sleep(10 * TTL_S)
            while_kept = list((await registry.snapshot()).members)
        await asyncio.sleep(TTL_S)

        assert while_kept == [A.node]
        assert (await registry.snapshot()).members == {}

    run(main, 0)


def test_it_is_announced_three_times_a_lease_and_no_more_often():
    async def main():
        exchange = served(sqlite_registry())

        async with kept(lease_of(exchange)):
            await asyncio.sleep(10 * TTL_S + 0.1)

        assert len(exchange.calls) == 31

    run(main, 0)


def test_news_are_announced_at_once():
    async def main():
        registry = sqlite_registry()
        lease = lease_of(served(registry))
        ready = replace(A, state=MemberState.READY)

        async with kept(lease):
            await asyncio.sleep(0.5)
            lease.update(ready)
            await asyncio.sleep(0.5)

            assert (await registry.snapshot()).members[A.node].member == ready

    run(main, 0)


def test_a_registry_that_forgot_it_knows_it_again_within_a_third_of_the_lease():
    async def main():
        exchange = served(sqlite_registry())

        async with kept(lease_of(exchange)):
            await asyncio.sleep(1)
            fresh = sqlite_registry(born=2)
            exchange.app = registry_app(fresh, token=None)
            await asyncio.sleep(TTL_S / 3)

            assert list((await fresh.snapshot()).members) == [A.node]

    run(main, 0)


def test_one_lost_renewal_does_not_cost_the_lease():
    """Pit A86."""

    async def main():
        registry = sqlite_registry()
        exchange = served(registry)
        lease = lease_of(exchange)

        async with kept(lease):
            await asyncio.sleep(1)
            app, exchange.app = exchange.app, None
            await asyncio.sleep(TTL_S * 0.4)
            exchange.app = app
            await asyncio.sleep(TTL_S * 2)

            assert list((await registry.snapshot()).members) == [A.node]
            assert not lease.lost.is_set()

    run(main, 0)


def test_it_is_lost_once_nobody_has_answered_for_a_whole_lease_and_told_once():
    async def main():
        exchange, events = served(sqlite_registry()), []
        lease = lease_of(exchange, events)

        async with kept(lease):
            await asyncio.sleep(1)
            app, exchange.app = exchange.app, None
            await asyncio.sleep(TTL_S - 1)
            early = lease.lost.is_set()
            await asyncio.sleep(2 * TTL_S)
            late = lease.lost.is_set()
            exchange.app = app
            await asyncio.sleep(TTL_S)

            assert (early, late, lease.lost.is_set()) == (False, True, False)
            assert events == [RegistryAway("connection refused")]

    run(main, 0)


def test_a_member_that_was_never_let_in_is_told_why():
    async def main():
        exchange = AsgiExchange(registry_app(sqlite_registry(), token="secret"), "wrong")

        with pytest.raises(RegistryRefused, match="mesh token"):
            await lease_of(exchange).keep()

    run(main, 0)


def test_a_registry_that_is_not_there_yet_is_waited_for():
    async def main():
        registry = sqlite_registry()
        exchange = AsgiExchange(None)
        lease = lease_of(exchange)

        async with kept(lease):
            await asyncio.sleep(60)
            exchange.app = registry_app(registry, token=None)
            async with asyncio.timeout(TTL_S):
                await lease.announced.wait()

        assert list((await registry.snapshot()).members) == [A.node]

    run(main, 0)


def test_who_leaves_is_gone_at_once_and_leaving_waits_for_nobody():
    async def main():
        registry = sqlite_registry()
        exchange = served(registry)
        lease = lease_of(exchange)
        async with kept(lease):
            await asyncio.sleep(1)

        await lease.leave()
        gone = (await registry.snapshot()).members
        exchange.deaf = "/registry"
        left_at = asyncio.get_running_loop().time()
        await lease.leave()

        assert gone == {}
        assert asyncio.get_running_loop().time() - left_at <= 2.0

    run(main, 0)
