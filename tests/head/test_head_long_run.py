"""Many generations on the same nodes: nothing is mixed up, nothing is left, nobody starves."""

from __future__ import annotations

import asyncio
import gc
import random
from contextlib import aclosing

from tests.head.cluster import A, B, C, Cluster, collect, expected, hang_at, request, running

from meshnet.core.generation.limits import GenerationLimits
from meshnet.core.protocol.messages import ForwardRequest, Mode
from meshnet.core.vocabulary import NodeId, SamplingParams
from meshnet.head import Head, HeadLimits, TokenEvent
from meshnet.simulation.loop import run


async def follow(head: Head, marker: int, leaves_after: int) -> tuple[int, ...]:
    """Read a generation of its own prompt, or the first `leaves_after` tokens of it."""
    asked = marked(marker)
    tokens: list[int] = []
    async with aclosing(head.generate(asked)) as items:
        async for item in items:
            if isinstance(item, TokenEvent):
                tokens.append(item.token.token_id)
            if len(tokens) == leaves_after:
                break
    return tuple(tokens)


def marked(marker: int):
    sampling = SamplingParams(temperature=1.0, seed=marker, repetition_penalty=1.2)
    return request((marker % 31, marker % 29, 7), tokens_max=10, sampling=sampling)


def test_no_answer_holds_anything_of_another():
    """Pit A62: sixteen clients, two hundred rounds, every third leaves somewhere."""

    async def main():
        rng = random.Random(3)
        cluster = Cluster(sessions_max=16)

        async def client(head: Head, number: int, rounds: int) -> None:
            for turn in range(rounds):
                marker = number + 16 * turn
                leaves_after = rng.randint(1, 9) if rng.random() < 0.33 else 10
                tokens = await follow(head, marker, leaves_after)
                assert tokens == expected(marked(marker))[:leaves_after]

        async with running(cluster) as head, asyncio.TaskGroup() as clients:
            for number in range(16):
                clients.create_task(client(head, number, 200 // 16 + 1))

    run(main, 0)


def objects() -> int:
    gc.collect()
    return len(gc.get_objects())


def test_five_hundred_requests_leave_nothing_behind():
    """Pit A61: sessions stay within the cap, memory stays, the last takes as long as the first."""

    async def main():
        cluster = Cluster(sessions_max=4)
        took: list[float] = []
        async with running(cluster) as head:
            for number in range(500):
                began = asyncio.get_running_loop().time()
                tokens, _ = await collect(head, request((number % 30,), tokens_max=3))
                took.append(asyncio.get_running_loop().time() - began)
                assert len(tokens) == 3
                assert cluster.sessions() <= 3 * 4
                cluster.forwards.clear()
                cluster.releases.clear()
                cluster.reserves.clear()
                if number == 100:
                    before = objects()
            grown = objects() - before
            await asyncio.sleep(1.0)

            assert cluster.sessions() == 0
            assert head.counters.holds == head.counters.releases == 500
        assert sum(took[-50:]) < 1.5 * sum(took[:50])
        assert grown < 400 // 4, f"{grown} objects more after 400 requests"

    run(main, 0)


def test_leaving_between_two_nodes_frees_the_first_by_its_own_clock():
    """Pit A58: no acknowledgement has to come; the second node never heard of the session."""

    async def main():
        cluster = Cluster()
        cluster.hints_are_lost = True
        reached = hang_at(cluster, B)
        async with running(cluster) as head:
            async with asyncio.TaskGroup() as tasks:
                chat = tasks.create_task(collect(head, request()))
                await reached.wait()
                chat.cancel()
            held = cluster.nodes[A].describe().kv_bytes
            await asyncio.sleep(601.0)

        assert held > 0
        assert cluster.sessions() == 0
        assert cluster.nodes[A].describe().kv_bytes == 0

    run(main, 0)


def test_a_head_that_died_leaves_sessions_that_die_by_themselves():
    """Pits A79, A109 and C15: its successor starts at once, under ids of its own."""

    async def main():
        cluster = Cluster(sessions_max=2)
        cluster.hints_are_lost = True
        async with running(cluster, name="first") as first:
            orphans = [first.generate(request(tokens_max=500)) for _ in range(2)]
            for orphan in orphans:
                await anext(orphan)

            async with running(cluster, name="second") as second:
                began = asyncio.get_running_loop().time()
                tokens, finish = await collect(second, request())
                took = asyncio.get_running_loop().time() - began
                await asyncio.sleep(601.0)
                left = cluster.sessions()

            for orphan in orphans:
                await orphan.aclose()
        assert tokens == expected(request())
        assert finish.refills == 0
        assert took < 10.0
        assert left == 0
        ids = {asked.request.session for asked in cluster.forwards}
        assert len(ids) == 3

    run(main, 0)


def test_a_long_prompt_lets_others_step_between_its_chunks():
    """Pit A93: a stream beside a prompt of 4,096 waits for one chunk at a hop, not for all."""

    async def main():
        cluster = Cluster()
        limits = HeadLimits(generation=GenerationLimits(prefill_chunk=512))
        long = request(tuple(number % 30 for number in range(4096 - 8)), tokens_max=2)
        streaming = asyncio.Event()

        async def note(hop: NodeId, sent: ForwardRequest) -> None:
            if sent.mode is Mode.DECODE and len(sent.tokens) == 1:
                streaming.set()

        cluster.before_forward = note
        async with running(cluster, limits=limits) as head, asyncio.TaskGroup() as tasks:
            stream = tasks.create_task(collect(head, request(tokens_max=100)))
            await streaming.wait()
            tasks.create_task(collect(head, long))
            await stream

        for node in (A, B, C):
            sizes = [len(each.request.tokens) for each in cluster.forwards if each.node == node]
            chunks = [index for index, size in enumerate(sizes) if size > 100]
            assert len(chunks) == 16
            hops = 3  # a token waits for a chunk at each of them, and comes back then
            for first, last in zip(chunks, chunks[hops:], strict=False):
                assert last - first > hops, "the stream stepped between any four chunks"

    run(main, 0)
