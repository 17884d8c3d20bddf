"""After a loss only the hops that lost the session run old positions again (ADR-0041)."""

from __future__ import annotations

from dataclasses import replace

from tests.core.generation.talk import LIMITS, SESSION, Talk, activation, miss, route_of

from meshnet.core.generation.transcript import (
    Delivered,
    Forward,
    Locate,
    Located,
    Lost,
    Refilling,
    RefillReason,
    Replied,
    Reroute,
    Rerouted,
)
from meshnet.core.protocol.digest import PrefixDigest
from meshnet.core.protocol.messages import ActivationReply, Code, Mode, Refusal, TokenReply
from meshnet.core.vocabulary import Drawn, Hop, NodeId, Route, SampledToken, SessionDescription

NODES = [NodeId(f"node{index}") for index in range(4)]
SPARE = NodeId("spare")


def able(route: Route, *, chain: bool = False) -> Route:
    nodes = frozenset(hop.node for hop in route.hops)
    return replace(route, truncate=True, replay=nodes, onward=nodes if chain else frozenset())


def with_spare(route: Route, at: int) -> Route:
    hops = [*route.hops]
    hops[at] = Hop(SPARE, hops[at].layers)
    return able(replace(route, hops=tuple(hops)), chain=bool(route.onward))


def talk_of(prompt=(1, 2, 3), *, chain: bool = False, hops: int = 3, drafts: int = 0) -> Talk:
    limits = replace(LIMITS, drafts=drafts)
    return Talk(prompt=prompt, route=able(route_of(hops), chain=chain), limits=limits)


def holding(talk: Talk, hop: Hop, ids: tuple[int, ...], attempt: int = 1) -> SessionDescription:
    digest = PrefixDigest.of(ids).hex
    return SessionDescription(SESSION, hop.layers, len(ids), digest, attempt, 1, len(ids))


def lose_middle(talk: Talk, route: Route) -> None:
    """The middle hop dies in the step behind the first token, and a spare takes its place."""
    talk.step(token=7)
    talk.reply(talk.right_answer())
    assert talk.open.hop.node == NODES[1]
    talk.lose()
    talk.tell(Rerouted(route))


def survive(talk: Talk, *lengths: int | None, ids=(1, 2, 3, 7)) -> list[object]:
    """Let the hops tell that they hold so many of the ids."""
    found = [
        None if length is None else holding(talk, hop, ids[:length])
        for hop, length in zip(talk.machine.route.hops, lengths, strict=True)
    ]
    return list(talk.tell(Located(tuple(found))))


def filling() -> Talk:
    """A spare holds nothing yet of what the hop before it has sent again."""
    talk = talk_of()
    lose_middle(talk, with_spare(talk.machine.route, 1))
    survive(talk, 4, None, 3)
    talk.reply(replayed(3))
    return talk


def asked(forward: Forward) -> tuple[object, ...]:
    request = forward.request
    return (forward.hop.node, request.mode, request.past_length, request.tokens)


def filled(length: int) -> TokenReply:
    return TokenReply(None, "", length)


def replayed(length: int) -> ActivationReply:
    return ActivationReply(activation(length), length)


def test_a_route_is_asked_for_that_keeps_the_hops_which_did_not_fail():
    talk = talk_of()
    talk.step(token=7)
    talk.reply(talk.right_answer())

    (ask,) = talk.lose()

    assert isinstance(ask, Reroute)
    assert ask.keep == (talk.machine.route.hops[0], talk.machine.route.hops[2])


def test_all_hops_of_the_new_route_are_asked_at_once_what_they_hold():
    talk = talk_of()
    route = with_spare(talk.machine.route, 1)
    lose_middle(talk, route)

    assert talk.actions[-1] == Locate(SESSION, route.hops, LIMITS.locate_s)
    assert talk.waiting == []


