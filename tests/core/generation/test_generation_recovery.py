"""What a generation does when something goes wrong, and when it gives up."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from tests.core.generation.talk import LIMITS, SESSION, Talk, activation, miss, route_of

from meshnet.core.generation.limits import StepTimeout
from meshnet.core.generation.sequence import CacheUse
from meshnet.core.generation.transcript import (
    Fail,
    FailureCode,
    Forward,
    Lost,
    NoRoute,
    Refilling,
    RefillReason,
    Replied,
    Reroute,
    Rerouted,
    Tick,
)
from meshnet.core.protocol.messages import ActivationReply, Code, Mode, Refusal, TokenReply
from meshnet.core.vocabulary import Drawn, MissReason, SampledToken


def test_a_miss_costs_one_prefill_of_everything_under_the_same_session_id():
    """Pit C13."""
    talk = Talk(prompt=(1, 2, 3))
    talk.step(token=7)
    before = talk.open.request

    actions = talk.reply(miss())

    request = talk.open.request
    assert request.session == SESSION
    assert (request.mode, request.tokens) == (Mode.PREFILL, (1, 2, 3, 7))
    assert request.attempt == before.attempt + 1
    assert request.sampling is not None
    assert Refilling(RefillReason.MISS, request.attempt, positions=3 * 3) in actions
    assert talk.open.ref.hop == 0


def test_after_a_refill_the_generation_is_cached_again_and_repeats_no_token():
    """Pit C13."""
    talk = Talk(prompt=(1, 2, 3))
    talk.step(token=7)
    talk.reply(miss())

    talk.step(token=8)
    talk.step(token=9)

    assert talk.tokens == [7, 8, 9]
    assert (talk.open.request.mode, talk.open.request.past_length) == (Mode.DECODE, 5)
    assert talk.machine.stats(talk.now).refills == 1


def test_a_refill_of_many_ids_goes_in_chunks_as_the_first_prefill_did():
    talk = Talk(prompt=(1, 2, 3, 4, 5))
    talk.step()
    talk.step(token=7)
    talk.reply(miss())

    assert (talk.open.request.mode, talk.open.request.tokens) == (Mode.PREFILL, (1, 2, 3, 4))
    talk.step()
    assert (talk.open.request.mode, talk.open.request.tokens) == (Mode.DECODE, (5, 7))


@pytest.mark.parametrize("cached", [None, 3, 5])
def test_a_decode_answer_with_another_length_is_a_miss(cached: int | None):
    talk = Talk(prompt=(1, 2, 3))
    talk.step(token=7)

    talk.reply(ActivationReply(activation(1), cached=cached))

    assert (talk.open.request.mode, talk.open.request.tokens) == (Mode.PREFILL, (1, 2, 3, 7))


def test_a_prefill_answer_with_another_length_is_a_miss():
    talk = Talk(prompt=(1, 2, 3))

    talk.reply(ActivationReply(activation(3), cached=9))

    assert talk.open.ref.hop == 0
    assert talk.open.request.attempt == 2


def test_a_late_answer_to_a_question_no_longer_asked_is_ignored():
    talk = Talk(prompt=(1, 2, 3))
    talk.step(token=7)
    late = talk.open.ref
    talk.reply(miss())
    asked = len(talk.forwards)

    actions = talk.tell(Replied(late, ActivationReply(activation(1), cached=4)))

    assert actions == []
    assert len(talk.forwards) == asked
    assert talk.tell(Lost(late, "late")) == []


def test_a_lost_hop_is_routed_around_and_refilled():
    talk = Talk(prompt=(1, 2, 3))
    talk.step(token=7)
    lost = talk.open.hop

    assert talk.lose() == [Reroute(lost, "node0: connection reset", "weights")]
    talk.tell(Rerouted(route_of(2, prefix="other")))

    assert talk.open.hop.node == "other0"
    assert (talk.open.request.mode, talk.open.request.tokens) == (Mode.PREFILL, (1, 2, 3, 7))
    talk.step(token=8, hops=2)
    assert talk.tokens == [7, 8]


def test_every_node_ever_asked_is_released_in_the_end():
    talk = Talk(tokens_max=2)
    talk.step(token=7)
    talk.lose()
    talk.tell(Rerouted(route_of(2, prefix="other")))
    talk.step(token=8, hops=2)

    assert talk.releases[0].nodes == ("node0", "node1", "node2", "other0", "other1")


def test_a_hop_that_does_not_answer_in_time_is_lost():
    talk = Talk()
    deadline = talk.machine.deadline()

    actions = talk.pass_deadline()

    assert deadline == pytest.approx(LIMITS.step.of(3))
    assert isinstance(actions[0], Reroute)
    assert actions[0].avoid == talk.open.hop


def test_the_timeout_of_a_hop_grows_with_the_positions_and_ends_at_the_deadline():
    """Pit A82."""
    short, long = Talk(prompt=(1,)), Talk(prompt=(1, 2, 3, 4))
    pressed = Talk(prompt=(1, 2, 3, 4), deadline_at=1.25)

    assert short.machine.deadline() == pytest.approx(2.5)
    assert long.machine.deadline() == pytest.approx(4.0)
    assert pressed.machine.deadline() == pytest.approx(1.25)
    assert pressed.open.timeout_s == pytest.approx(1.25)
    assert pressed.open.request.deadline_ms == 1250


def test_ticks_before_the_deadline_change_nothing():
    talk = Talk()

    assert talk.tell(Tick()) == []


def test_a_hop_that_serves_something_else_now_is_not_called_lost():
    talk = Talk()
    talk.step()

    actions = talk.reply(Refusal(Code.NOT_FOUND, "holds layers 4-6"))

    assert actions == [Reroute(None, "holds layers 4-6", "weights")]


def test_before_the_first_token_other_weights_will_do():
    talk = Talk()

    actions = talk.reply(Refusal(Code.NOT_FOUND, "holds other weights"))

    assert actions == [Reroute(None, "holds other weights", fingerprint=None)]


def test_every_step_names_the_weights_it_is_meant_for():
    talk = Talk()
    talk.step()

    assert {asked.request.fingerprint for asked in talk.forwards} == {"weights"}


def test_a_deadline_without_end_is_still_a_field_that_nodes_can_read():
    patient = replace(LIMITS, step=StepTimeout(base_s=math.inf))
    talk = Talk(deadline_at=math.inf, limits=patient)

    deadline_ms = talk.open.request.deadline_ms

    assert deadline_ms is not None
    assert len(str(deadline_ms)) <= 10


def test_a_node_with_a_bug_counts_as_a_lost_hop():
    talk = Talk()

    actions = talk.reply(Refusal(Code.INTERNAL, "oops"))

    assert isinstance(actions[0], Reroute)
    assert actions[0].avoid == talk.open.hop


def test_a_second_loss_in_a_row_waits_before_it_routes_again():
    talk = Talk()
    talk.lose()
    talk.tell(Rerouted(route_of()))

    assert talk.lose() == []
    actions = talk.pass_deadline()

    assert talk.now == pytest.approx(LIMITS.reroute.first_s)
    assert isinstance(actions[0], Reroute)


def test_no_route_is_asked_for_again_with_growing_waits_until_recovery_is_given_up():
    talk = Talk()
    talk.lose()
    waits = []
    while talk.end is None:
        before = talk.now
        talk.tell(NoRoute("nobody serves layers 2-4"))
        talk.pass_deadline()
        waits.append(talk.now - before)

    assert waits[:5] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0])
    assert isinstance(talk.end, Fail)
    assert talk.end.code is FailureCode.NO_ROUTE
    assert "layers 2-4" in talk.end.message
    assert talk.now == pytest.approx(LIMITS.recover_s + 3 * LIMITS.step.of(3))


@pytest.mark.parametrize("code", [Code.NO_ROOM, Code.NOT_READY, Code.OUT_OF_MEMORY, Code.DEADLINE])
def test_a_node_that_asks_to_wait_is_asked_again_by_a_refill(code: Code):
    talk = Talk(prompt=(1, 2, 3))
    talk.step(token=7)

    assert talk.reply(Refusal(code, "later", retry_after_s=2.0)) == []
    talk.pass_deadline()

    assert talk.now == pytest.approx(2.0)
    assert (talk.open.request.mode, talk.open.request.tokens) == (Mode.PREFILL, (1, 2, 3, 7))


@pytest.mark.parametrize("asked_s", [1e9, float("inf"), float("nan"), -1.0])
def test_a_node_cannot_make_a_generation_wait_for_ever(asked_s: float):
    talk = Talk()

    talk.reply(Refusal(Code.NO_ROOM, "later", retry_after_s=asked_s))
    talk.pass_deadline()

    assert talk.now <= LIMITS.asked_wait_most_s
    assert isinstance(talk.actions[-1], Forward)


def test_jitter_stretches_a_wait():
    talk = Talk(jitter=lambda: 0.5)

    talk.reply(Refusal(Code.NO_ROOM, "later", retry_after_s=2.0))
    talk.pass_deadline()

    assert talk.now == pytest.approx(2.5)


def test_waiting_ends_with_the_requests_deadline_as_overload():
    talk = Talk(deadline_at=20.0)
    while talk.end is None:
        talk.reply(Refusal(Code.NO_ROOM, "full", retry_after_s=3.0))
        talk.pass_deadline()

    assert talk.end == Fail(FailureCode.OVERLOADED, "full", 3.0)
    assert talk.now == pytest.approx(20.0)


@pytest.mark.parametrize(
    ("code", "failure"),
    [
        (Code.UNAUTHORIZED, FailureCode.UNAUTHORIZED),
        (Code.FORBIDDEN, FailureCode.UNAUTHORIZED),
        (Code.BAD_REQUEST, FailureCode.UPSTREAM),
        (Code.TOO_LARGE, FailureCode.TOO_LARGE),
        (Code.NUMERICAL_ERROR, FailureCode.NUMERICAL),
    ],
)
def test_some_refusals_are_final(code: Code, failure: FailureCode):
    """Pit A111."""
    talk = Talk()

    talk.reply(Refusal(code, "no"))

    assert isinstance(talk.end, Fail)
    assert talk.end.code is failure
    assert talk.end.message.startswith("node0:")
    assert len(talk.releases) == 1


def test_a_stale_attempt_is_outbid():
    talk = Talk()
    before = talk.open.request.attempt

    talk.reply(Refusal(Code.STALE_ATTEMPT, "saw a later one"))

    assert talk.open.request.attempt > before + LIMITS.attempt_jump - 1
    assert talk.open.request.mode is Mode.PREFILL


def test_a_node_that_stopped_caching_makes_the_whole_route_stateless():
    """Pit C14: no 409 loop, and no cache is trusted that only some hops keep."""
    talk = Talk(prompt=(1, 2, 3))
    talk.step(token=7)
    talk.reply(talk.right_answer())

    talk.reply(miss(MissReason.CACHING_OFF))

    assert talk.open.ref.hop == 0
    assert (talk.open.request.mode, talk.open.request.tokens) == (Mode.STATELESS, (1, 2, 3, 7))
    talk.step(token=8)
    talk.step(token=9)
    assert talk.tokens == [7, 8, 9]
    assert talk.machine.cache_use is CacheUse.NONE


def test_a_409_to_anything_but_a_decode_is_a_broken_hop():
    """Pit C11: a proxy's 409 must not become a refill loop."""
    talk = Talk()

    actions = talk.reply(miss())

    assert isinstance(actions[0], Reroute)


