"""Decodes with guesses, and sessions shortened before a step, as a node serves them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.node.bench import LAYERS, PROMPT, SESSION, Bench, decode, missed

from meshnet.core.protocol.digest import PrefixDigest
from meshnet.core.protocol.messages import ForwardRequest, TokenReply
from meshnet.core.vocabulary import MissReason, SamplingParams
from meshnet.simulation.toy_shard import oracle

EXPECTED = oracle(PROMPT, SamplingParams(), 8, LAYERS)
HELD = len(PROMPT)


def guessing(*guesses: int, known: int = 1, truncate: bool = False) -> ForwardRequest:
    """The decode of the last of `known` drawn tokens, and of guesses that may follow it."""
    ids = (*PROMPT, *EXPECTED[: known - 1])
    step = decode(len(ids), EXPECTED[known - 1], *guesses)
    prefix = PrefixDigest.of(ids).hex
    return replace(step, prefix=prefix, drafts=len(guesses), truncate=truncate)


def wrong(token: int) -> int:
    return (token + 5) % 32


@pytest.mark.parametrize("right", [0, 1, 2, 3])
async def test_the_tail_answers_with_the_accepted_run_and_one_more(whole: Bench, right: int):
    await whole.prefilled()
    guesses = [*EXPECTED[1 : 1 + right], *map(wrong, EXPECTED[1 + right : 4])]

    reply = await whole.ask(guessing(*guesses))

    assert isinstance(reply, TokenReply)
    assert reply.drawn is not None
    assert reply.drawn.ids == EXPECTED[1 : right + 2]
    assert reply.cached == HELD + 4
    assert reply.text == "".join(f"<{token}>" for token in reply.drawn.ids)


async def test_after_a_rejected_guess_the_session_is_shortened_and_goes_on(whole: Bench):
    await whole.prefilled()
    await whole.ask(guessing(EXPECTED[1], wrong(EXPECTED[2]), 7))

    reply = await whole.ask(guessing(*EXPECTED[3:5], known=3, truncate=True))

    assert isinstance(reply, TokenReply)
    assert reply.drawn is not None
    assert reply.drawn.ids == EXPECTED[3:6]
    held = whole.service.session(SESSION)
    assert held is not None
    assert held.prefix == PrefixDigest.of((*PROMPT, *EXPECTED[:5])).hex


async def test_a_late_step_with_rejected_guesses_does_not_pass_for_what_replaced_them(
    whole: Bench,
):
    """It leaves as many positions as the head counts, but other ids."""
    await whole.prefilled()
    late = guessing(wrong(EXPECTED[1]), truncate=True)
    await whole.ask(late)
    await whole.ask(guessing(known=2, truncate=True))
    await whole.ask(late)

    reply = await whole.ask(guessing(known=3, truncate=True))

    assert missed(reply) is MissReason.PREFIX


async def test_a_shard_that_cannot_truncate_misses(whole: Bench):
    whole.shard.capabilities = replace(whole.shard.capabilities, truncate=False)
    await whole.prefilled()
    await whole.ask(guessing(wrong(EXPECTED[1])))

    assert missed(await whole.ask(guessing(known=2, truncate=True))) is MissReason.PAST_LENGTH
