"""A generation that guesses: what it asks, what it emits, when it does without."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.core.generation.talk import LIMITS, Talk, activation, miss, route_of

from meshnet.core.generation.questions import DRAFTS_FAILED_MAX
from meshnet.core.generation.transcript import (
    Delivered,
    Emit,
    Fail,
    FailureCode,
    Finish,
    FinishReason,
    GenerationAction,
    Release,
    Replied,
    Reroute,
    Rerouted,
)
from meshnet.core.protocol.digest import PrefixDigest
from meshnet.core.protocol.messages import (
    ActivationReply,
    Code,
    ForwardRequest,
    Mode,
    Refusal,
    TokenReply,
)
from meshnet.core.vocabulary import Drawn, MissReason, Route, SampledToken, TokenLogprob

LOOP = (5, 6, 7, 5, 6, 7, 5)
ABLE = replace(route_of(), truncate=True)


def guessing(
    *,
    drafts: int | None = 3,
    route: Route = ABLE,
    tokens_max: int = 20,
    stop_ids: tuple[int, ...] = (),
) -> Talk:
    """A generation whose prompt is a loop and whose first token, 6, goes on with it."""
    talk = Talk(
        prompt=LOOP,
        route=route,
        tokens_max=tokens_max,
        stop_ids=stop_ids,
        limits=replace(LIMITS, prefill_chunk=100, drafts=drafts),
    )
    talk.step(6)
    return talk


def pass_hops(talk: Talk) -> ForwardRequest:
    """Take the open step to the tail; return what the tail is asked."""
    for _ in talk.machine.route.hops[1:]:
        request = talk.open.request
        cached = request.past_length + len(request.tokens)
        talk.reply(ActivationReply(activation(len(request.tokens)), cached))
    return talk.open.request


def draw(talk: Talk, *ids: int) -> list[GenerationAction]:
    """Let every hop hold the step, the tail draw `ids`, and the consumer take them."""
    request = pass_hops(talk)
    drawn = Drawn(tuple(map(SampledToken, ids)))
    cached = request.past_length + len(request.tokens)
    return talk.reply(TokenReply(drawn, "", cached)) + talk.tell(Delivered())


def digest(*ids: int) -> str:
    return PrefixDigest.of(ids).hex


def test_a_decode_brings_what_the_text_so_far_makes_likely():
    talk = guessing()

    request = talk.open.request

    assert (request.mode, request.past_length) == (Mode.DECODE, len(LOOP))
    assert (request.tokens, request.drafts) == ((6, 7, 5, 6), 3)
    assert not request.truncate


def test_an_accepted_run_is_emitted_and_needs_no_truncation():
    talk = guessing()

    assert draw(talk, 7, 5, 6, 7)[:4] == [Emit(SampledToken(token)) for token in (7, 5, 6, 7)]

    assert talk.open.request.past_length == len(LOOP) + 4
    assert talk.open.request.prefix == digest(*LOOP, 6, 7, 5, 6)
    assert not talk.open.request.truncate


def test_after_a_rejected_guess_the_nodes_are_told_to_forget_it():
    """Past length and digest are those of accepted ids only."""
    talk = guessing()
    draw(talk, 7, 30)

    request = talk.open.request
    assert request.truncate
    assert request.past_length == len(LOOP) + 2
    assert request.prefix == digest(*LOOP, 6, 7)
    assert request.tokens[0] == 30
    assert talk.tokens[:3] == [6, 7, 30]


def test_all_hops_are_told_to_truncate():
    talk = guessing()
    draw(talk, 30)
    step = talk.open.ref.step
    pass_hops(talk)

    asked = [forward.request for forward in talk.forwards if forward.ref.step == step]
    assert [(request.truncate, request.past_length) for request in asked] == [(True, 8)] * 3
    assert {request.tokens[0] for request in asked} == {30}


def test_a_stop_id_inside_an_accepted_run_ends_exactly_there():
    """Usage counts up to it, and what was drawn after it never existed."""
    talk = guessing(stop_ids=(5,))
    assert talk.open.request.tokens == (6, 7, 5)

    actions = draw(talk, 7, 5, 6)

    assert talk.tokens == [6, 7, 5]
    assert isinstance(actions[-1], Finish)
    assert actions[-1].reason is FinishReason.STOP
    assert actions[-1].stats.completion_tokens == 3
    assert sum(isinstance(action, Release) for action in actions) == 1


def test_no_more_is_guessed_than_the_length_limit_leaves():
    """So no step is longer than some step without guesses would have been."""
    talk = guessing(tokens_max=3)
    assert (talk.open.request.tokens, talk.open.request.drafts) == ((6, 7), 1)

    actions = draw(talk, 7, 5)

    assert talk.tokens == [6, 7, 5]
    assert isinstance(actions[-1], Finish)
    assert actions[-1].reason is FinishReason.LENGTH


def test_the_last_token_is_not_preceded_by_a_guess():
    assert guessing(tokens_max=2).open.request.drafts == 0


def test_the_stats_tell_how_many_guesses_were_right():
    talk = guessing(stop_ids=(30,))

    actions = draw(talk, 7, 30)

    assert isinstance(actions[-1], Finish)
    stats = actions[-1].stats
    assert (stats.guessed, stats.accepted, stats.completion_tokens) == (3, 1, 3)


def test_logprobs_come_with_the_accepted_tokens():
    talk = guessing()
    request = pass_hops(talk)
    tokens = tuple(SampledToken(t, -0.5, (TokenLogprob(t, -0.5),)) for t in (7, 30))

    actions = talk.reply(TokenReply(Drawn(tokens), "", request.past_length + len(request.tokens)))

    assert actions[:2] == [Emit(token) for token in tokens]


@pytest.mark.parametrize("drawn", [(8, 5, 6), (7, 5, 6, 7, 5), (7, 6, 5)])
def test_draws_that_do_not_follow_from_the_guesses_are_no_answer(drawn):
    """They say that another step was verified: the hop is lost, and nothing is emitted."""
    talk = guessing()
    request = pass_hops(talk)

    reply = TokenReply(
        Drawn(tuple(map(SampledToken, drawn))), "", request.past_length + len(request.tokens)
    )
    actions = talk.reply(reply)

    assert talk.tokens == [6]
    assert [type(action) for action in actions] == [Reroute]


def test_two_draws_in_answer_to_a_step_without_guesses_are_no_answer():
    talk = Talk(prompt=(1, 2, 3), route=ABLE, limits=replace(LIMITS, drafts=0))
    talk.step(7)
    actions = draw(talk, 7, 8)

    assert [type(action) for action in actions] == [Reroute]


@pytest.mark.parametrize(
    "route",
    [
        replace(ABLE, truncate=False),
        replace(ABLE, multi_token=False),
        replace(ABLE, kv_cache=False),
    ],
    ids=["cannot truncate", "one position at a time", "no cache"],
)
def test_a_route_that_cannot_take_guesses_back_is_sent_none(route):
    talk = guessing(route=route)

    for _ in range(3):
        assert talk.open.request.drafts == 0
        talk.step(7)
    assert not any(forward.request.truncate for forward in talk.forwards)


def test_drafts_can_be_turned_off():
    assert guessing(drafts=0).open.request.drafts == 0


def test_a_prefill_brings_no_guesses_and_a_refill_forgets_what_was_held():
    talk = guessing()
    draw(talk, 30)
    talk.reply(miss(MissReason.PREFIX))

    request = talk.open.request
    assert (request.mode, request.drafts, request.truncate) == (Mode.PREFILL, 0, False)
    assert request.tokens[: len(LOOP) + 2] == (*LOOP, 6, 30)


def test_a_lost_step_with_guesses_is_asked_anew_from_the_ids_alone():
    talk = guessing()
    pass_hops(talk)
    talk.lose()
    talk.tell(Rerouted(replace(route_of(prefix="other"), truncate=True)))

    request = talk.open.request
    assert (request.mode, request.tokens) == (Mode.PREFILL, (*LOOP, 6))
    assert talk.tokens == [6]


def test_a_late_answer_to_a_step_with_guesses_is_ignored():
    talk = guessing()
    pass_hops(talk)
    late = talk.open.ref
    talk.lose()
    talk.tell(Rerouted(ABLE))

    answer = TokenReply(Drawn((SampledToken(7), SampledToken(9))), "", len(LOOP) + 4)

    assert talk.tell(Replied(late, answer)) == []
    assert talk.tokens == [6]


def test_a_hop_that_cannot_truncate_after_all_ends_the_guessing_not_the_generation():
    talk = guessing()
    misses = 0
    while talk.end is None:
        if talk.open.request.truncate:
            misses += 1
            talk.reply(miss(MissReason.PAST_LENGTH))
        elif talk.open.request.drafts:
            draw(talk, 30)
        else:
            draw(talk, 6)

    assert misses == DRAFTS_FAILED_MAX
    assert isinstance(talk.end, Finish)
    assert talk.open.request.drafts == 0


NOT_A_NUMBER = Refusal(Code.NUMERICAL_ERROR, "the logits hold NaN or infinity")


def test_what_cannot_be_computed_with_guesses_is_tried_once_without():
    """A guess may be a token that yields NaN, which poisons the rows beside it."""
    talk = guessing()
    assert talk.open.request.drafts
    pass_hops(talk)

    talk.reply(NOT_A_NUMBER)

    assert (talk.open.request.mode, talk.open.request.tokens) == (Mode.PREFILL, (*LOOP, 6))
    for token in (7, 5, 6):
        talk.step(token)
        assert talk.open.request.drafts == 0
    assert talk.tokens == [6, 7, 5, 6]

    talk.reply(NOT_A_NUMBER)
    assert isinstance(talk.end, Fail)
    assert talk.end.code is FailureCode.NUMERICAL


def test_what_cannot_be_computed_without_guesses_is_not_tried_again():
    talk = guessing(drafts=0)

    talk.reply(NOT_A_NUMBER)

    assert isinstance(talk.end, Fail)
    assert talk.end.code is FailureCode.NUMERICAL


def test_auto_finds_out_whether_guesses_pay():
    """Steps cost the same however long they are, so guesses come after the first few steps."""
    talk = guessing(drafts=None, tokens_max=60)
    while talk.end is None:
        talk.now += 0.3
        drawn = [
            LOOP[(len(talk.tokens) + at + 1) % 3] for at in range(talk.open.request.drafts + 1)
        ]
        draw(talk, *drawn)

    drafts = list({f.ref.step: f.request.drafts for f in talk.forwards}.values())
    assert drafts[:3] == [0, 0, 0]
    assert max(drafts) > 3
    assert len(drafts) < 30
