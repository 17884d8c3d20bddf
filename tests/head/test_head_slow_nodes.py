"""Steps that take longer than a node keeps an untouched place."""

from __future__ import annotations

import asyncio

from tests.head.cluster import LAYERS, A, B, C, Cluster, collect, expected, request, running

from meshnet.core.generation.limits import GenerationLimits, StepTimeout
from meshnet.core.generation.transcript import Forward, Replied, StepRef
from meshnet.core.protocol.messages import Code, ForwardRequest, Mode, Refusal
from meshnet.core.vocabulary import Hop, NodeId, SessionId
from meshnet.head import Head, HeadLimits
from meshnet.head.background import Background
from meshnet.head.keeping import PlaceKeeper
from meshnet.simulation.loop import run
from meshnet.simulation.toy_shard import TOY_MODEL

STEP_S = 4.0
"""With three hops, 8 s pass between two steps of a session on one node; its pin lasts 5."""


async def slowly(node: NodeId, request: ForwardRequest) -> None:
    await asyncio.sleep(STEP_S)


async def chat(head: Head, number: int, *, prompt_tokens: int = 3) -> int:
    """Chat with right tokens; return the refills it took."""
    asked = request((number, *[2] * prompt_tokens), tokens_max=12, deadline_s=3000)
    tokens, finish = await collect(head, asked)
    assert tokens == expected(asked)
    return finish.refills


def test_chats_on_one_place_do_not_take_it_from_each_other_however_slow_the_hops():
    async def main():
        cluster = Cluster(sessions_max=1)
        cluster.before_forward = slowly
        async with running(cluster) as head, asyncio.TaskGroup() as tasks:
            chats = [tasks.create_task(chat(head, number)) for number in range(3)]

        assert [done.result() for done in chats] == [0, 0, 0]

    run(main, 0)


def test_a_long_prompt_on_slow_hops_is_prefilled_once():
    async def main():
        cluster = Cluster(sessions_max=1)
        cluster.before_forward = slowly
        async with running(cluster) as head, asyncio.TaskGroup() as tasks:
            chats = [tasks.create_task(chat(head, n, prompt_tokens=2000)) for n in range(2)]

        assert [done.result() for done in chats] == [0, 0]

    run(main, 0)


def test_a_second_gateway_does_not_take_the_place_of_a_slow_chat_either():
    async def main():
        cluster = Cluster(sessions_max=1)
        cluster.before_forward = slowly
        async with (
            running(cluster, name="h0") as one,
            running(cluster, name="h1") as other,
            asyncio.TaskGroup() as tasks,
        ):
            chats = [tasks.create_task(chat(head, 1)) for head in (one, other)]

        assert [done.result() for done in chats] == [0, 0]

    run(main, 0)


def test_the_place_of_a_head_that_died_during_a_step_falls_free():
    async def main():
        cluster = Cluster(sessions_max=1)
        hanging = asyncio.Event()

        async def hang_at_the_tail(node: NodeId, request: ForwardRequest) -> None:
            if node == C and not hanging.is_set():
                hanging.set()
                await asyncio.sleep(15.0)

        cluster.before_forward = hang_at_the_tail
        async with running(cluster, name="h0") as dying, running(cluster, name="h1") as other:
            doomed = asyncio.create_task(collect(dying, request()))
            await hanging.wait()
            cluster.hints_are_lost = True
            doomed.cancel()
            began_at = asyncio.get_running_loop().time()
            await chat(other, 1)

            assert asyncio.get_running_loop().time() - began_at < 10.0

    run(main, 0)


def test_a_step_that_waits_behind_the_steps_of_others_is_not_lost():
    """Eight prefills on one device: the last waits for the time of all of them."""

    async def main():
        limits = HeadLimits(generation=GenerationLimits(step=StepTimeout(base_s=5.0)))
        cluster = Cluster(step_max_s=5.0)
        async with running(cluster, limits=limits) as head, asyncio.TaskGroup() as tasks:
            chats = [tasks.create_task(chat(head, number)) for number in range(8)]

        assert [done.result() for done in chats] == [0] * 8

    run(main, 0)


def test_stateless_steps_wait_behind_each_other_too():
    async def main():
        limits = HeadLimits(generation=GenerationLimits(step=StepTimeout(base_s=5.0)))
        cluster = Cluster(step_max_s=5.0, cacheless=frozenset({C}))
        async with running(cluster, limits=limits) as head, asyncio.TaskGroup() as tasks:
            chats = [tasks.create_task(chat(head, number)) for number in range(8)]

        assert [done.result() for done in chats] == [0] * 8

    run(main, 0)


def test_a_frozen_node_is_given_up_as_soon_as_before():
    async def main():
        limits = HeadLimits(generation=GenerationLimits(step=StepTimeout(base_s=5.0)))
        cluster = Cluster()
        frozen = False

        async def freeze_once(node: NodeId, request: ForwardRequest) -> None:
            nonlocal frozen
            if node == C and request.past_length == 6 and not frozen:
                frozen = True
                cluster.down.add(C)
                asyncio.get_running_loop().call_later(5.0, cluster.down.discard, C)
                await asyncio.get_running_loop().create_future()

        cluster.before_forward = freeze_once
        async with running(cluster, limits=limits) as head:
            assert await chat(head, 1) == 1

        assert asyncio.get_running_loop().time() < 7.0

    run(main, 0)


def test_a_head_that_closes_does_not_wait_for_a_step_that_takes_long():
    async def main():
        cluster = Cluster()

        async def hang(node: NodeId, request: ForwardRequest) -> None:
            await asyncio.sleep(1000.0)

        cluster.before_forward = hang
        async with running(cluster) as head:
            chatting = asyncio.create_task(collect(head, request()))
            await asyncio.sleep(10.0)

        assert asyncio.get_running_loop().time() < 15.0
        chatting.cancel()
        await asyncio.wait([chatting])

    run(main, 0)


def test_no_word_about_places_is_sent_once_a_chat_has_ended():
    async def main():
        cluster = Cluster(sessions_max=1)
        cluster.before_forward = slowly
        async with running(cluster) as head:
            await chat(head, 1)
            told = len(cluster.reserves)
            await asyncio.sleep(60.0)

            assert told > 3
            assert len(cluster.reserves) == told
            assert cluster.sessions() == 0

    run(main, 0)


async def kept_places(cluster: Cluster, refusal: Refusal | None) -> set[NodeId]:
    """Where a place is kept during a long step at the first hop, after `refusal` there."""
    hops = tuple(Hop(node, layers) for node, layers in LAYERS.items())
    ref = StepRef(1, 1, 0)
    asked = Forward(ref, hops[0], ForwardRequest(Mode.PREFILL), timeout_s=60.0, silence_s=60.0)
    async with asyncio.TaskGroup() as tasks:
        keeper = PlaceKeeper(cluster, Background(tasks), every_s=2.0)
        places = keeper.places(SessionId("s"), TOY_MODEL, 8)
        if refusal is not None:
            places.told(asked, Replied(ref, refusal), is_last=False)
        with places.kept(Mode.PREFILL, lambda: hops[:1], hops, lambda hop: None):
            await asyncio.sleep(9.0)
    return {node for node, _ in cluster.reserves}


def test_a_generation_refused_somewhere_keeps_no_place_elsewhere():
    """Two that wait for room would each hold what the other needs, for ever."""

    async def main():
        full = Refusal(Code.NO_ROOM, "full")

        assert await kept_places(Cluster(), None) == {A, B, C}
        assert await kept_places(Cluster(), full) == {A}

    run(main, 0)
