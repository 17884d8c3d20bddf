"""Sessions that cannot be shortened, on a node: they go back to marks, and to nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.node.bench import LAYERS, PROMPT, SESSION, Bench, decode, missed

from meshnet.core.protocol.digest import PrefixDigest
from meshnet.core.protocol.messages import ForwardRequest, TokenReply
from meshnet.core.vocabulary import MissReason, SamplingParams, SessionId
from meshnet.simulation.toy_shard import SUMMING, oracle

FIRST = oracle(PROMPT, SamplingParams(), 4, LAYERS)
QUESTION = (9, 9, 2)
HEIR = SessionId("heir")


@pytest.fixture
async def ended(whole: Bench) -> Bench:
    """A node with a session that holds a prompt and three tokens, and lingers."""
    whole.shard.capabilities = SUMMING
    await whole.prefilled()
    for at in range(3):
        await whole.ask(decode(len(PROMPT) + at, FIRST[at]))
    whole.service.release(SESSION, linger=True)
    return whole


def next_turn(length: int) -> ForwardRequest:
    """The first step of a turn that shares `length` ids with the session that ended."""
    ids = (*PROMPT, *FIRST)[:length]
    step = replace(decode(length, *QUESTION), session=HEIR, adopt=SESSION)
    prefix = PrefixDigest.of(ids).hex
    return replace(step, prefix=prefix, truncate=True, sampling=SamplingParams())


@pytest.mark.parametrize("length", [len(PROMPT), len(PROMPT) + 3], ids=["prompt", "all"])
async def test_a_turn_goes_on_from_a_mark_as_from_a_prefill(ended: Bench, length: int):
    reply = await ended.ask(next_turn(length))

    assert isinstance(reply, TokenReply)
    assert reply.drawn is not None
    ids = (*PROMPT, *FIRST)[:length] + QUESTION
    assert reply.drawn.ids == oracle(ids, SamplingParams(), 1, LAYERS)
    assert reply.cached == len(ids)


@pytest.mark.parametrize("length", [len(PROMPT) - 1, len(PROMPT) + 1])
async def test_any_other_length_is_a_miss_and_the_head_may_refill(ended: Bench, length: int):
    """Pit A72."""
    assert missed(await ended.ask(next_turn(length))) is MissReason.PAST_LENGTH

    ids = (*PROMPT, *FIRST)[:length] + QUESTION
    reply = await ended.prefilled(session=HEIR, tokens=ids, attempt=2)

    assert isinstance(reply, TokenReply)
    assert reply.drawn is not None
    assert reply.drawn.ids == oracle(ids, SamplingParams(), 1, LAYERS)


async def test_a_mark_counts_only_with_the_ids_that_led_to_it(ended: Bench):
    step = replace(next_turn(len(PROMPT)), prefix=PrefixDigest.of((1, *PROMPT[1:])).hex)

    assert missed(await ended.ask(step)) is MissReason.PREFIX