def test_the_hop_before_the_lost_one_sends_again_what_left_it_and_the_step_goes_on():
    """No hop but the spare runs an old position."""
    talk = talk_of()
    lose_middle(talk, with_spare(talk.machine.route, 1))

    actions = survive(talk, 4, None, 3)

    assert Refilling(RefillReason.LOST, 2, positions=3, partial=True) in actions
    assert asked(talk.open) == ("node0", Mode.DECODE, 0, (1, 2, 3))
    assert (talk.open.request.replay, talk.open.request.fill) == (True, False)
    assert talk.open.request.prefix == PrefixDigest().hex
    talk.reply(replayed(3))
    assert asked(talk.open) == (SPARE, Mode.PREFILL, 0, (1, 2, 3))
    assert (talk.open.request.replay, talk.open.request.fill) == (False, True)
    talk.reply(filled(3))
    assert asked(talk.open) == ("node0", Mode.DECODE, 3, (7,))
    assert (talk.open.request.truncate, talk.open.request.attempt) == (True, 2)
    talk.step(token=8)
    assert talk.tokens == [7, 8]
    stats = talk.machine.stats(talk.now)
    assert (stats.refills, stats.partial_refills, stats.refilled_positions) == (1, 1, 3)
    assert {hop.node: hop.positions for hop in stats.hops}["node0"] == 3 + 1 + 1 + 1


def test_a_step_that_still_ran_when_its_hop_was_asked_is_taken_back():
    """It told the length before, and counted the step in right after."""
    talk = talk_of()
    lose_middle(talk, with_spare(talk.machine.route, 1))
    survive(talk, 3, None, 3)
    talk.reply(replayed(3))
    talk.reply(filled(3))

    assert asked(talk.open) == ("node0", Mode.DECODE, 3, (7,))
    assert talk.open.request.truncate


def test_what_is_sent_again_goes_in_chunks_one_behind_the_other():
    talk = talk_of(prompt=(1, 2, 3, 4, 5))
    while talk.tokens != [7]:
        talk.step(token=7)
    talk.reply(talk.right_answer())
    talk.lose()
    talk.tell(Rerouted(with_spare(talk.machine.route, 1)))
    survive(talk, 5, None, 5, ids=(1, 2, 3, 4, 5))

    assert asked(talk.open) == ("node0", Mode.DECODE, 0, (1, 2, 3, 4))
    talk.reply(ActivationReply(activation(4), 4))
    assert [asked(each) for each in talk.waiting] == [
        (SPARE, Mode.PREFILL, 0, (1, 2, 3, 4)),
        ("node0", Mode.DECODE, 4, (5,)),
    ] or [asked(each) for each in talk.waiting] == [
        ("node0", Mode.DECODE, 4, (5,)),
        (SPARE, Mode.PREFILL, 0, (1, 2, 3, 4)),
    ]


def test_ids_enter_a_new_first_hop():
    talk = talk_of()
    talk.step(token=7)
    talk.lose()
    talk.tell(Rerouted(with_spare(talk.machine.route, 0)))

    survive(talk, None, 3, 3)

    assert asked(talk.open) == (SPARE, Mode.PREFILL, 0, (1, 2, 3))
    assert (talk.open.request.replay, talk.open.request.fill) == (False, True)
    assert talk.open.request.sampling is not None
    talk.reply(filled(3))
    assert asked(talk.open) == (SPARE, Mode.DECODE, 3, (7,))


def test_a_new_tail_draws_nothing_while_it_is_filled():
    talk = talk_of()
    talk.step(token=7)
    for _ in range(2):
        talk.reply(talk.right_answer())
    talk.lose()
    talk.tell(Rerouted(with_spare(talk.machine.route, 2)))
    survive(talk, 4, 4, None)
    assert asked(talk.open) == ("node1", Mode.DECODE, 0, (1, 2, 3))
    talk.reply(replayed(3))

    assert not talk.open.request.want_token
    talk.reply(filled(3))

    assert asked(talk.open) == ("node0", Mode.DECODE, 3, (7,))
    assert talk.tokens == [7]


