"""Nodes that join and leave while a head looks at them."""

from __future__ import annotations

import asyncio

from tests.head.cluster import A, B, C, Cluster

from meshnet.core.vocabulary import Route
from meshnet.head import Directory
from meshnet.head.directory import DirectoryLimits
from meshnet.simulation.loop import run
from meshnet.simulation.toy_shard import TOY_MODEL

REFRESH_S = 1000.0


def directory_of(cluster: Cluster, static: tuple = ()) -> Directory:
    clock = asyncio.get_running_loop().time
    return Directory(cluster, static, clock=clock, limits=DirectoryLimits(refresh_s=REFRESH_S))


def test_a_node_that_joined_is_asked_at_once_and_routed_over():
    async def main():
        async with directory_of(Cluster(), (A, B)) as directory:
            await asyncio.sleep(1)
            before = directory.ready(TOY_MODEL)
            directory.joined({C: "ready"})
            await asyncio.sleep(1)

            route = directory.route(TOY_MODEL)
            assert not before
            assert isinstance(route, Route)
            assert [hop.node for hop in route.hops] == [A, B, C]

    run(main, 0)


def test_a_node_that_left_is_on_no_route_from_then_on():
    """Pit A85: without waiting for a call to it to fail."""

    async def main():
        async with directory_of(Cluster(), (A, B)) as directory:
            directory.joined({C: "ready"})
            await asyncio.sleep(1)

            directory.joined({})

            assert not directory.ready(TOY_MODEL)
            assert directory.nodes == (A, B)

    run(main, 0)


def test_a_node_with_something_new_to_say_is_asked_again_and_no_other():
    async def main():
        cluster = Cluster()
        asked: list[str] = []
        describe = cluster.describe

        async def counted(node, timeout_s):
            asked.append(node)
            return await describe(node, timeout_s)

        cluster.describe = counted  # type: ignore[method-assign]
        async with directory_of(cluster) as directory:
            directory.joined({A: "loading", B: "ready", C: "ready"})
            await asyncio.sleep(1)
            asked.clear()

            directory.joined({A: "ready", B: "ready", C: "ready"})
            await asyncio.sleep(1)

            assert asked == [A]

    run(main, 0)


def test_a_node_that_left_while_it_was_asked_does_not_come_back_by_its_answer():
    async def main():
        async with directory_of(Cluster()) as directory:
            directory.joined({A: "ready"})
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            directory.joined({})
            await asyncio.sleep(1)

            assert directory.snapshot() == ()

    run(main, 0)


def test_a_node_of_the_static_list_stays_when_it_leaves_the_mesh():
    async def main():
        async with directory_of(Cluster(), (A, B, C)) as directory:
            directory.joined({C: "ready"})
            await asyncio.sleep(1)
            directory.joined({})

            assert directory.ready(TOY_MODEL)
            assert directory.nodes == (A, B, C)

    run(main, 0)


def test_a_failed_call_makes_a_joined_node_a_suspect_at_once():
    """Its lease is only the slow way to find out."""

    async def main():
        cluster = Cluster()
        async with directory_of(cluster) as directory:
            directory.joined({A: "ready", B: "ready", C: "ready"})
            await asyncio.sleep(1)
            cluster.down.add(B)

            directory.suspect(B)
            await directory.refresh()

            assert not directory.ready(TOY_MODEL)

    run(main, 0)
