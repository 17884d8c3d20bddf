"""Waiting for a place: in order, bounded, without deadlock, and no longer than needed."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest
from tests.head.cluster import (
    B,
    Cluster,
    collect,
    expected,
    request,
    running,
)

from meshnet.core.generation.limits import AdmissionLimits, Backoff
from meshnet.head import (
    FailureCode,
    GenerationFailed,
    Head,
    HeadLimits,
)
from meshnet.simulation.loop import run


async def chats(head: Head, first: int, count: int) -> list[int]:
    """Chat `count` times at once; return who finished, in that order, all with right tokens."""
    order: list[int] = []

    async def chat(number: int) -> None:
        asked = request((number, 2, 3))
        tokens, _ = await collect(head, asked)
        assert tokens == expected(asked)
        order.append(number)

    async with asyncio.TaskGroup() as tasks:
        for number in range(first, first + count):
            tasks.create_task(chat(number))
    return order


def test_more_chats_than_places_wait_their_turn_and_cost_one_prefill_each():
    """Pit C1."""

    async def main():
        cluster = Cluster(sessions_max=1)
        async with running(cluster) as head:
            order = await chats(head, 0, 6)

            assert order == [0, 1, 2, 3, 4, 5]
            assert head.counters.prefills == 6
            assert head.counters.refills.total() == 0

    run(main, 0)


def test_two_heads_that_name_the_nodes_in_opposite_orders_all_finish():
    async def main():
        cluster = Cluster(sessions_max=2)
        async with (
            running(cluster, name="h0") as one,
            running(cluster, name="h1") as other,
            asyncio.TaskGroup() as tasks,
        ):
            tasks.create_task(chats(one, 0, 6))
            tasks.create_task(chats(other, 10, 6))

        assert one.counters.finished == other.counters.finished == 6
        assert one.counters.prefills + other.counters.prefills <= 24

    run(main, 0)


def test_with_every_hint_lost_places_return_by_themselves():
    async def main():
        cluster = Cluster(sessions_max=1, pin_s=5.0)
        cluster.hints_are_lost = True
        async with running(cluster) as head:
            order = await chats(head, 0, 3)

        assert order == [0, 1, 2]

    run(main, 0)


def test_beyond_its_bound_the_queue_refuses_at_once():
    """Pit C1."""

    async def main():
        cluster = Cluster(sessions_max=1)
        limits = HeadLimits(waiting_max=1)
        async with running(cluster, limits=limits) as head:
            async with aclosing(head.generate(request(tokens_max=50))) as holding:
                await anext(holding)
                async with asyncio.TaskGroup() as tasks:
                    front = tasks.create_task(collect(head, request()))
                    behind = tasks.create_task(collect(head, request()))
                    await asyncio.sleep(0.01)
                    before = asyncio.get_running_loop().time()
                    with pytest.raises(GenerationFailed) as failed:
                        await collect(head, request())
                    assert asyncio.get_running_loop().time() == before
                    await holding.aclose()

            assert failed.value.code is FailureCode.OVERLOADED
            assert failed.value.retry_after_s is not None
            assert front.result()[0] == behind.result()[0] == expected(request())

    run(main, 0)


def test_a_request_that_gets_no_place_in_its_time_hears_of_overload():
    """Pit C1."""

    async def main():
        cluster = Cluster(sessions_max=1, pin_s=500.0)
        async with running(cluster) as head, aclosing(head.generate(request())) as holding:
            await anext(holding)
            with pytest.raises(GenerationFailed) as failed:
                await collect(head, request(deadline_s=4.0))

        assert failed.value.code is FailureCode.OVERLOADED
        assert set(cluster.reserves) <= set(cluster.releases)

    run(main, 0)


def test_a_node_that_dies_while_places_are_asked_for_is_waited_for():
    async def main():
        cluster = Cluster()
        async with running(cluster) as head:
            cluster.down.add(B)
            asyncio.get_running_loop().call_later(3.0, cluster.boot, B)
            tokens, finish = await collect(head, request())

        assert tokens == expected(request())
        assert finish.refills == 0

    run(main, 0)


def test_a_request_behind_the_front_is_refused_when_its_time_is_over():
    async def main():
        cluster = Cluster(sessions_max=1, pin_s=500.0)
        async with running(cluster) as head, aclosing(head.generate(request())) as holding:
            await anext(holding)
            async with asyncio.TaskGroup() as tasks:
                front = tasks.create_task(collect(head, request(deadline_s=50.0)))
                await asyncio.sleep(0.01)
                with pytest.raises(GenerationFailed) as failed:
                    await collect(head, request(deadline_s=2.0))
                assert head.waiting == 0
                await holding.aclose()

        assert failed.value.code is FailureCode.OVERLOADED
        assert front.result()[0] == expected(request())

    run(main, 0)


def test_a_place_freed_by_this_head_is_taken_at_once_and_not_at_the_next_poll():
    async def main():
        rare = Backoff(first_s=30.0, most_s=30.0)
        limits = HeadLimits(admission=AdmissionLimits(poll=rare))
        cluster = Cluster(sessions_max=1)
        async with running(cluster, limits=limits) as head:
            order = await chats(head, 0, 4)
            at = asyncio.get_running_loop().time()

        assert order == [0, 1, 2, 3]
        assert at < 1.0

    run(main, 0)
