"""What left a node's layers is kept, sent again, and gone with its session (ADR-0041)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from tests.node.bench import (
    PROMPT,
    SESSION,
    Bench,
    Gate,
    decode,
    missed,
    prefill,
    refused,
    rows,
)

from meshnet.core.protocol.digest import PrefixDigest
from meshnet.core.protocol.messages import (
    ActivationReply,
    Code,
    ForwardRequest,
    Mode,
    Reply,
    TokenReply,
)
from meshnet.core.vocabulary import LayerRange, MissReason, SamplingParams
from meshnet.node.shards import NodeLimits


@pytest.fixture
def first(thread) -> Bench:
    """A node of the first layers, which embeds."""
    return Bench(thread, LayerRange(0, 2))


def replay(past: int, *ids: int, before: tuple[int, ...] = PROMPT, attempt: int = 1):
    digest = PrefixDigest.of(before[:past]).hex
    step = decode(past, *ids, attempt=attempt)
    return replace(step, prefix=digest, replay=True, want_token=False)


def data_of(reply: Reply) -> bytes:
    assert isinstance(reply, ActivationReply), reply
    return bytes(reply.activation.data)


async def test_what_left_the_layers_is_sent_again_and_nothing_runs(first: Bench):
    whole = data_of(await first.prefilled())
    steps = len(first.shard.steps)

    again = await first.ask(replay(0, *PROMPT, attempt=2))

    assert data_of(again) == whole
    assert isinstance(again, ActivationReply)
    assert again.cached == len(PROMPT)
    assert len(first.shard.steps) == steps
    described = first.service.session(SESSION)
    assert described is not None
    assert (described.length, described.attempt, described.replayable) == (3, 1, 3)


async def test_any_part_of_it_is_sent_again(first: Bench):
    whole = data_of(await first.prefilled())
    more = data_of(await first.ask(decode(3, 7)))

    assert data_of(await first.ask(replay(1, *PROMPT[1:], 7))) == whole[8:] + more
    assert data_of(await first.ask(replay(0, *PROMPT[:2]))) == whole[:16]


async def test_it_is_shortened_with_its_session(first: Bench):
    """Else what a wrong guess left behind would be sent for what replaced it."""
    await first.prefilled()
    await first.ask(decode(3, 7, 8))
    shortened = replace(decode(3, 9), prefix=PrefixDigest.of(PROMPT).hex, truncate=True)
    right = data_of(await first.ask(shortened))

    assert data_of(await first.ask(replay(3, 9))) == right
    assert missed(await first.ask(replay(3, 7))) is MissReason.PREFIX
    assert missed(await first.ask(replay(3, 9, 8))) is MissReason.PAST_LENGTH


async def test_a_refilled_session_keeps_what_it_is_filled_with(first: Bench):
    await first.prefilled()
    whole = data_of(await first.ask(prefill((5, 6), attempt=2)))

    assert data_of(await first.ask(replay(0, 5, 6, attempt=2))) == whole
    assert missed(await first.ask(replay(0, *PROMPT, attempt=2))) is MissReason.PAST_LENGTH


async def test_other_ids_an_older_attempt_and_an_unknown_session_are_misses(first: Bench):
    await first.prefilled(attempt=2)

    assert missed(await first.ask(replay(0, 9, attempt=2))) is MissReason.PREFIX
    assert missed(await first.ask(replay(0, 3, attempt=1))) is MissReason.ATTEMPT
    first.service.release(SESSION)
    assert missed(await first.ask(replay(0, 3, attempt=2))) is MissReason.UNKNOWN_SESSION


async def test_it_is_sent_while_the_next_step_runs(first: Bench):
    whole = data_of(await first.prefilled())
    gate = Gate(first)
    running = asyncio.ensure_future(first.service.forward(decode(3, 7)))
    await gate.entered.wait()
    again = await first.service.forward(replay(0, *PROMPT))
    gate.open()
    await running

    assert data_of(again) == whole


async def test_a_tail_keeps_nothing(whole: Bench):
    await whole.prefilled()

    assert missed(await whole.ask(replay(0, *PROMPT))) is MissReason.PAST_LENGTH


async def test_a_node_that_is_told_so_keeps_nothing_and_promises_no_bytes_for_it(first: Bench):
    per_token = first.shard.description.kv_bytes.per_token
    first.service = first.serve(NodeLimits(kv_bytes_max=2**20, keep_activations=False))
    (shard,) = first.service.describe().shards
    await first.prefilled()

    assert missed(await first.ask(replay(0, *PROMPT))) is MissReason.PAST_LENGTH
    assert shard.kv_bytes.spare == 0
    assert shard.kv_bytes.per_token == per_token - first.shard.description.kv_bytes.spare
    assert first.service.describe().kv_bytes == 3 * shard.kv_bytes.per_token


async def test_it_counts_in_the_bytes_of_the_session_and_goes_first_when_they_are_short(
    first: Bench,
):
    held = first.shard.description.kv_bytes
    first.service = first.serve(NodeLimits(kv_bytes_max=held.of(6) - 1))
    await first.prefilled()
    before = first.service.describe().kv_bytes

    other = replace(prefill(), session=type(SESSION)("t"))
    await first.ask(other)

    assert before == held.of(3)
    assert first.service.describe().sessions == 2
    assert missed(await first.ask(replay(0, *PROMPT))) is MissReason.PAST_LENGTH
    assert isinstance(await first.ask(decode(3, 7)), ActivationReply)


async def test_a_node_says_that_it_knows_replays(first: Bench):
    assert first.service.describe().replay


async def test_a_fill_is_answered_with_what_is_held_and_no_activation(middle: Bench):
    fill = ForwardRequest(
        Mode.PREFILL,
        SESSION,
        attempt=2,
        wire=1,
        tokens=PROMPT,
        activation=rows(3),
        want_token=False,
        fill=True,
    )

    reply = await middle.ask(fill)

    assert isinstance(reply, TokenReply)
    assert (reply.drawn, reply.text, reply.cached) == (None, "", 3)


async def test_a_fill_starts_a_tail_with_the_ids_that_its_draws_look_back_on(tail: Bench):
    sampling = SamplingParams(repetition_penalty=1.3, prompt_length=3)
    fill = ForwardRequest(
        Mode.PREFILL, SESSION, attempt=2, wire=1, tokens=PROMPT, activation=rows(3),
        sampling=sampling, want_token=False, fill=True,
    )  # fmt: skip
    await tail.ask(fill)
    plain = replace(fill, session=type(SESSION)("t"), fill=False)
    await tail.ask(plain)
    step = replace(decode(3, 7), activation=rows(1))

    filled = await tail.ask(replace(step, attempt=2))
    undisturbed = await tail.ask(replace(step, attempt=2, session=type(SESSION)("t")))

    assert isinstance(filled, TokenReply)
    assert isinstance(undisturbed, TokenReply)
    assert filled.drawn == undisturbed.drawn


async def test_a_replay_without_ids_is_a_bad_request(first: Bench):
    await first.prefilled()

    refused(await first.ask(replace(replay(0, 3), prefix=None)), Code.BAD_REQUEST)
    refused(await first.ask(replace(replay(0, 3), tokens=())), Code.BAD_REQUEST)
