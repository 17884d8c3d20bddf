"""What a head knows of its nodes, and how it forgets them."""

from __future__ import annotations

import asyncio

from tests.head.cluster import A, B, C, Cluster

from meshnet.core.vocabulary import LayerRange, Route
from meshnet.head import Directory
from meshnet.head.directory import DirectoryLimits
from meshnet.simulation.loop import run
from meshnet.simulation.toy_shard import TOY_MODEL


def directory_of(cluster: Cluster, limits: DirectoryLimits | None = None) -> Directory:
    clock = asyncio.get_running_loop().time
    return Directory(cluster, list(cluster.nodes), clock=clock, limits=limits)


def test_nodes_go_by_the_name_the_head_dials():
    async def main():
        directory = directory_of(Cluster())
        await directory.refresh()

        route = directory.route(TOY_MODEL)
        assert isinstance(route, Route)
        assert [hop.node for hop in route.hops] == [A, B, C]
        assert [each.node for each in directory.snapshot()] == [A, B, C]

    run(main, 0)


def test_it_is_ready_once_all_layers_are_served():
    """Pit A108."""

    async def main():
        cluster = Cluster()
        cluster.down.add(B)
        directory = directory_of(cluster)
        await directory.refresh()
        assert not directory.ready(TOY_MODEL)
        assert "2-4" in str(directory.route(TOY_MODEL))

        cluster.boot(B)
        await directory.refresh()

        assert directory.ready(TOY_MODEL)

    run(main, 0)


def test_one_missed_description_does_not_throw_a_node_out():
    """Pit A86."""

    async def main():
        cluster = Cluster()
        directory = directory_of(cluster, DirectoryLimits(strikes_max=3))
        await directory.refresh()
        cluster.down.add(B)

        ready = []
        for _ in range(3):
            await directory.refresh()
            ready.append(directory.ready(TOY_MODEL))

        assert ready == [True, True, False]

    run(main, 0)


def test_a_suspect_is_forgotten_at_its_next_missed_description():
    async def main():
        cluster = Cluster()
        directory = directory_of(cluster)
        await directory.refresh()
        cluster.down.add(B)

        directory.suspect(B)
        assert directory.suspects() == {B}
        await directory.refresh()

        assert not directory.ready(TOY_MODEL)

    run(main, 0)


def test_a_description_clears_a_suspect():
    async def main():
        directory = directory_of(Cluster())
        await directory.refresh()

        directory.suspect(B)
        await directory.refresh()

        assert directory.suspects() == frozenset()
        assert directory.ready(TOY_MODEL)

    run(main, 0)


def test_an_avoided_node_is_used_only_where_no_other_serves():
    async def main():
        layers = {A: LayerRange(0, 6), B: LayerRange(0, 6)}
        directory = directory_of(Cluster(layers))
        await directory.refresh()

        around = directory.route(TOY_MODEL, [A])
        neither = directory.route(TOY_MODEL, [A, B])

        assert isinstance(around, Route)
        assert [hop.node for hop in around.hops] == [B]
        assert isinstance(neither, Route)

    run(main, 0)


def test_callers_at_the_same_time_share_a_round():
    async def main():
        cluster = Cluster()
        described: list[str] = []
        describe = cluster.describe

        async def counted(node, timeout_s):
            described.append(node)
            return await describe(node, timeout_s)

        cluster.describe = counted  # type: ignore[method-assign]
        directory = directory_of(cluster)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(10):
                tasks.create_task(directory.refresh())

        assert len(described) <= 2 * 3
        assert directory.ready(TOY_MODEL)

    run(main, 0)


def test_a_node_that_hangs_delays_a_round_by_its_timeout_only():
    async def main():
        cluster = Cluster()
        describe = cluster.describe

        async def hanging(node, timeout_s):
            if node == B:
                await asyncio.get_running_loop().create_future()
            return await describe(node, timeout_s)

        cluster.describe = hanging  # type: ignore[method-assign]
        directory = directory_of(cluster, DirectoryLimits(describe_timeout_s=2.0))
        await directory.refresh()

        assert asyncio.get_running_loop().time() == 2.0
        assert [each.node for each in directory.snapshot()] == [A, C]

    run(main, 0)


def test_in_the_background_it_learns_of_nodes_that_come_and_go():
    """Pit A108."""

    async def main():
        cluster = Cluster()
        cluster.down.add(B)
        async with directory_of(cluster, DirectoryLimits(refresh_s=5.0)) as directory:
            await asyncio.sleep(6.0)
            assert not directory.ready(TOY_MODEL)
            cluster.boot(B)
            await asyncio.sleep(6.0)

            assert directory.ready(TOY_MODEL)

    run(main, 0)


def test_a_node_of_old_serves_the_layers_its_operator_declared():
    """It knows no `GET /node`, so the head never asks it and believes the operator."""

    async def main():
        cluster = Cluster()
        cluster.down.add(B)
        directory = Directory(
            cluster,
            list(cluster.nodes),
            clock=asyncio.get_running_loop().time,
            declared={B: LayerRange(2, 4)},
        )
        assert not directory.ready(TOY_MODEL)  # no node has told which model there is

        await directory.refresh()
        route = directory.route(TOY_MODEL)

        assert isinstance(route, Route)
        assert [(hop.node, hop.wire) for hop in route.hops] == [(A, 1), (B, 0), (C, 1)]
        assert not route.multi_token

    run(main, 0)


def test_a_lost_node_of_old_is_trusted_again_after_the_next_round():
    async def main():
        cluster = Cluster()
        directory = Directory(
            cluster,
            list(cluster.nodes),
            clock=asyncio.get_running_loop().time,
            declared={B: LayerRange(2, 4)},
        )
        await directory.refresh()

        directory.suspect(B)
        assert directory.suspects() == {B}
        await directory.refresh()

        assert directory.suspects() == frozenset()

    run(main, 0)
