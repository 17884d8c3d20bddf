"""A long prompt's chunks are at several hops at the same time."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from tests.head.cluster import A, B, C, Cluster, collect, expected, request, running

from meshnet.core.generation.limits import GenerationLimits
from meshnet.core.protocol.messages import ForwardRequest
from meshnet.core.vocabulary import HopLost, NodeId
from meshnet.head import HeadLimits
from meshnet.simulation.loop import run

LIMITS = HeadLimits(generation=GenerationLimits(prefill_chunk=4))
LONG = tuple(range(24))


async def slowly(node: NodeId, asked: ForwardRequest) -> None:
    await asyncio.sleep(1.0)


def test_all_hops_work_at_once_and_the_tokens_are_those_of_one_prefill():
    async def main():
        cluster = Cluster()
        at_once: list[int] = []

        async def note(node: NodeId, asked: ForwardRequest) -> None:
            at_once.append(cluster.in_flight)
            await slowly(node, asked)

        cluster.before_forward = note
        async with running(cluster, limits=LIMITS) as head:
            began = asyncio.get_running_loop().time()
            tokens, finish = await collect(head, request(LONG, tokens_max=1))
            took = asyncio.get_running_loop().time() - began

        assert tokens == expected(request(LONG, tokens_max=1))
        assert (finish.prefills, finish.refills) == (1, 0)
        assert max(at_once) == 3
        assert 8.0 < took < 9.0, "six chunks and two hops more, where one by one takes 18 s"

    run(main, 0)


def test_leaving_while_three_hops_work_ends_all_calls():
    async def main():
        cluster = Cluster()
        full = asyncio.Event()

        async def note(node: NodeId, asked: ForwardRequest) -> None:
            if cluster.in_flight == 3:
                full.set()
            await slowly(node, asked)

        cluster.before_forward = note
        async with running(cluster, limits=LIMITS) as head:
            chat = asyncio.create_task(collect(head, request(LONG)))
            await full.wait()
            chat.cancel()
            with suppress(asyncio.CancelledError):
                await chat

            assert cluster.in_flight == 0
            await asyncio.sleep(10.0)
            assert cluster.sessions() == 0

    run(main, 0)


@pytest.mark.parametrize("node", [A, B, C])
def test_a_hop_lost_while_all_work_costs_one_refill_and_no_wrong_token(node: NodeId):
    async def main():
        cluster = Cluster()
        failing = [node]

        async def fail_once(hop: NodeId, asked: ForwardRequest) -> None:
            await slowly(hop, asked)
            if asked.past_length == 8 and hop in failing:
                failing.remove(hop)
                raise HopLost("connection reset")

        cluster.before_forward = fail_once
        asked = request(LONG, tokens_max=3)
        async with running(cluster, limits=LIMITS) as head:
            tokens, finish = await collect(head, asked)

        assert tokens == expected(asked)
        assert finish.refills == 1

    run(main, 0)


def test_places_are_kept_on_every_hop_while_a_long_prompt_goes_through():
    """A hop that has done its part waits for the others, for longer than it keeps a place."""

    async def main():
        cluster = Cluster(sessions_max=1)

        async def slow_tail(node: NodeId, asked: ForwardRequest) -> None:
            await asyncio.sleep(12.0 if node == C else 0.1)

        cluster.before_forward = slow_tail
        other = request(LONG[::-1], tokens_max=1)
        async with running(cluster, limits=LIMITS) as head, asyncio.TaskGroup() as tasks:
            first = tasks.create_task(collect(head, request(LONG, tokens_max=1)))
            await asyncio.sleep(20.0)
            tasks.create_task(collect(head, other))
            tokens, finish = await first

        assert tokens == expected(request(LONG, tokens_max=1))
        assert finish.refills == 0

    run(main, 0)