@pytest.mark.parametrize(
    "nonsense",
    [
        TokenReply(Drawn((SampledToken(7),)), "", cached=3),
        ActivationReply(activation(2), cached=3),
    ],
)
def test_an_answer_of_the_wrong_kind_or_length_is_a_broken_hop(nonsense: object):
    talk = Talk(prompt=(1, 2, 3))

    actions = talk.reply(nonsense)  # type: ignore[arg-type]

    assert isinstance(actions[0], Reroute)


@pytest.mark.parametrize("token_id", [-1, 2**31, 2**40])
def test_a_token_id_outside_its_range_is_a_broken_hop(token_id: int):
    talk = Talk(route=route_of(1))

    actions = talk.reply(TokenReply(Drawn((SampledToken(token_id),)), "", cached=3))

    assert isinstance(actions[0], Reroute)
    assert talk.tokens == []


def test_a_reroute_to_nodes_that_cannot_cache_goes_on_stateless():
    talk = Talk(prompt=(1, 2, 3))
    talk.step(token=7)
    talk.lose()

    talk.tell(Rerouted(route_of(kv_cache=False)))

    assert (talk.open.request.mode, talk.open.request.tokens) == (Mode.STATELESS, (1, 2, 3, 7))


def test_a_route_nobody_asked_for_is_ignored():
    talk = Talk()

    assert talk.tell(Rerouted(route_of(1))) == []
    assert talk.tell(NoRoute("whatever")) == []
