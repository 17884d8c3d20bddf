"""A long prompt's chunks walk through the hops behind each other."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.generation.talk import LIMITS, Talk, activation, miss, route_of

from meshnet.core.generation.transcript import (
    Alive,
    Delivered,
    Emit,
    Forward,
    Lost,
    Refilling,
    Replied,
    Reroute,
    Rerouted,
    StepRef,
    Tick,
)
from meshnet.core.protocol.messages import ActivationReply, Code, Refusal

PROMPT = tuple(range(20))
FIVE_CHUNKS = replace(LIMITS, prefill_chunk=4)


def answered(talk: Talk, forward: Forward) -> list[Forward]:
    """Answer one of the open questions rightly; return what is asked then."""
    actions = talk.tell(Replied(forward.ref, talk.right_answer(7, to=forward)))
    return [action for action in actions if isinstance(action, Forward)]


def at(forwards: list[Forward]) -> list[tuple[int, int]]:
    """Chunk and hop of each question."""
    return [(forward.request.past_length // 4, forward.ref.hop) for forward in forwards]


def filled(talk: Talk) -> None:
    """Answer until all three hops are at work: chunk 0 is at the last one."""
    for _ in range(2):
        for forward in talk.waiting:
            answered(talk, forward)


def test_a_hop_gets_the_next_chunk_while_the_hop_behind_it_works_on_the_last():
    talk = Talk(prompt=PROMPT, limits=FIVE_CHUNKS)

    assert at(answered(talk, talk.open)) == [(0, 1), (1, 0)]
    assert at(talk.waiting) == [(0, 1), (1, 0)]


def test_every_hop_is_at_work_once_the_pipeline_is_full():
    talk = Talk(prompt=PROMPT, limits=FIVE_CHUNKS)
    filled(talk)

    assert sorted(at(talk.waiting)) == [(0, 2), (1, 1), (2, 0)]


def test_a_chunk_waits_for_a_busy_hop_and_the_hop_before_waits_with_it():
    talk = Talk(prompt=PROMPT, limits=FIVE_CHUNKS)
    answered(talk, talk.open)
    (slow,) = (forward for forward in talk.waiting if forward.ref.hop == 1)
    (fast,) = (forward for forward in talk.waiting if forward.ref.hop == 0)

    assert answered(talk, fast) == []
    assert talk.waiting == [slow]
    assert at(answered(talk, slow)) == [(0, 2), (1, 1), (2, 0)]


def test_only_the_last_chunk_brings_a_token_and_it_is_the_one_of_the_whole_prompt():
    talk = Talk(prompt=PROMPT, limits=FIVE_CHUNKS)
    while not talk.tokens:
        answered(talk, talk.waiting[0])

    assert talk.tokens == [7]
    assert not talk.waiting
    assert talk.machine.stats(talk.now).prefills == 1
    talk.tell(Delivered())
    assert talk.open.request.past_length == len(PROMPT)


def test_every_chunk_carries_the_digest_of_what_the_chunks_before_it_will_have_left():
    talk = Talk(prompt=PROMPT, limits=FIVE_CHUNKS)
    alone = Talk(prompt=PROMPT, limits=FIVE_CHUNKS, route=route_of(1))
    filled(talk)
    while not alone.tokens:
        alone.reply(alone.right_answer(7, hops=1))

    prefixes = {each.request.past_length: each.request.prefix for each in alone.forwards}
    assert all(prefixes[each.request.past_length] == each.request.prefix for each in talk.forwards)


@pytest.mark.parametrize("hop", [0, 1, 2])
@pytest.mark.parametrize("how", ["lost", "late"])
def test_a_hop_lost_in_the_middle_closes_the_questions_of_all(how: str, hop: int):
    talk = Talk(prompt=PROMPT, limits=FIVE_CHUNKS)
    filled(talk)
    asked = talk.waiting
    (failing,) = (forward for forward in asked if forward.ref.hop == hop)
    if how == "lost":
        talk.tell(Lost(failing.ref, "connection reset"))
    else:
        talk.now = 1.0
        for forward in asked:
            if forward.ref.hop != hop:
                talk.tell(Alive(forward.ref))
        talk.now = failing.silence_s
        talk.tell(Tick())

    assert [reroute.avoid for reroute in talk.reroutes] == [failing.hop]
    assert talk.waiting == []
    talk.tell(Rerouted(route_of()))
    assert (at(talk.waiting), talk.open.request.attempt) == ([(0, 0)], 2)


@pytest.mark.parametrize("hop", [0, 1])
@pytest.mark.parametrize("how", ["miss", "short"])
def test_a_hop_that_holds_something_else_costs_one_refill_of_all(how: str, hop: int):
    talk = Talk(prompt=PROMPT, limits=FIVE_CHUNKS)
    filled(talk)
    (failing,) = (forward for forward in talk.waiting if forward.ref.hop == hop)
    short = ActivationReply(activation(4), failing.request.past_length + 3)

    actions = talk.tell(Replied(failing.ref, miss() if how == "miss" else short))

    assert [type(action) for action in actions] == [Refilling, Forward]
    assert (at(talk.waiting), talk.open.request.attempt) == ([(0, 0)], 2)


def test_a_late_answer_to_a_chunk_of_an_older_attempt_is_ignored():
    talk = Talk(prompt=PROMPT, limits=FIVE_CHUNKS)
    filled(talk)
    old = talk.waiting
    talk.tell(Lost(old[0].ref, "connection reset"))
    talk.tell(Rerouted(route_of()))
    refilling = talk.waiting

    for forward in old:
        assert answered(talk, forward) == []
    assert talk.waiting == refilling


def test_an_answer_under_the_name_of_another_step_is_ignored():
    talk = Talk(prompt=PROMPT, limits=FIVE_CHUNKS)
    filled(talk)
    asked = talk.waiting
    ref = asked[0].ref

    for wrong in (
        StepRef(ref.attempt, ref.step + 1, ref.hop),
        StepRef(ref.attempt + 1, ref.step, ref.hop),
    ):
        assert talk.tell(Replied(wrong, talk.right_answer(7, to=asked[0]))) == []
    assert talk.waiting == asked


def test_a_full_hop_is_waited_for_and_the_chunks_at_other_hops_are_given_up():
    talk = Talk(prompt=PROMPT, limits=FIVE_CHUNKS)
    filled(talk)

    talk.tell(Replied(talk.waiting[0].ref, Refusal(Code.NO_ROOM, "full", 0.5)))

    assert talk.waiting == []
    talk.pass_deadline()
    assert at(talk.waiting) == [(0, 0)]


def test_each_hop_has_its_own_time_and_the_first_that_is_silent_is_left():
    talk = Talk(prompt=PROMPT, limits=FIVE_CHUNKS)
    talk.now = 1.0
    answered(talk, talk.open)
    silent, heard = talk.waiting
    talk.now = 2.0
    talk.tell(Alive(heard.ref))

    talk.pass_deadline()

    assert talk.now == pytest.approx(1.0 + silent.silence_s)
    assert [action.avoid for action in talk.actions if isinstance(action, Reroute)] == [silent.hop]


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(1, 40), st.integers(1, 4))
def test_whatever_the_order_of_answers_every_hop_gets_all_chunks_in_their_order(
    data: st.DataObject, positions: int, hops: int
):
    prompt = tuple(range(positions))
    talk = Talk(prompt=prompt, limits=FIVE_CHUNKS, route=route_of(hops))
    while not talk.tokens:
        waiting = talk.waiting
        assert len({forward.ref.hop for forward in waiting}) == len(waiting) > 0
        forward = waiting[data.draw(st.integers(0, len(waiting) - 1))]
        actions = talk.tell(Replied(forward.ref, talk.right_answer(7, hops, to=forward)))
        assert all(isinstance(action, Forward | Emit) for action in actions)

    for hop in range(hops):
        sent = [each.request.tokens for each in talk.forwards if each.ref.hop == hop]
        assert sum(sent, ()) == prompt
