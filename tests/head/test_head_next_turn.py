"""The next turn of a chat goes on with what the nodes still hold of the one before."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace

import pytest
from tests.head.cluster import A, B, C, Cluster, collect, expected, request, running

from meshnet.core.generation.limits import GenerationLimits
from meshnet.core.protocol.messages import ForwardRequest, Mode
from meshnet.core.vocabulary import HopLost, NodeId, SamplingParams
from meshnet.head import HeadLimits
from meshnet.head.lingering import PrefixLimits, shared
from meshnet.simulation.loop import run

PROMPT = (3, 1, 4, 1, 5, 9, 2, 6)
MORE = (5, 3, 5)
LIMITS = HeadLimits(
    generation=GenerationLimits(drafts=0), prefixes=PrefixLimits(tokens_min=4, sessions_max=2)
)


def first(owner: str = "me"):
    return request(PROMPT, owner=owner)


def second(owner: str = "me", *, more: tuple[int, ...] = MORE):
    """The ids of the first turn, its answer among them, and more."""
    return request((*PROMPT, *expected(first()), *more), owner=owner)


def positions(cluster: Cluster, node: NodeId) -> list[int]:
    """How many positions the node ran in each step since the last look."""
    seen = [len(asked.request.tokens) for asked in cluster.forwards if asked.node == node]
    return seen


async def turn(head, cluster: Cluster, asked, *, cached: int) -> None:
    """Chat once; the answer is the oracle's, and the nodes ran what was not cached."""
    cluster.forwards.clear()
    tokens, finish = await collect(head, asked)

    assert tokens == expected(asked)
    assert finish.cached_tokens == cached
    new = len(asked.prompt) - cached
    for node in (A, B, C):
        assert positions(cluster, node) == [new] + [1] * (len(tokens) - 1)


def test_a_next_turn_runs_only_its_new_positions():
    async def main():
        cluster = Cluster()
        async with running(cluster, limits=LIMITS) as head:
            await turn(head, cluster, first(), cached=0)
            # The last token of an answer was drawn, never run.
            await turn(head, cluster, second(), cached=len(PROMPT) + 7)

            assert {asked.request.mode for asked in cluster.forwards} == {Mode.DECODE}
            assert head.counters.reused == len(PROMPT) + 7
            assert cluster.sessions() == 3
        assert cluster.sessions() == 0

    run(main, 0)


def test_a_next_turn_draws_with_its_own_parameters():
    async def main():
        sampling = SamplingParams(temperature=1.0, seed=5, presence_penalty=1.0)
        asked = replace(second(), sampling=replace(sampling, prompt_length=len(second().prompt)))
        cluster = Cluster()
        async with running(cluster, limits=LIMITS) as head:
            await turn(head, cluster, first(), cached=0)
            await turn(head, cluster, asked, cached=len(PROMPT) + 7)

    run(main, 0)


def test_an_answer_that_the_template_drops_is_cut_off():
    """As with a template that leaves out what the last answer thought."""

    async def main():
        cluster = Cluster(truncate=True)
        shortened = request((*PROMPT, 30, 31), owner="me")
        async with running(cluster, limits=LIMITS) as head:
            await turn(head, cluster, first(), cached=0)
            await turn(head, cluster, shortened, cached=len(PROMPT))

    run(main, 0)


def test_what_cannot_be_cut_off_is_not_adopted():
    async def main():
        cluster = Cluster(truncate=False)
        async with running(cluster, limits=LIMITS) as head:
            await turn(head, cluster, first(), cached=0)
            await turn(head, cluster, request((*PROMPT, 30, 31), owner="me"), cached=0)

    run(main, 0)


def test_the_same_prompt_again_runs_its_last_position():
    async def main():
        cluster = Cluster(truncate=True)
        async with running(cluster, limits=LIMITS) as head:
            await turn(head, cluster, first(), cached=0)
            await turn(head, cluster, first(), cached=len(PROMPT) - 1)

    run(main, 0)


@pytest.mark.parametrize("owner", ["you", None])
def test_a_session_goes_on_for_its_owner_only(owner):
    """Pit A65. What others asked must not show, not even as time or as a count."""

    async def main():
        cluster = Cluster(truncate=True)
        async with running(cluster, limits=LIMITS) as head:
            await turn(head, cluster, first("me"), cached=0)
            await turn(head, cluster, second(owner), cached=0)
            await turn(head, cluster, second("me"), cached=len(PROMPT) + 7)

    run(main, 0)


def test_a_request_of_no_owner_leaves_nothing_behind():
    async def main():
        cluster = Cluster()
        async with running(cluster, limits=LIMITS) as head:
            await collect(head, first(None))
            await asyncio.sleep(1.0)
            assert cluster.sessions() == 0

    run(main, 0)


