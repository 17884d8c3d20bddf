"""What is done when nodes have no room and others could serve as well."""

from __future__ import annotations

import pytest
from tests.core.generation.talk import LIMITS, Talk, route_of
from tests.core.generation.test_admission import FULL, route
from tests.core.generation.test_admission import Talk as AdmissionTalk

from meshnet.core.generation.transcript import (
    Admitted,
    Answered,
    Fail,
    FailureCode,
    Forward,
    NoRoute,
    PlaceFreed,
    Release,
    Reroute,
    Rerouted,
)
from meshnet.core.protocol.messages import Code, Refusal
from meshnet.core.vocabulary import MissReason, NodeId

BUSY = Refusal(Code.NO_ROOM, "full", retry_after_s=2.0)


def test_a_full_node_is_not_waited_for_while_another_has_room():
    talk = AdmissionTalk(route("a"))

    actions = talk.tell(Answered(talk.open.ref, FULL))
    talk.tell(Rerouted(route("b")))
    talk.grant()

    assert actions[0] == Release(talk.open.request.session, (NodeId("a"),))
    assert isinstance(actions[1], Reroute)
    assert actions[1].avoid is not None
    assert actions[1].avoid.node == "a"
    assert talk.end == Admitted(route("b"))
    assert talk.now == 0.0


def test_a_full_node_that_is_avoided_is_not_taken_for_a_lost_one():
    talk = AdmissionTalk(route("a"))

    actions = talk.tell(Answered(talk.open.ref, FULL))

    assert isinstance(actions[-1], Reroute)
    assert not actions[-1].lost


def test_where_all_are_full_every_known_route_is_tried_in_each_round():
    talk = AdmissionTalk(route("a"))
    talk.tell(Answered(talk.open.ref, FULL))
    talk.tell(Rerouted(route("b")))
    talk.tell(Answered(talk.open.ref, FULL))
    talk.tell(Rerouted(route("a")))
    asked_before = len(talk.asked)

    talk.tell(PlaceFreed())
    talk.tell(Answered(talk.open.ref, FULL))
    talk.grant()

    assert talk.asked[asked_before:] == ["b", "a"]
    assert talk.end == Admitted(route("a"))


def test_other_routes_are_looked_for_again_but_not_at_every_poll():
    talk = AdmissionTalk(route("a"))
    polls = 33

    for _ in range(polls):
        talk.refuse()
        talk.pass_deadline()

    looks = sum(isinstance(action, Reroute) for action in talk.actions)
    assert 2 <= looks <= polls / 4


def test_a_mesh_that_vanished_while_it_was_full_is_no_longer_waited_for():
    talk = AdmissionTalk(route("a"))
    talk.tell(Answered(talk.open.ref, FULL))

    while talk.end is None:
        talk.tell(NoRoute("nobody serves layers 0-1"))
        talk.pass_deadline()

    assert isinstance(talk.end, Fail)
    assert talk.end.code is FailureCode.NO_ROUTE


@pytest.mark.parametrize("code", [Code.NO_ROOM, Code.NOT_READY, Code.OUT_OF_MEMORY])
def test_a_generation_refused_again_and_again_goes_on_over_another_route(code: Code):
    talk = Talk()
    for _ in range(20):
        talk.reply(Refusal(code, "not now"))
        if any(isinstance(action, Reroute) for action in talk.pass_deadline()):
            break
    full = talk.reroutes[-1]
    other = route_of(prefix="other")

    talk.tell(Rerouted(other))
    talk.step(token=9)

    assert full.avoid == route_of().hops[0]
    assert not full.lost
    assert talk.tokens == [9]


def test_a_generation_that_waits_for_room_until_the_end_is_told_of_overload():
    talk = Talk(deadline_at=30.0)

    while talk.end is None:
        talk.reply(BUSY)
        if any(isinstance(action, Reroute) for action in talk.pass_deadline()):
            talk.tell(Rerouted(route_of()))

    assert talk.end == Fail(FailureCode.OVERLOADED, "full", 2.0)


@pytest.mark.parametrize("filling_s", [0.5, 1.0])
def test_the_wait_is_much_longer_than_the_prefill_that_was_for_nothing(filling_s: float):
    talk = Talk()
    talk.reply(talk.right_answer())
    talk.now += filling_s
    talk.reply(Refusal(Code.NO_ROOM, "full"))
    refused_at = talk.now

    talk.pass_deadline()

    assert talk.now - refused_at >= 4 * filling_s


def test_however_long_a_prefill_took_the_wait_is_bounded():
    talk = Talk()
    talk.now += 2.0
    talk.reply(Refusal(Code.NO_ROOM, "full"))
    refused_at = talk.now

    talk.pass_deadline()

    assert talk.now - refused_at == pytest.approx(LIMITS.asked_wait_most_s)


def test_a_preempted_session_waits_instead_of_spending_its_refills():
    """The older session needs the bytes now: refills at once would all meet the same refusal."""
    talk = Talk(prompt=(1, 2, 3, 4, 5))
    talk.step()
    talk.step(token=7)
    preempted = Refusal(Code.CACHE_MISS, "older", reason=MissReason.PREEMPTED)

    for _ in range(2 * LIMITS.refills_without_progress):
        assert not any(isinstance(action, Forward) for action in talk.reply(preempted))
        if isinstance(talk.pass_deadline()[-1], Reroute):
            talk.tell(Rerouted(route_of()))
        talk.step()  # the first chunk fits, the second is refused
    talk.step(token=8)

    assert talk.end is None
    assert talk.tokens == [7, 8]
