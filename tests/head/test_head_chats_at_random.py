"""Chats of several turns on nodes that fail at random: adoption, drafts, late copies together."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.head.cluster import Cluster, expected, request, running

from meshnet.core.generation.limits import GenerationLimits
from meshnet.core.protocol.messages import ForwardRequest
from meshnet.core.vocabulary import HopLost, NodeId, SamplingParams
from meshnet.head import (
    FinishEvent,
    GenerationFailed,
    GenerationRequest,
    Head,
    HeadLimits,
    TokenEvent,
)
from meshnet.head.lingering import PrefixLimits
from meshnet.simulation.loop import run

CHATS, TURNS, IDS = 3, 4, 30


@dataclass
class Trouble:
    """What befalls a step on its way to a node: it is lost, late or doubled, or the node dies."""

    cluster: Cluster
    rng: random.Random
    tasks: asyncio.TaskGroup

    async def __call__(self, node: NodeId, asked: ForwardRequest) -> None:
        fate = self.rng.random()
        if fate < 0.03:
            raise HopLost("connection reset")
        if fate < 0.06:
            await asyncio.sleep(self.rng.uniform(0.0, 3.0))
        elif fate < 0.15:
            latest_s = self.rng.choice([0.02, 4.0])  # while the chat goes on, or in a later turn
            late = self._late_copy(node, asked, self.rng.uniform(0.0, latest_s))
            self.tasks.create_task(late)
        elif fate > 0.997:
            self.cluster.boot(node)

    async def _late_copy(self, node: NodeId, asked: ForwardRequest, after_s: float) -> None:
        await asyncio.sleep(after_s)
        await self.cluster.nodes[node].forward(asked)


@dataclass
class Heard:
    """What a client got of one answer; `finish` is None if it left or was refused."""

    asked: GenerationRequest
    tokens: list[int] = field(default_factory=list)
    finish: FinishEvent | None = None


def turn(prompt: tuple[int, ...], rng: random.Random) -> GenerationRequest:
    sampling = SamplingParams(
        temperature=rng.choice([0.0, 1.0]),
        seed=rng.randrange(9),
        presence_penalty=rng.choice([0.0, 0.5]),
        prompt_length=len(prompt),
    )
    return request(
        prompt,
        owner=rng.choice(["me", "you"]),
        sampling=sampling,
        tokens_max=rng.choice([1, 3, 8, 20]),
        stop_ids=tuple(rng.sample(range(IDS), rng.choice([0, 0, 2]))),
    )


async def chat(head: Head, rng: random.Random) -> AsyncIterator[Heard]:
    """Ask, listen to the end or leave early, and go on from what was heard."""
    prompt = tuple(rng.randrange(IDS) for _ in range(rng.randrange(1, 12)))
    for _ in range(TURNS):
        heard = Heard(turn(prompt, rng))
        leaves_after = rng.randrange(1, 8) if rng.random() < 0.25 else IDS
        try:
            async with aclosing(head.generate(heard.asked)) as items:
                async for item in items:
                    if isinstance(item, FinishEvent):
                        heard.finish = item
                    elif isinstance(item, TokenEvent):
                        heard.tokens.append(item.token.token_id)
                    if len(heard.tokens) >= leaves_after:
                        break
        except GenerationFailed:
            pass  # an error is allowed; a wrong token is not
        yield heard
        more = tuple(rng.randrange(IDS) for _ in range(rng.randrange(0, 4)))
        prompt = (*prompt, *heard.tokens, *more)


def limits(rng: random.Random) -> HeadLimits:
    return HeadLimits(
        generation=GenerationLimits(
            drafts=rng.choice([0, 2, 4, None]),
            prefill_chunk=rng.choice([3, 4, 512]),
            chunk_grain=1,
        ),
        prefixes=PrefixLimits(tokens_min=2, sessions_max=3),
    )


async def chats(seed: int) -> list[Heard]:
    rng, heard = random.Random(seed), []
    cluster = Cluster(truncate=True, sessions_max=rng.choice([1, 2, 3, 8]))

    async def talk(head: Head) -> None:
        async for each in chat(head, rng):
            heard.append(each)
            for node in cluster.nodes.values():
                node.check_integrity()  # type: ignore[union-attr]

    async with running(cluster, limits=limits(rng)) as head, asyncio.TaskGroup() as tasks:
        cluster.before_forward = Trouble(cluster, rng, tasks)
        for _ in range(CHATS):
            tasks.create_task(talk(head))
    return heard


def wrongs(heard: Heard) -> Iterator[str]:
    """Say what is not as the unsplit model has it, or as the usage tells it."""
    right, finish = expected(heard.asked), heard.finish
    if tuple(heard.tokens) != right[: len(heard.tokens)]:
        yield f"{heard.tokens} is no beginning of {right}"
    if finish is None:
        return
    if len(heard.tokens) != len(right) or finish.completion_tokens != len(right):
        yield f"{finish.completion_tokens} tokens of {len(right)}, {len(heard.tokens)} of them told"
    if not 0 <= finish.cached_tokens < len(heard.asked.prompt):
        yield f"{finish.cached_tokens} cached of {len(heard.asked.prompt)}"


@settings(derandomize=True, deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**32))
def test_whatever_befalls_a_chat_its_tokens_are_the_models(seed: int):
    heard = run(partial(chats, seed), seed)

    assert len(heard) == CHATS * TURNS
    assert [line for each in heard for line in wrongs(each)] == []


def test_the_chats_adopt_and_guess_and_mostly_finish():
    """Else the test above would prove nothing."""
    heard = [each for seed in range(10) for each in run(partial(chats, seed), seed)]
    finishes = [each.finish for each in heard if each.finish is not None]

    assert len(finishes) > len(heard) / 2
    assert sum(finish.cached_tokens > 0 for finish in finishes) >= 10
    assert sum(finish.accepted for finish in finishes) >= 10
    assert sum(finish.refills for finish in finishes) >= 10
