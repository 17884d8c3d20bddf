"""Of several gateways one places at a time, and another one once it is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.mesh.members import served, sqlite_registry

from meshnet.mesh.placing_turn import TURN, PlacingTurn
from meshnet.mesh.registry.http_client import HttpRegistry
from meshnet.mesh.registry.ports import Registry
from meshnet.simulation.loop import run

TTL_S = 9.0


class Gateways:
    """Who works, and whether two ever did at once."""

    def __init__(self) -> None:
        self.working: list[str] = []
        self.most = 0
        self.begun: list[str] = []

    @asynccontextmanager
    async def comes(self, name: str, registry: Registry) -> AsyncIterator[asyncio.Task[None]]:
        turn = PlacingTurn(registry, name, ttl_s=TTL_S, clock=asyncio.get_running_loop().time)
        task = asyncio.get_running_loop().create_task(turn.run(lambda: self._work(name)))
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _work(self, name: str) -> None:
        self.working.append(name)
        self.begun.append(name)
        self.most = max(self.most, len(self.working))
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.working.remove(name)


def test_of_several_gateways_one_works():
    async def main():
        registry, gateways = sqlite_registry(), Gateways()
        async with (
            gateways.comes("a", registry),
            gateways.comes("b", registry),
            gateways.comes("c", registry),
        ):
            await asyncio.sleep(20 * TTL_S)

            assert len(gateways.begun) == gateways.most == 1

    run(main, 0)


def test_the_next_one_works_within_a_third_of_the_time_after_one_that_left():
    async def main():
        registry, gateways = sqlite_registry(), Gateways()
        async with gateways.comes("b", registry) as first:
            await asyncio.sleep(1)
            async with gateways.comes("a", registry):
                await asyncio.sleep(1)
                first.cancel()
                await asyncio.sleep(TTL_S / 3)

                assert gateways.begun == ["b", "a"]
                assert gateways.working == ["a"]

    run(main, 0)


def test_one_that_died_is_followed_after_its_time_and_not_before():
    async def main():
        registry, gateways = sqlite_registry(), Gateways()
        await registry.compare_and_set(TURN, None, b"dead")
        async with gateways.comes("a", registry):
            await asyncio.sleep(TTL_S - 1)
            early = list(gateways.working)
            await asyncio.sleep(1 + TTL_S / 3)

            assert early == []
            assert gateways.working == ["a"]

    run(main, 0)


def test_one_that_the_registry_does_not_answer_stops_before_another_begins():
    async def main():
        registry, gateways = sqlite_registry(), Gateways()
        way = served(registry)
        async with gateways.comes("cut off", HttpRegistry(way)):
            await asyncio.sleep(1)
            way.deaf = "/registry"
            async with gateways.comes("a", registry):
                await asyncio.sleep(3 * TTL_S)

                assert gateways.begun == ["cut off", "a"]
                assert gateways.most == 1

    run(main, 0)


def test_nobody_takes_the_turn_of_one_who_was_away_together_with_the_registry():
    """Time without an answer is no time that was waited."""

    async def main():
        registry, gateways = sqlite_registry(), Gateways()
        way = served(registry)
        await registry.compare_and_set(TURN, None, b"other")
        async with gateways.comes("a", HttpRegistry(way)):
            await asyncio.sleep(TTL_S / 2)
            app, way.app = way.app, None
            await asyncio.sleep(10 * TTL_S)
            way.app = app
            await asyncio.sleep(TTL_S / 2)

            assert gateways.begun == []

    run(main, 0)
