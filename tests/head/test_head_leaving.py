"""Whoever leaves, and however a generation ends: nothing goes on, every node is released once."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress

import pytest
from tests.head.cluster import (
    A,
    B,
    C,
    Cluster,
    collect,
    hang_at,
    request,
    running,
)

from meshnet.core.protocol.messages import ForwardRequest
from meshnet.core.vocabulary import NodeId
from meshnet.head import (
    GenerationFailed,
    Head,
)
from meshnet.simulation.loop import run


def test_leaving_after_three_tokens_asks_no_further_step_and_frees_every_node():
    """Pit A56."""

    async def main():
        cluster = Cluster()
        async with running(cluster) as head:
            async with aclosing(head.generate(request(tokens_max=500))) as items:
                for _ in range(3):
                    await anext(items)
            asked = len(cluster.forwards)
            await asyncio.sleep(10.0)

            assert len(cluster.forwards) == asked == 3 * 3
            assert cluster.sessions() == 0
            assert head.counters.cancelled == 1

    run(main, 0)


def test_cancelling_during_the_prefill_cancels_the_hop_in_flight_and_frees_every_node():
    """Pit A56."""

    async def main():
        cluster = Cluster()
        reached = hang_at(cluster, B)
        async with running(cluster) as head:
            async with asyncio.TaskGroup() as tasks:
                chat = tasks.create_task(collect(head, request()))
                await reached.wait()
                chat.cancel()
            assert cluster.in_flight == 0
            await asyncio.sleep(1.0)

            assert cluster.sessions() == 0
            assert [asked.node for asked in cluster.forwards] == [A, B]
            assert sorted(node for node, _ in cluster.releases) == [A, B, C]

    run(main, 0)


async def all_endings(head: Head, cluster: Cluster) -> None:
    """One generation for each way to end: success, left early, left at the last token, failure."""
    await collect(head, request())
    async with aclosing(head.generate(request())) as items:
        await anext(items)
    async with aclosing(head.generate(request(tokens_max=1))) as items:
        await anext(items)

    async def hang(hop: NodeId, sent: ForwardRequest) -> None:
        await asyncio.get_running_loop().create_future()

    cluster.before_forward = hang
    with pytest.raises(GenerationFailed):
        await collect(head, request(deadline_s=2.0))


@pytest.mark.parametrize("hints_are_lost", [False, True])
def test_every_ending_releases_every_node_exactly_once(hints_are_lost: bool):
    """Pit A57."""

    async def main():
        cluster = Cluster()
        cluster.hints_are_lost = hints_are_lost
        async with running(cluster) as head:
            await all_endings(head, cluster)
            await asyncio.sleep(1.0)
            counters = head.counters

        assert (counters.started, counters.holds, counters.releases) == (4, 4, 4)
        assert (counters.finished, counters.failed, counters.cancelled) == (2, 1, 1)
        assert len(cluster.releases) == len(set(cluster.releases)) == 4 * 3

    run(main, 0)


def test_the_client_does_not_wait_for_the_release():
    async def main():
        cluster = Cluster()
        cluster.hint_s = 1.5
        async with running(cluster) as head:
            _, finish = await collect(head, request())
            ended_at = asyncio.get_running_loop().time()

            assert ended_at < 1.0
            assert finish.duration_s < 1.0
        assert asyncio.get_running_loop().time() >= 1.5

    run(main, 0)


def test_hints_of_generations_that_outlive_their_head_are_dropped():
    async def main():
        cluster = Cluster()
        async with running(cluster) as head:
            items = head.generate(request())
            await anext(items)
        await items.aclose()

        assert cluster.releases == []
        assert head.counters.releases == 1

    run(main, 0)


def test_leaving_while_places_are_asked_for_gives_them_back():
    async def main():
        cluster = Cluster()
        async with running(cluster) as head:
            with suppress(TimeoutError):
                async with asyncio.timeout(0.0015):  # a reservation takes 0.001 s here
                    await collect(head, request())
            await asyncio.sleep(1.0)

            assert cluster.sessions() == 0
            assert {node for node, _ in cluster.releases} == {A, B}
            assert cluster.forwards == []
            assert (head.counters.holds, head.counters.releases) == (1, 1)

    run(main, 0)
