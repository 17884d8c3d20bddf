"""How often and how long a generation tries before it gives up."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.core.generation.talk import LIMITS, Talk, miss, route_of

from meshnet.core.generation.limits import StepTimeout
from meshnet.core.generation.transcript import (
    Delivered,
    Fail,
    FailureCode,
    Reroute,
    Rerouted,
)
from meshnet.core.protocol.messages import Code, Refusal


def test_refills_without_a_new_token_between_them_are_bounded():
    """Pit C12."""
    talk = Talk(prompt=(1, 2, 3, 4, 5))
    refills = 0
    while talk.end is None:
        talk.step()
        talk.reply(miss())
        refills += 1

    assert refills == LIMITS.refills_without_progress + 1
    assert isinstance(talk.end, Fail)
    assert talk.end.code is FailureCode.UPSTREAM


def test_refills_in_all_are_bounded_by_the_tokens_they_bought():
    """Pit C12: a node that flaps on every token must not make the generation quadratic."""
    limits = replace(LIMITS, prefill_chunk=1000)
    talk = Talk(tokens_max=1000, limits=limits)
    misses = 0
    while talk.end is None:
        talk.step()
        talk.reply(miss())
        misses += 1

    assert isinstance(talk.end, Fail)
    assert misses == limits.refills_allowed(len(talk.tokens)) + 1
    assert len(talk.tokens) > limits.refills_base


def test_the_requests_deadline_ends_a_generation_whose_hop_hangs():
    talk = Talk(deadline_at=1.0)

    talk.pass_deadline()

    assert talk.end == Fail(FailureCode.TIMEOUT, "the request's deadline has passed")
    assert talk.now == pytest.approx(1.0)


def test_waits_with_tokens_between_them_are_bounded_like_refills():
    limits = replace(LIMITS, prefill_chunk=1000)
    talk = Talk(tokens_max=100, limits=limits, deadline_at=1e9)
    waits = 0
    while talk.end is None:
        talk.step()
        if talk.end is None:
            waits += 1
            talk.reply(Refusal(Code.OUT_OF_MEMORY, "out of memory"))
        if talk.end is None:
            talk.pass_deadline()

    assert isinstance(talk.end, Fail)
    assert talk.end.code is FailureCode.OVERLOADED
    assert waits == limits.refills_allowed(len(talk.tokens)) + 1


def test_waits_in_a_row_are_bounded_by_time_and_count_once():
    talk = Talk()
    for _ in range(5 * LIMITS.refills_base):
        talk.reply(Refusal(Code.NO_ROOM, "full"))
        if any(isinstance(action, Reroute) for action in talk.pass_deadline()):
            talk.tell(Rerouted(route_of()))
    talk.step(token=7)

    assert talk.tokens == [7]
    assert talk.end is None


def test_a_loss_reported_at_the_requests_deadline_is_a_timeout():
    talk = Talk(deadline_at=1.0)
    talk.now = 1.0

    talk.lose()

    assert isinstance(talk.end, Fail)
    assert talk.end.code is FailureCode.TIMEOUT


def test_a_route_found_after_the_requests_deadline_comes_too_late():
    talk = Talk(deadline_at=5.0)
    talk.lose()
    talk.now = 5.0

    talk.tell(Rerouted(route_of()))

    assert isinstance(talk.end, Fail)
    assert talk.end.code is FailureCode.NO_ROUTE


def test_a_consumer_that_comes_back_after_the_deadline_hears_of_a_timeout():
    talk = Talk(deadline_at=5.0)
    for _ in range(3):
        talk.reply(talk.right_answer())
    assert talk.machine.deadline() == 5.0
    talk.now = 6.0

    talk.tell(Delivered())

    assert isinstance(talk.end, Fail)
    assert talk.end.code is FailureCode.TIMEOUT


def test_a_recovery_that_hangs_is_given_up_before_the_requests_deadline():
    patient = replace(
        LIMITS,
        step=StepTimeout(base_s=20.0, per_token_s=0.0),
        recover_s=1.0,
        refills_without_progress=10,
        refills_base=10,
    )
    talk = Talk(limits=patient)
    talk.lose()
    while talk.end is None:
        talk.tell(Rerouted(route_of()))
        talk.pass_deadline()

    assert isinstance(talk.end, Fail)
    assert talk.end.code is FailureCode.UPSTREAM
    assert talk.now == pytest.approx(1.0 + 3 * 20.0)


def test_impossible_limits_are_refused():
    with pytest.raises(ValueError, match="prefill_chunk"):
        replace(LIMITS, prefill_chunk=0)
    with pytest.raises(ValueError, match="tokens_max"):
        Talk(tokens_max=0)
    with pytest.raises(ValueError, match="prompt"):
        Talk(prompt=())