def test_two_nodes_that_share_the_lost_layers_are_filled_one_behind_the_other():
    talk = talk_of()
    first, lost, last = talk.machine.route.hops
    halves = [
        Hop(NodeId(name), type(lost.layers)(start, start + 1))
        for name, start in (("left", 2), ("right", 3))
    ]
    lose_middle(talk, able(replace(talk.machine.route, hops=(first, *halves, last))))

    survive(talk, 4, None, None, 3)
    talk.reply(replayed(3))
    assert asked(talk.open) == ("left", Mode.PREFILL, 0, (1, 2, 3))
    assert not talk.open.request.fill
    talk.reply(replayed(3))
    assert asked(talk.open) == ("right", Mode.PREFILL, 0, (1, 2, 3))
    assert talk.open.request.fill
    talk.reply(filled(3))

    assert asked(talk.open) == ("node0", Mode.DECODE, 3, (7,))


def test_nodes_that_hand_on_do_so_with_what_they_send_again():
    """One question, which the spare answers on the head's stream to it."""
    talk = talk_of(chain=True)
    token = TokenReply(Drawn((SampledToken(7),)), "", 3)
    talk.tell(Replied(talk.open.ref, token, talk.machine.route.hops[-1]))
    talk.tell(Delivered())
    route = with_spare(talk.machine.route, 1)
    talk.tell(Lost(talk.open.ref, "connection reset", talk.machine.route.hops[1]))
    talk.tell(Rerouted(route))
    survive(talk, 4, None, 3)

    request = talk.open.request
    assert asked(talk.open) == ("node0", Mode.DECODE, 0, (1, 2, 3))
    assert (request.replay, request.fill, request.route) == (True, True, (route.hops[1],))
    assert request.sampling is not None
    talk.tell(Replied(talk.open.ref, filled(3), route.hops[1]))

    assert asked(talk.open) == ("node0", Mode.DECODE, 3, (7,))
    assert talk.open.request.route == route.hops[1:]


def test_where_every_hop_still_holds_it_the_step_is_sent_again_and_nothing_filled():
    """A connection broke, and nobody died."""
    talk = talk_of()
    lose_middle(talk, talk.machine.route)

    actions = survive(talk, 4, 4, 3)

    assert Refilling(RefillReason.LOST, 2, positions=0, partial=True) in actions
    assert asked(talk.open) == ("node0", Mode.DECODE, 3, (7,))
    assert (talk.open.request.truncate, talk.open.request.attempt) == (True, 2)


def test_a_miss_costs_only_the_hop_that_missed():
    talk = talk_of()
    talk.step(token=7)
    talk.reply(talk.right_answer())

    talk.reply(miss())
    survive(talk, 4, 3, 3)

    assert asked(talk.open) == ("node0", Mode.DECODE, 0, (1, 2, 3))
    talk.reply(replayed(3))
    assert asked(talk.open) == ("node1", Mode.PREFILL, 0, (1, 2, 3))


def test_a_source_that_cannot_send_again_after_all_is_filled_too():
    talk = talk_of()
    lose_middle(talk, with_spare(talk.machine.route, 1))
    survive(talk, 4, None, 3)

    talk.reply(miss())
    survive(talk, 4, None, 3)

    assert asked(talk.open) == ("node0", Mode.PREFILL, 0, (1, 2, 3))
    assert talk.open.request.attempt == 3


def test_all_is_filled_again_where_nobody_holds_anything():
    talk = talk_of()
    lose_middle(talk, with_spare(talk.machine.route, 1))

    actions = survive(talk, None, None, None)

    assert Refilling(RefillReason.LOST, 2, positions=9) in actions
    assert asked(talk.open) == ("node0", Mode.PREFILL, 0, (1, 2, 3, 7))


