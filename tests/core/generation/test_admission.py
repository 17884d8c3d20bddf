"""A place on every hop or on none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet.core.generation.admission import Admission, AdmissionSpec
from meshnet.core.generation.limits import AdmissionLimits
from meshnet.core.generation.transcript import (
    AdmissionAction,
    AdmissionEvent,
    Admitted,
    Answered,
    Cancelled,
    Fail,
    FailureCode,
    NoRoute,
    PlaceFreed,
    Release,
    Reroute,
    Rerouted,
    Reserve,
    Started,
    Tick,
    Unanswered,
)
from meshnet.core.protocol.messages import Code, Refusal, Reserved
from meshnet.core.vocabulary import Hop, LayerRange, ModelId, NodeId, Route, SessionId

SESSION = SessionId("session")
LIMITS = AdmissionLimits()
FULL = Refusal(Code.NO_ROOM, "full", retry_after_s=7.0)


def route(*nodes: str, kv_cache: bool = True) -> Route:
    hops = (Hop(NodeId(node), LayerRange(i, i + 1)) for i, node in enumerate(nodes))
    return Route(ModelId("toy"), tuple(hops), kv_cache=kv_cache)


class Talk:
    def __init__(self, start: Route | None, *, deadline_at: float = 100.0) -> None:
        self.machine = Admission(
            AdmissionSpec(SESSION, tokens=40, deadline_at=deadline_at),
            start,
            limits=LIMITS,
            jitter=lambda: 0.0,
        )
        self.now = 0.0
        self.start = start
        self.actions: list[AdmissionAction] = []
        self.tell(Started())

    @property
    def open(self) -> Reserve:
        return [action for action in self.actions if isinstance(action, Reserve)][-1]

    @property
    def asked(self) -> list[str]:
        return [action.hop.node for action in self.actions if isinstance(action, Reserve)]

    @property
    def end(self) -> Admitted | Fail | None:
        ends = [action for action in self.actions if isinstance(action, Admitted | Fail)]
        assert len(ends) <= 1
        return ends[0] if ends else None

    def tell(self, event: AdmissionEvent) -> list[AdmissionAction]:
        actions = self.machine.handle(event, self.now)
        self.actions += actions
        return actions

    def grant(self) -> list[AdmissionAction]:
        return self.tell(Answered(self.open.ref, Reserved(SESSION, 40)))

    def refuse(self, refusal: Refusal = FULL) -> list[AdmissionAction]:
        """Refuse, and let the machine find no other route if it looks for one."""
        actions = self.tell(Answered(self.open.ref, refusal))
        looks = isinstance(actions[-1], Reroute) and not actions[-1].lost
        if looks and self.start is not None:
            actions = [*actions[:-1], *self.tell(Rerouted(self.start))]
        return actions

    def lose(self) -> list[AdmissionAction]:
        return self.tell(Unanswered(self.open.ref, "connection refused"))

    def pass_deadline(self) -> list[AdmissionAction]:
        deadline = self.machine.deadline()
        assert deadline is not None
        self.now = max(self.now, deadline)
        return self.tell(Tick())


def test_nodes_are_asked_in_the_order_of_their_ids_and_then_the_route_is_admitted():
    talk = Talk(route("c", "a", "b"))

    talk.grant()
    talk.grant()
    talk.grant()

    assert talk.asked == ["a", "b", "c"]
    assert talk.actions[-1] == Admitted(route("c", "a", "b"))


def test_a_reservation_names_the_room_the_model_and_the_layers_of_its_hop():
    talk = Talk(route("c", "a"))

    request = talk.open.request

    assert (request.session, request.tokens, request.model) == (SESSION, 40, "toy")
    assert request.layers == LayerRange(1, 2)


def test_refused_once_all_that_was_held_is_given_back_before_the_wait():
    talk = Talk(route("a", "b", "c"))
    talk.grant()

    actions = talk.refuse()

    assert actions == [Release(SESSION, (NodeId("a"), NodeId("b")))]


def test_after_the_wait_it_begins_again_with_the_first_node():
    talk = Talk(route("a", "b"))
    talk.grant()
    talk.refuse()

    talk.pass_deadline()

    assert talk.asked == ["a", "b", "a"]
    assert talk.now == pytest.approx(LIMITS.poll.first_s)


def test_a_place_freed_here_ends_the_wait_at_once():
    talk = Talk(route("a", "b"))
    talk.refuse()

    talk.tell(PlaceFreed())

    assert talk.asked == ["a", "a"]
    assert talk.tell(PlaceFreed()) == []


def test_at_the_deadline_the_client_hears_of_overload_and_when_to_return():
    talk = Talk(route("a"), deadline_at=3.0)
    while talk.end is None:
        talk.refuse()
        talk.pass_deadline()

    assert talk.end == Fail(FailureCode.OVERLOADED, "a: full", 7.0)
    assert talk.now == pytest.approx(3.0)


def test_a_node_lost_while_reserving_is_routed_around():
    talk = Talk(route("a", "b"))
    talk.grant()

    actions = talk.lose()

    assert actions[0] == Release(SESSION, (NodeId("a"), NodeId("b")))
    assert isinstance(actions[1], Reroute)
    assert actions[1].avoid == Hop(NodeId("b"), LayerRange(1, 2))
    talk.tell(Rerouted(route("a", "c")))
    talk.grant()
    talk.grant()
    assert talk.end == Admitted(route("a", "c"))


def test_a_node_that_does_not_answer_in_time_is_lost():
    talk = Talk(route("a", "b"))

    actions = talk.pass_deadline()

    assert isinstance(actions[-1], Reroute)
    assert talk.now == pytest.approx(LIMITS.reserve_timeout_s)


def test_a_node_that_is_lost_again_and_again_is_not_hammered():
    talk = Talk(route("a"))
    talk.lose()
    talk.tell(Rerouted(route("a")))

    actions = talk.lose()

    assert [type(action) for action in actions] == [Release]
    assert isinstance(talk.pass_deadline()[0], Reroute)


def test_without_any_route_it_waits_a_while_and_then_says_what_is_missing():
    talk = Talk(None)
    assert isinstance(talk.actions[0], Reroute)

    while talk.end is None:
        talk.tell(NoRoute("nobody serves layers 4-8"))
        talk.pass_deadline()

    assert isinstance(talk.end, Fail)
    assert talk.end.code is FailureCode.NO_ROUTE
    assert "layers 4-8" in talk.end.message
    assert talk.now == pytest.approx(LIMITS.route_wait_s)


def test_a_route_that_cannot_cache_is_admitted_without_asking():
    talk = Talk(route("a", "b", kv_cache=False))

    assert talk.actions == [Admitted(route("a", "b", kv_cache=False))]


@pytest.mark.parametrize(
    ("code", "failure"),
    [
        (Code.UNAUTHORIZED, FailureCode.UNAUTHORIZED),
        (Code.TOO_LARGE, FailureCode.TOO_LARGE),
        (Code.BAD_REQUEST, FailureCode.UPSTREAM),
    ],
)
def test_some_refusals_are_final(code: Code, failure: FailureCode):
    talk = Talk(route("a", "b"))

    talk.refuse(Refusal(code, "no"))

    assert isinstance(talk.end, Fail)
    assert talk.end.code is failure


def test_a_node_that_moved_on_is_routed_again_and_not_called_lost():
    talk = Talk(route("a"))

    actions = talk.refuse(Refusal(Code.NOT_FOUND, "serves other layers"))

    assert actions[-1] == Reroute(None, "a: serves other layers")


def test_cancelling_gives_back_what_was_asked_for_answered_or_not():
    talk = Talk(route("a", "b", "c"))
    talk.grant()

    actions = talk.tell(Cancelled())

    assert actions == [Release(SESSION, (NodeId("a"), NodeId("b")))]
    assert talk.machine.done


def test_a_late_grant_is_ignored():
    talk = Talk(route("a", "b"))
    late = talk.open.ref
    talk.refuse()

    assert talk.tell(Answered(late, Reserved(SESSION, 40))) == []


@given(st.lists(st.booleans(), min_size=1, max_size=200))
def test_two_heads_with_opposite_routes_never_wait_for_each_other(turns: list[bool]):
    """One place per node, two sessions: whoever waits holds nothing, so one of them gets both."""
    talks = (Talk(route("a", "b")), Talk(route("b", "a")))
    places: dict[str, int] = {}

    def apply(who: int, actions: list[AdmissionAction]) -> None:
        for action in actions:
            if isinstance(action, Release):
                for node in action.nodes:
                    if places.get(node) == who:
                        del places[node]

    def turn(who: int) -> None:
        talk = talks[who]
        if talk.end is not None:
            return
        last = [a for a in talk.actions if isinstance(a, Reserve | Release)][-1]
        if isinstance(last, Release):
            apply(who, talk.pass_deadline())
            return
        free = places.get(last.hop.node, who) == who
        if free:
            places[last.hop.node] = who
        apply(who, talk.grant() if free else talk.refuse())

    for first in turns:
        turn(0 if first else 1)
    for _ in range(6):
        turn(0)
        if isinstance(talks[0].end, Admitted):
            break
        turn(1)
        if isinstance(talks[1].end, Admitted):
            break

    assert any(isinstance(talk.end, Admitted) for talk in talks)


def test_an_admission_ignores_what_it_did_not_ask_for_and_what_comes_after_its_end():
    talk = Talk(route("a"))

    assert talk.tell(Started()) == []
    assert talk.tell(Tick()) == []
    assert talk.tell(Rerouted(route("b"))) == []
    assert talk.tell(NoRoute("none")) == []
    talk.grant()
    assert talk.machine.deadline() is None
    assert talk.tell(Tick()) == []


def test_before_its_start_an_admission_has_the_requests_deadline():
    machine = Admission(
        AdmissionSpec(SESSION, tokens=1, deadline_at=9.0),
        route("a"),
        limits=LIMITS,
        jitter=lambda: 0.0,
    )

    assert machine.deadline() == 9.0


def test_an_admission_that_begins_too_late_asks_nobody():
    talk = Talk(route("a"), deadline_at=0.0)

    assert talk.asked == []
    assert isinstance(talk.end, Fail)
    assert talk.end.code is FailureCode.TIMEOUT
