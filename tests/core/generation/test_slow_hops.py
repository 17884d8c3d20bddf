"""A hop that is alive and slow is waited for; one that is silent is not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.core.generation.talk import LIMITS, Talk

from meshnet.core.generation.transcript import Alive, Reroute, Tick

SILENCE_S = LIMITS.step.of(3)


def test_signs_of_life_keep_a_question_open():
    talk = Talk()
    for _ in range(LIMITS.queue - 1):
        talk.now += SILENCE_S * 0.9
        talk.tell(Alive(talk.open.ref))

    talk.step(token=5)

    assert talk.tokens == [5]
    assert not talk.reroutes


def test_after_the_last_sign_of_life_silence_counts_anew():
    talk = Talk()
    talk.now = 1.0
    talk.tell(Alive(talk.open.ref))

    actions = talk.pass_deadline()

    assert talk.now == pytest.approx(1.0 + SILENCE_S)
    assert isinstance(actions[0], Reroute)


def test_a_hop_that_only_gives_signs_of_life_is_given_up_in_the_end():
    talk = Talk()
    while not talk.reroutes:
        talk.tell(Alive(talk.open.ref))
        talk.now += 1.0
        talk.tell(Tick())

    assert talk.now == pytest.approx(SILENCE_S * LIMITS.queue, abs=1.0)
    assert talk.open.timeout_s == pytest.approx(SILENCE_S * LIMITS.queue)


def test_signs_of_life_of_an_older_question_change_nothing():
    talk = Talk()
    deadline = talk.machine.deadline()
    talk.now = 1.0

    talk.tell(Alive(replace(talk.open.ref, step=0)))

    assert talk.machine.deadline() == deadline
