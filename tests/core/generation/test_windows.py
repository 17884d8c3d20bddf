"""Several windows of guesses on their way along a chain, each built on the one before."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.core.generation.talk import LIMITS, Talk
from tests.core.generation.test_generation_chains import chained

from meshnet.core.generation.drafting import Drafter
from meshnet.core.generation.payoff import Payoff
from meshnet.core.generation.transcript import (
    Cancelled,
    Delivered,
    Emit,
    Forward,
    GenerationAction,
    Overtaken,
    Release,
    Replied,
)
from meshnet.core.protocol.digest import PrefixDigest
from meshnet.core.protocol.messages import Code, ForwardRequest, Mode, Refusal, TokenReply
from meshnet.core.vocabulary import Drawn, Route, SampledToken

LOOP = (5, 6, 7, 5, 6, 7, 5)
"""6 7 5 6 7 5 ... is what follows."""
FIXED = replace(LIMITS, drafts=2, windows=3)
ABLE = replace(chained(), truncate=True)


def guessing(*, route: Route = ABLE, tokens_max: int = 40, stop_ids: tuple[int, ...] = ()) -> Talk:
    """A generation whose first token, 6, came: 7 5, then 6 and 7 5, then 6 and 7 5 are guessed."""
    talk = Talk(prompt=LOOP, route=route, limits=FIXED, tokens_max=tokens_max, stop_ids=stop_ids)
    while not talk.tokens:
        reply = talk.right_answer(6, len(route.segments))
        talk.tell(Replied(talk.open.ref, reply, talk.open.hops[-1]))
    talk.tell(Delivered())
    return talk


def drawing(asked: Forward, *ids: int) -> Replied:
    request = asked.request
    cached = request.past_length + len(request.tokens)
    reply = TokenReply(Drawn(tuple(map(SampledToken, ids))), "", cached)
    return Replied(asked.ref, reply, asked.hops[-1])


def draw(talk: Talk, *ids: int) -> list[GenerationAction]:
    """Answer the oldest window by these ids, and take what comes."""
    actions = talk.tell(drawing(talk.open, *ids))
    return actions + talk.tell(Delivered())


def asked(actions: list[GenerationAction]) -> list[ForwardRequest]:
    return [each.request for each in actions if isinstance(each, Forward)]


def test_each_window_is_built_on_all_of_the_one_before_being_right():
    talk = guessing()

    requests = [each.request for each in talk.waiting]
    assert [each.tokens for each in requests] == [(6, 7, 5), (6, 7, 5), (6, 7, 5)]
    assert [each.past_length for each in requests] == [7, 10, 13]
    assert [each.drafts for each in requests] == [2, 2, 2]
    for each in requests:
        text = (*LOOP, *(6, 7, 5) * 3)[: each.past_length]
        assert each.prefix == PrefixDigest.of(text).hex
        assert not each.truncate


def test_where_all_was_right_the_others_stand_and_one_more_follows():
    talk = guessing()

    actions = draw(talk, 7, 5, 6)

    assert [a.token.token_id for a in actions if isinstance(a, Emit)] == [7, 5, 6]
    assert [(each.past_length, each.tokens) for each in asked(actions)] == [(16, (6, 7, 5))]
    assert [each.request.past_length for each in talk.waiting] == [10, 13, 16]
    draw(talk, 7, 5, 6)
    assert talk.tokens == [6, 7, 5, 6, 7, 5, 6]


@pytest.mark.parametrize(
    ("drawn", "text"),
    [((30,), (6, 30)), ((7, 30), (6, 7, 30)), ((7, 5, 30), (6, 7, 5, 30))],
    ids=["the first guess was wrong", "the second", "what was to begin the next window"],
)
def test_what_was_built_on_a_wrong_guess_is_overtaken_and_truncated(
    drawn: tuple[int, ...], text: tuple[int, ...]
):
    talk = guessing()
    void = talk.waiting[1:]

    actions = draw(talk, *drawn)

    assert Overtaken(tuple(each.ref for each in void)) in actions
    request = talk.open.request
    assert (request.truncate, request.past_length) == (True, len(LOOP) + len(text) - 1)
    assert request.prefix == PrefixDigest.of((*LOOP, *text[:-1])).hex
    assert request.tokens[0] == 30
    assert all(talk.tell(drawing(each, 7, 5, 6)) == [] for each in void)
    assert tuple(talk.tokens) == text


def test_a_late_answer_to_a_void_window_is_not_that_to_the_next_of_equal_length():
    talk = guessing()
    void = talk.waiting[1]
    draw(talk, 7, 5, 5)

    again = talk.open
    assert again.request.past_length == void.request.past_length
    assert talk.tell(drawing(void, 8)) == []
    draw(talk, 9)
    assert talk.tokens == [6, 7, 5, 5, 9]


def test_no_window_goes_beyond_the_last_token_or_a_stop_id():
    lengths = [len(each.request.tokens) for each in guessing(tokens_max=6).waiting]
    behind_a_stop = guessing(stop_ids=(5,))

    assert lengths == [3, 2]
    assert [each.request.tokens for each in behind_a_stop.waiting] == [(6, 7, 5)]


def test_a_star_has_one_window_and_so_has_a_way_in_parts():
    parted = replace(ABLE, onward=frozenset({ABLE.hops[0].node}))

    for route in (replace(ABLE, onward=frozenset()), parted):
        assert [each.request.tokens for each in guessing(route=route).waiting] == [(6, 7, 5)]


def test_a_consumer_that_is_slow_costs_no_window_its_time():
    talk = guessing()
    talk.tell(drawing(talk.open, 7, 5, 6))
    talk.now = 60.0
    talk.tell(Delivered())

    deadline = talk.machine.deadline()
    assert deadline == talk.now + talk.open.silence_s
    assert len(talk.waiting) == 3


@pytest.mark.parametrize("how", ["left", "stopped"])
def test_a_session_that_windows_are_on_their_way_to_is_not_kept_for_a_next_turn(how: str):
    talk = guessing(stop_ids=(30,))
    if how == "left":
        talk.tell(drawing(talk.open, 7, 5, 6))
        talk.tell(Cancelled())
    else:
        talk.tell(drawing(talk.open, 7, 5, 30))

    (release,) = (action for action in talk.actions if isinstance(action, Release))
    assert release.remains is None


def test_the_guesses_of_void_windows_are_counted_as_sent():
    talk = guessing()
    draw(talk, 30)

    stats = talk.machine.stats(talk.now)
    assert (stats.guessed, stats.accepted) == (6, 0)


# --- how many pay ---------------------------------------------------------------------------------


def learnt(*, took_s: float, work_s: float, right: int) -> Payoff:
    payoff = Payoff()
    payoff.saw_way(took_s, work_s, 3)
    for _ in range(right):
        payoff.saw_guess(3, right=True)
    return payoff


def test_further_windows_pay_where_nodes_idle_and_nearly_all_is_right():
    assert learnt(took_s=0.25, work_s=0.015, right=60).windows(3, 16) > 4
    assert learnt(took_s=0.25, work_s=0.015, right=0).windows(3, 16) == 1, "often wrong"
    assert learnt(took_s=0.05, work_s=0.015, right=60).windows(3, 16) == 1, "nodes are near"
    assert learnt(took_s=0.08, work_s=0.015, right=60).windows(3, 16) == 3, "two fit in"
    assert learnt(took_s=0.25, work_s=0.0, right=60).windows(3, 16) == 1, "nobody told"


def test_a_window_begins_with_what_the_one_before_should_end_with():
    drafter = Drafter(list(LOOP), frozenset(), fixed=2, windows=9)

    assert drafter.guesses(9) == (6, 7)
    assert drafter.further(9, room=3) == (5, 6, 7)
    assert drafter.further(2, room=3) == (5, 6)
    assert drafter.further(9, room=3) == (), "no room"
    drafter.judged((6, 7, 5), took_s=0.1)
    assert drafter.further(9, room=3) == (7, 5, 6)


def test_a_window_that_cannot_be_computed_with_is_tried_once_without_guesses():
    """Also one whose only token is a guess of its own, since it holds no drafts beside it."""
    talk = guessing()
    draw(talk, 7, 5, 6)
    window = talk.waiting[-1]

    refusal = Refusal(Code.NUMERICAL_ERROR, "NaN")
    talk.tell(Replied(window.ref, refusal, window.hops[-1]))

    assert talk.open.request.mode is Mode.PREFILL
    while len(talk.tokens) < 8:
        reply = talk.right_answer(7, len(ABLE.segments))
        talk.tell(Replied(talk.open.ref, reply, talk.open.hops[-1]))
        talk.tell(Delivered())
        known = len(LOOP) + len(talk.tokens)
        ends = [each.request.past_length + len(each.request.tokens) for each in talk.waiting]
        assert max(ends) <= known


@pytest.mark.parametrize(("void", "most"), [(0, 3), (5, 3), (6, 2), (7, 1), (8, 1)])
def test_windows_that_were_overtaken_take_the_places_of_new_ones(void: int, most: int):
    """The step itself goes in any case: what carries it lets it wait for a place."""
    talk = guessing()
    talk.tell(drawing(talk.open, 9))

    sent = asked(talk.tell(Delivered()))
    assert [each.tokens for each in sent] == [(9,)], "nothing to guess from"
    talk.tell(drawing(talk.open, 5))

    sent = asked(talk.tell(Delivered(void)))

    assert len(sent) == most
