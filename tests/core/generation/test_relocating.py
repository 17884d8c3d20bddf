"""A generation leaves a hop that drains between two tokens, and loses nothing if it cannot."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.core.generation.talk import LIMITS, SESSION, Talk, miss, route_of
from tests.core.generation.test_windows import drawing, guessing

from meshnet.core.generation.moves import FindMove, LetGo, Moved, MoveFound, TakenOver, TakeOver
from meshnet.core.generation.transcript import (
    Cancelled,
    Delivered,
    Fail,
    Forward,
    GenerationAction,
    NoRoute,
    Refilling,
    RefillReason,
    Release,
    Tick,
)
from meshnet.core.protocol.digest import PrefixDigest
from meshnet.core.protocol.messages import Mode
from meshnet.core.routing.moving import Taking
from meshnet.core.vocabulary import (
    Hop,
    HopLost,
    LayerRange,
    NodeId,
    SessionDescription,
)

OLD = route_of(3)
SPARE = Hop(NodeId("spare"), OLD.hops[1].layers)
NEW = replace(OLD, hops=(OLD.hops[0], SPARE, OLD.hops[2]))
TAKING = Taking(SPARE, OLD.hops[1].node, 100)
LEAVING = Delivered(leaving=True)
PROMPT = (1, 2, 3)


def running(**options: object) -> Talk:
    """A generation that has two tokens, the second of which was not delivered yet."""
    talk = Talk(prompt=PROMPT, route=OLD, **options)  # type: ignore[arg-type]
    talk.now = 1.0
    talk.step(token=7)
    while len(talk.tokens) < 2:
        talk.reply(talk.right_answer(8))
    return talk


def confirmation(**fields: object) -> SessionDescription:
    ids = (*PROMPT, 7)
    said = SessionDescription(
        SESSION, SPARE.layers, len(ids), PrefixDigest.of(ids).hex, 1, kv_bytes=100
    )
    return replace(said, **fields)  # type: ignore[arg-type]


def kinds(actions: list[GenerationAction]) -> list[type]:
    return [type(action) for action in actions]


def asked(actions: list[GenerationAction]) -> Forward:
    (forward,) = (action for action in actions if isinstance(action, Forward))
    return forward


def test_a_session_moves_between_two_tokens_and_nothing_is_computed_again():
    talk = running()

    find = talk.tell(LEAVING)
    take = talk.tell(MoveFound(NEW, (TAKING,)))
    went = talk.tell(TakenOver((confirmation(),)))

    assert find == [FindMove(OLD, 4)]
    (order,) = take
    assert isinstance(order, TakeOver)
    ((hop, request),) = order.orders
    assert hop == SPARE
    assert (request.giver, request.layers, request.attempt) == ("node1", SPARE.layers, 1)
    assert request.tokens == (*PROMPT, 7)
    assert kinds(went) == [LetGo, Moved, Forward]
    assert went[0] == LetGo(SESSION, (NodeId("node1"),))
    step = asked(went).request
    assert (step.mode, step.tokens, step.past_length) == (Mode.DECODE, (8,), 4)
    talk.reply(talk.right_answer())
    assert talk.open.hop == SPARE
    assert talk.machine.stats(talk.now).refills == 0


@pytest.mark.parametrize(
    "said",
    [
        HopLost("gone"),
        confirmation(length=3),
        confirmation(prefix="0" * 16),
        confirmation(prefix=None),
        confirmation(attempt=2),
        confirmation(layers=LayerRange(0, 2)),
    ],
)
def test_what_is_not_confirmed_is_left_and_the_old_hops_go_on(
    said: SessionDescription | HopLost,
):
    talk = running()
    talk.tell(LEAVING)
    talk.tell(MoveFound(NEW, (TAKING,)))

    stayed = talk.tell(TakenOver((said,)))

    assert stayed[0] == LetGo(SESSION, (SPARE.node,))
    assert asked(stayed).request.mode is Mode.DECODE
    talk.reply(talk.right_answer())
    assert talk.open.hop == OLD.hops[1]


@pytest.mark.parametrize("found", [(), (confirmation(), confirmation())])
def test_another_number_of_answers_confirms_nothing(found: tuple[SessionDescription, ...]):
    talk = running()
    talk.tell(LEAVING)
    talk.tell(MoveFound(NEW, (TAKING,)))

    assert kinds(talk.tell(TakenOver(found))) == [LetGo, Forward]


def test_without_another_way_the_old_one_goes_on_and_is_asked_about_later():
    talk = running()
    talk.tell(LEAVING)

    stayed = talk.tell(NoRoute("nobody"))

    assert kinds(stayed) == [Forward]
    while len(talk.tokens) < 3:
        talk.reply(talk.right_answer(9))
    assert kinds(talk.tell(LEAVING)) == [Forward]
    while len(talk.tokens) < 4:
        talk.reply(talk.right_answer(9))
    talk.now += LIMITS.move.again_s
    assert kinds(talk.tell(LEAVING)) == [FindMove]


def test_a_way_that_comes_late_is_moved_over_all_the_same():
    talk = running(tokens_max=40)
    for _ in range(LIMITS.move.tries_max + 1):
        talk.tell(LEAVING)
        talk.tell(NoRoute("nobody"))
        before = len(talk.tokens)
        while len(talk.tokens) == before:
            talk.reply(talk.right_answer(9))
        talk.now += LIMITS.move.again_s
    talk.tell(LEAVING)

    assert kinds(talk.tell(MoveFound(NEW, (TAKING,)))) == [TakeOver]


def test_the_way_that_there_is_is_no_other_way():
    talk = running()
    talk.tell(LEAVING)

    assert kinds(talk.tell(MoveFound(OLD, ()))) == [Forward]


def test_a_move_that_takes_too_long_is_given_up():
    talk = running()
    talk.tell(LEAVING)
    talk.tell(MoveFound(NEW, (TAKING,)))

    stayed = talk.pass_deadline()

    assert talk.now <= 1.0 + LIMITS.move.take_s
    assert kinds(stayed) == [LetGo, Forward]
    assert talk.tell(TakenOver((confirmation(),))) == []


def test_a_way_that_is_not_found_in_time_is_not_waited_for():
    talk = running()
    talk.tell(LEAVING)

    assert kinds(talk.pass_deadline()) == [Forward]
    assert talk.tell(MoveFound(NEW, (TAKING,))) == []


def test_a_session_that_cannot_move_is_filled_again_over_the_new_route():
    talk = running()
    talk.tell(LEAVING)

    actions = talk.tell(MoveFound(NEW, None))

    assert any(
        isinstance(each, Refilling) and each.reason is RefillReason.MOVED for each in actions
    )
    assert talk.machine.route == NEW


def test_a_session_is_filled_again_where_its_bytes_take_longer():
    talk = running()
    talk.tell(LEAVING)
    costly = replace(TAKING, bytes=10**15)

    actions = talk.tell(MoveFound(NEW, (costly,)))

    assert TakeOver not in kinds(actions)
    assert talk.machine.route == NEW


def test_after_some_moves_that_failed_it_is_filled_again():
    talk = running(tokens_max=40)
    for _ in range(LIMITS.move.tries_max):
        talk.tell(LEAVING)
        talk.tell(MoveFound(NEW, (TAKING,)))
        talk.tell(TakenOver((HopLost("no room"),)))
        before = len(talk.tokens)
        while len(talk.tokens) == before:
            talk.reply(talk.right_answer(9))
        talk.now += LIMITS.move.again_s
    talk.tell(LEAVING)

    assert TakeOver not in kinds(talk.tell(MoveFound(NEW, (TAKING,))))
    assert talk.machine.route == NEW


def test_windows_that_are_on_their_way_come_home_first():
    talk = guessing()
    on_their_way = len(talk.waiting)
    assert on_their_way > 1

    actions: list[GenerationAction] = []
    answered = 0
    while FindMove not in kinds(actions):
        talk.tell(drawing(talk.open, *right(talk)))
        actions = talk.tell(LEAVING)
        answered += 1

    assert answered == on_their_way
    assert talk.waiting == []


def right(talk: Talk) -> tuple[int, ...]:
    """What the open window guesses, and one id more."""
    tokens = talk.open.request.tokens
    follows = {5: 6, 6: 7, 7: 5}
    return (*tokens[1:], follows[tokens[-1]])


def test_a_session_that_nobody_confirmed_does_not_move():
    """The first token may come from a tail that caches nothing."""
    route = replace(OLD, kv_cache=False)
    talk = Talk(prompt=PROMPT, route=route)
    while not talk.tokens:
        talk.reply(talk.right_answer(7))

    assert FindMove not in kinds(talk.tell(LEAVING))


def test_who_leaves_while_a_session_moves_releases_it_everywhere():
    talk = running()
    talk.tell(LEAVING)
    talk.tell(MoveFound(NEW, (TAKING,)))

    talk.tell(Cancelled())

    (release,) = talk.releases
    assert set(release.nodes) == {"node0", "node1", "node2", "spare"}


def test_a_request_that_runs_out_of_time_while_its_session_moves_fails_once():
    talk = running(deadline_at=5.0)
    talk.tell(LEAVING)
    talk.tell(MoveFound(NEW, (TAKING,)))

    talk.now = 5.0
    actions = talk.tell(Tick())

    assert kinds(actions) == [Release, Fail]
    assert talk.tell(TakenOver((confirmation(),))) == []


def test_a_step_on_the_new_hops_that_misses_is_filled_again():
    talk = running()
    talk.tell(LEAVING)
    talk.tell(MoveFound(NEW, (TAKING,)))
    talk.tell(TakenOver((confirmation(),)))

    talk.reply(miss())

    while len(talk.tokens) < 3:
        talk.reply(talk.right_answer(9))
    assert talk.tokens == [7, 8, 9]


def test_a_late_answer_about_a_move_changes_nothing():
    talk = running()
    talk.tell(Delivered())

    assert talk.tell(MoveFound(NEW, (TAKING,))) == []
    assert talk.tell(TakenOver((confirmation(),))) == []
    assert talk.machine.route == OLD