def test_a_client_that_leaves_between_two_tokens_may_come_back():
    async def main():
        cluster = Cluster()
        async with running(cluster, limits=LIMITS) as head:
            async with aclosing(head.generate(first())) as items:
                async for _ in items:
                    break
            await turn(head, cluster, second(), cached=len(PROMPT))

    run(main, 0)


def test_a_client_that_leaves_inside_a_step_leaves_nothing():
    async def main():
        cluster = Cluster()
        async with running(cluster, limits=LIMITS) as head:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.002):
                    await collect(head, first())
            await turn(head, cluster, second(), cached=0)

    run(main, 0)


@pytest.mark.parametrize("node", [A, B, C])
def test_a_node_that_forgot_costs_one_refill(node):
    async def main():
        cluster = Cluster()
        async with running(cluster, limits=LIMITS) as head:
            await collect(head, first())
            cluster.boot(node)
            tokens, finish = await collect(head, second())

            assert tokens == expected(second())
            assert (finish.cached_tokens, finish.prefills, finish.refills) == (0, 1, 1)
            await asyncio.sleep(10.0)
            assert cluster.sessions() == 3

    run(main, 0)


def test_a_hop_that_is_lost_during_the_adoption_costs_one_refill():
    async def main():
        cluster = Cluster()
        lost = []

        async def lose_once(node: NodeId, sent: ForwardRequest) -> None:
            if node == B and sent.adopt is not None and not lost:
                lost.append(sent)
                raise HopLost("connection reset")

        async with running(cluster, limits=LIMITS) as head:
            await collect(head, first())
            cluster.before_forward = lose_once
            tokens, finish = await collect(head, second())

        assert tokens == expected(second())
        assert (finish.cached_tokens, finish.refills) == (0, 1)
        assert len(lost) == 1

    run(main, 0)


def test_a_lingering_session_is_no_reason_to_wait():
    async def main():
        cluster = Cluster(sessions_max=1)
        async with running(cluster, limits=LIMITS) as head:
            await collect(head, first())
            before = asyncio.get_running_loop().time()
            await turn(head, cluster, request((7, 7, 7, 7), owner="you"), cached=0)
            assert asyncio.get_running_loop().time() - before < 1.0
            tokens, finish = await collect(head, second())

        assert tokens == expected(second())
        assert finish.cached_tokens == 0

    run(main, 0)


def test_one_place_is_enough_for_both_turns():
    async def main():
        cluster = Cluster(sessions_max=1)
        async with running(cluster, limits=LIMITS) as head:
            await turn(head, cluster, first(), cached=0)
            await turn(head, cluster, second(), cached=len(PROMPT) + 7)

    run(main, 0)


def test_the_next_turn_may_come_before_its_node_hears_that_the_first_is_over():
    async def main():
        cluster = Cluster()
        cluster.hint_s = 0.5
        async with running(cluster, limits=LIMITS) as head:
            await turn(head, cluster, first(), cached=0)
            await turn(head, cluster, second(), cached=len(PROMPT) + 7)

    run(main, 0)


def test_sessions_linger_for_a_while_and_not_in_any_number():
    async def main():
        cluster = Cluster()
        async with running(cluster, limits=LIMITS) as head:
            for start in range(3):
                await collect(head, request((start, *PROMPT), owner="me"))
            await asyncio.sleep(1.0)
            assert cluster.sessions() == 2 * 3

            await asyncio.sleep(LIMITS.prefixes.seconds)
            await turn(head, cluster, request((2, *PROMPT, 1), owner="me"), cached=0)
            await asyncio.sleep(1.0)
            assert cluster.sessions() == 3

    run(main, 0)


def test_of_two_sessions_the_one_that_saves_more_goes_on():
    async def main():
        cluster = Cluster(truncate=True)
        async with running(cluster, limits=LIMITS) as head:
            await collect(head, first())
            await collect(head, second(more=(8, 8, 8)))
            await collect(head, first())
            await turn(head, cluster, second(), cached=len(PROMPT) + 8)

    run(main, 0)


def test_a_chat_that_only_begins_like_another_does_not_take_its_session():
    async def main():
        cluster = Cluster(truncate=True)
        long = request((*PROMPT, *range(10, 20)), owner="me")
        async with running(cluster, limits=LIMITS) as head:
            await collect(head, long)
            await turn(head, cluster, request((*PROMPT, 1), owner="me"), cached=0)
            await turn(head, cluster, long, cached=len(long.prompt) - 1)

    run(main, 0)


def test_the_common_prefix_is_found_whatever_its_length():
    ids = tuple(range(300))
    for length in (0, 1, 2, 149, 150, 299, 300):
        other = ids[:length] + (-1,) * (300 - length)
        assert shared(ids, other) == length
        assert shared(ids, ids[:length]) == length
    assert shared((), ids) == 0
