"""Nodes that hold the same layers share the chats."""

from __future__ import annotations

import asyncio

from tests.head.cluster import A, B, Cluster, collect, expected, request, running

from meshnet.core.protocol.messages import ForwardRequest
from meshnet.core.vocabulary import LayerRange, NodeId
from meshnet.simulation.loop import run

WHOLE = LayerRange(0, 6)


async def slowly(node: NodeId, request: ForwardRequest) -> None:
    await asyncio.sleep(1.0)


def test_chats_that_come_at_once_fill_every_replica_before_any_waits():
    async def main():
        cluster = Cluster({A: WHOLE, B: WHOLE}, sessions_max=2)
        cluster.before_forward = slowly
        async with running(cluster) as head, asyncio.TaskGroup() as tasks:
            asked = [request((number, 2, 3), tokens_max=10) for number in range(4)]
            chats = [tasks.create_task(collect(head, each)) for each in asked]

        assert [done.result()[0] for done in chats] == [expected(each) for each in asked]
        assert asyncio.get_running_loop().time() < 11.0

    run(main, 0)


def test_replicas_stay_busy_while_chats_wait():
    async def main():
        cluster = Cluster({A: WHOLE, B: WHOLE}, sessions_max=1)
        cluster.before_forward = slowly
        async with running(cluster) as head, asyncio.TaskGroup() as tasks:
            for number in range(8):
                tasks.create_task(collect(head, request((number, 2, 3), tokens_max=10)))

        # Four chats of ten seconds, one after the other, on each of two nodes.
        assert asyncio.get_running_loop().time() < 40.0 / 0.9

    run(main, 0)


def test_a_chat_moves_to_another_replica_when_its_own_lost_it_and_is_full():
    async def main():
        cluster = Cluster({A: WHOLE, B: WHOLE}, sessions_max=1)
        cluster.before_forward = slowly
        forgotten = False

        async def forget_once(node: NodeId, request: ForwardRequest) -> None:
            nonlocal forgotten
            await asyncio.sleep(1.0)
            if request.past_length == 5 and not forgotten:
                forgotten = True
                assert request.session is not None
                cluster.nodes[A].release(request.session)
                tasks.create_task(collect(other, request_of_the_other))

        cluster.before_forward = forget_once
        asked = request((1, 2, 3), tokens_max=6)
        request_of_the_other = request((4, 5, 6), tokens_max=100)
        async with (
            running(cluster, name="h0") as head,
            running(cluster, name="h1") as other,
            asyncio.TaskGroup() as tasks,
        ):
            tokens, finish = await collect(head, asked)
            ended_at = asyncio.get_running_loop().time()

        assert tokens == expected(asked)
        assert finish.refills >= 1
        assert ended_at < 30.0

    run(main, 0)