def test_all_is_filled_again_where_nobody_says_in_time_what_it_holds():
    talk = talk_of()
    lose_middle(talk, with_spare(talk.machine.route, 1))

    talk.pass_deadline()

    assert asked(talk.open) == ("node0", Mode.PREFILL, 0, (1, 2, 3, 7))


def test_older_nodes_are_not_asked_what_they_hold():
    talk = Talk(prompt=(1, 2, 3))
    talk.step(token=7)
    talk.lose()

    talk.tell(Rerouted(route_of(3, prefix="other")))

    assert talk.open.request.mode is Mode.PREFILL
    assert not any(isinstance(action, Locate) for action in talk.actions)


def test_an_older_spare_is_filled_by_a_prefill_that_it_answers_as_ever():
    """It knows no fills, so its activation comes back, and goes nowhere."""
    talk = talk_of()
    route = with_spare(talk.machine.route, 1)
    lose_middle(talk, replace(route, replay=route.replay - {SPARE}))
    survive(talk, 4, None, 3)
    talk.reply(replayed(3))

    assert asked(talk.open) == (SPARE, Mode.PREFILL, 0, (1, 2, 3))
    assert not talk.open.request.fill
    talk.reply(replayed(3))

    assert asked(talk.open) == ("node0", Mode.DECODE, 3, (7,))


def test_a_spare_that_dies_while_it_is_filled_is_replaced_as_well():
    talk = filling()

    talk.lose()
    talk.pass_deadline()
    assert talk.reroutes[-1].keep == (talk.machine.route.hops[0], talk.machine.route.hops[2])
    hops = list(talk.machine.route.hops)
    hops[1] = Hop(NodeId("another"), hops[1].layers)
    talk.tell(Rerouted(able(replace(talk.machine.route, hops=tuple(hops)))))
    survive(talk, 4, None, 3)

    assert (talk.open.request.attempt, talk.open.request.replay) == (3, True)
    talk.reply(replayed(3))
    assert asked(talk.open) == ("another", Mode.PREFILL, 0, (1, 2, 3))


def test_refills_of_parts_are_bounded_like_all_others():
    talk = talk_of()
    lose_middle(talk, with_spare(talk.machine.route, 1))
    for _ in range(20):
        if talk.end is not None:
            break
        if talk.waiting:
            talk.lose()
        elif isinstance(talk.actions[-1], Reroute):
            talk.tell(Rerouted(talk.machine.route))
        elif isinstance(talk.actions[-1], Locate):
            survive(talk, 4, None, 3)
        else:
            talk.pass_deadline()

    assert talk.end is not None


def test_an_answer_of_the_attempt_before_the_loss_counts_for_nothing():
    talk = talk_of()
    talk.step(token=7)
    talk.reply(talk.right_answer())
    late = talk.open.ref
    talk.lose()
    talk.tell(Rerouted(with_spare(talk.machine.route, 1)))
    survive(talk, 4, None, 3)
    asked_then = len(talk.forwards)

    assert talk.tell(Replied(late, ActivationReply(activation(1), cached=4))) == []
    assert len(talk.forwards) == asked_then


def test_a_fill_that_is_answered_with_a_token_is_a_lost_hop():
    talk = filling()

    talk.reply(TokenReply(Drawn((SampledToken(9),)), "", 3))
    talk.pass_deadline()

    assert talk.reroutes[-1].avoid == talk.machine.route.hops[1]
    assert talk.tokens == [7]


def test_a_spare_without_room_is_waited_for():
    talk = filling()

    talk.reply(Refusal(Code.NO_ROOM, "full", retry_after_s=1.0))
    assert talk.waiting == []
    talk.pass_deadline()

    assert talk.open.request.mode is Mode.PREFILL


def test_no_token_is_lost_or_repeated_when_the_consumer_is_slow_after_a_recovery():
    talk = filling()
    talk.reply(filled(3))
    while talk.tokens != [7, 8]:
        talk.reply(talk.right_answer(token=8))
    talk.tell(Delivered())
    talk.step(token=9)

    assert talk.tokens == [7, 8, 9]
