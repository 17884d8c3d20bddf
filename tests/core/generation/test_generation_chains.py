"""Steps that nodes hand on to each other: one question to all hops, and what its ends mean."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.core.generation.talk import LIMITS, SESSION, Talk, activation, miss, route_of

from meshnet.core.generation.transcript import (
    Alive,
    Delivered,
    Forward,
    Locate,
    Located,
    Lost,
    Refilling,
    RefillReason,
    Replied,
    Rerouted,
)
from meshnet.core.protocol.messages import (
    ActivationReply,
    Code,
    Mode,
    Refusal,
    TokenReply,
)
from meshnet.core.vocabulary import Drawn, HopLost, Route, SampledToken, SessionDescription


def chained(hops: int = 3, prefix: str = "node") -> Route:
    """A route on which each hop but the last can hand on."""
    route = route_of(hops, prefix=prefix)
    return replace(route, onward=frozenset(hop.node for hop in route.hops[:-1]))


ABLE = chained()
HOPS = ABLE.hops


def decoding(**options: object) -> Talk:
    """A generation whose first token came, and whose next step is asked."""
    talk = Talk(prompt=(1, 2, 3), route=ABLE, **options)  # type: ignore[arg-type]
    first(talk)
    return talk


def first(talk: Talk, token: int = 7) -> None:
    """Answer the prefill, by whichever way it goes, and take its token."""
    if not talk.open.chain:
        talk.step(token=token)
        return
    talk.tell(Replied(talk.open.ref, drawn(talk, token), talk.open.hops[-1]))
    talk.tell(Delivered())


def drawn(talk: Talk, token: int) -> TokenReply:
    length = talk.open.request.past_length + len(talk.open.request.tokens)
    return TokenReply(Drawn((SampledToken(token),)), "", length)


def refills(talk: Talk) -> list[RefillReason]:
    return [action.reason for action in talk.actions if isinstance(action, Refilling)]


def test_a_step_is_one_question_to_all_hops():
    talk = decoding()

    for asked, mode in zip(talk.forwards, (Mode.PREFILL, Mode.DECODE), strict=True):
        assert (asked.request.mode, asked.hop, asked.chain) == (mode, HOPS[0], HOPS[1:])
        assert asked.request.route == HOPS[1:]
    for token in (8, 9):
        talk.tell(Replied(talk.open.ref, drawn(talk, token), HOPS[2]))
        talk.tell(Delivered())
    assert talk.tokens == [7, 8, 9]
    assert len(talk.forwards) == 1 + 3
    assert refills(talk) == []


def test_a_route_that_cannot_or_a_head_that_will_not_asks_each_hop():
    unable = Talk(prompt=(1, 2, 3))
    unwilling = decoding(limits=replace(LIMITS, chains=False))
    unable.step(token=7)

    assert unable.open.chain == unwilling.open.chain == ()


def test_any_hop_s_refusal_is_that_hop_s():
    talk = decoding()
    talk.tell(Replied(talk.open.ref, miss(), HOPS[1]))
    assert refills(talk) == [RefillReason.MISS]
    assert talk.open.request.mode is Mode.PREFILL

    first(talk, 8)
    assert talk.open.chain, "a miss does not speak against handing on"
    talk.tell(Replied(talk.open.ref, Refusal(Code.INTERNAL, "a bug"), HOPS[1]))
    assert talk.reroutes[-1].avoid == HOPS[1]


def test_a_hop_known_to_be_lost_is_avoided_and_the_next_route_may_chain_again():
    talk = decoding()
    talk.tell(Lost(talk.open.ref, "connection reset", HOPS[2]))

    assert talk.reroutes[-1].avoid == HOPS[2]
    talk.tell(Rerouted(chained(prefix="other")))
    first(talk, 8)
    assert [hop.node for hop in talk.open.hops] == ["other0", "other1", "other2"]


def test_a_node_that_cannot_hand_on_costs_a_refill_and_each_hop_is_asked_from_then_on():
    talk = decoding()
    talk.tell(Replied(talk.open.ref, Refusal(Code.HOP_FAILED, "no stream"), HOPS[0]))

    assert refills(talk) == [RefillReason.CHAIN]
    assert talk.reroutes == []
    talk.step(token=8)
    assert (talk.open.chain, talk.tokens) == ((), [7, 8])


def held(length: int, attempt: int = 1) -> SessionDescription:
    return SessionDescription(SESSION, HOPS[0].layers, length, None, attempt, 0)


def silent() -> Talk:
    """A generation whose chain fell silent during its first decode."""
    talk = decoding()
    talk.pass_deadline()
    return talk


def test_the_hops_of_a_silent_chain_are_all_asked_at_once_how_far_it_got():
    talk = silent()

    asked = talk.actions[-1]
    assert talk.now == talk.forwards[-1].silence_s
    assert asked == Locate(SESSION, HOPS, LIMITS.locate_s)
    assert talk.tell(Replied(talk.forwards[-1].ref, drawn(talk, 9), HOPS[2])) == []


def test_a_hop_that_is_silent_too_is_avoided_at_once():
    talk = silent()
    talk.tell(Located((held(4), HopLost("no answer"), held(3))))

    assert talk.reroutes[-1].avoid == HOPS[1]
    assert refills(talk) == []


@pytest.mark.parametrize(
    "found",
    [
        (held(4), held(3), held(3)),
        (held(4), held(4, attempt=2), None),
        (held(4), held(4), held(4)),
        (),
    ],
    ids=["lost half-way", "another attempt", "lost on its way back", "nobody answered in time"],
)
def test_a_step_that_was_lost_where_all_hops_live_is_repaired_hop_by_hop(
    found: tuple[SessionDescription | HopLost | None, ...],
):
    talk = silent()
    if found:
        talk.tell(Located(found))
    else:
        talk.pass_deadline()

    assert refills(talk) == [RefillReason.CHAIN]
    assert talk.reroutes == []
    assert (talk.open.hop, talk.open.chain) == (HOPS[0], ())
    talk.step(token=8)
    assert talk.tokens == [7, 8]


def test_what_hops_say_is_nobody_s_business_where_nobody_asked():
    talk = decoding()

    assert talk.tell(Located((HopLost("late"),) * 3)) == []
    assert talk.open.chain


def test_a_sign_of_life_of_any_hop_keeps_the_question_open():
    talk = decoding()
    before = talk.machine.deadline()
    talk.now = 1.0
    talk.tell(Alive(talk.open.ref))

    assert before is not None
    assert talk.machine.deadline() == before + 1.0


def test_an_answer_in_the_middle_is_no_answer():
    talk = decoding()
    actions = talk.tell(Replied(talk.open.ref, ActivationReply(activation(1), 4), HOPS[1]))

    assert not [action for action in actions if isinstance(action, Forward)]
    assert talk.reroutes[-1].avoid == HOPS[1]


def test_every_hop_is_released_though_only_the_first_was_asked():
    talk = decoding(tokens_max=2)
    talk.tell(Replied(talk.open.ref, drawn(talk, 8), HOPS[2]))

    assert set(talk.releases[0].nodes) == {hop.node for hop in HOPS}


def test_the_steps_of_all_hops_are_counted():
    talk = decoding(tokens_max=2)
    talk.tell(Replied(talk.open.ref, drawn(talk, 8), HOPS[2]))

    assert [hop.steps for hop in talk.machine.stats(talk.now).hops] == [2, 2, 2]


def test_only_ids_go_through_the_head_and_only_to_the_first_hop():
    talk = decoding(tokens_max=2)
    talk.tell(Replied(talk.open.ref, drawn(talk, 8), HOPS[2]))

    hops = talk.machine.stats(talk.now).hops
    assert [(hop.bytes_out, hop.bytes_in) for hop in hops] == [(4 * 3 + 4, 0), (0, 0), (0, 0)]
