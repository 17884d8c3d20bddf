"""Decodes that nodes hand on to each other: one question to all hops, and what its ends mean."""

from __future__ import annotations

from dataclasses import replace

from tests.core.generation.talk import LIMITS, Talk, activation, miss, route_of

from meshnet.core.generation.transcript import (
    Alive,
    Delivered,
    Forward,
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
from meshnet.core.vocabulary import Drawn, SampledToken

ABLE = replace(route_of(), chain=True)
HOPS = ABLE.hops


def decoding(**options: object) -> Talk:
    """A generation whose first token came, and whose next step is asked."""
    talk = Talk(prompt=(1, 2, 3), route=ABLE, **options)  # type: ignore[arg-type]
    talk.step(token=7)
    return talk


def drawn(talk: Talk, token: int) -> TokenReply:
    length = talk.open.request.past_length + len(talk.open.request.tokens)
    return TokenReply(Drawn((SampledToken(token),)), "", length)


def refills(talk: Talk) -> list[RefillReason]:
    return [action.reason for action in talk.actions if isinstance(action, Refilling)]


def test_a_prefill_goes_hop_by_hop_and_a_decode_is_one_question_to_all():
    talk = decoding()

    prefill = talk.forwards[0]
    assert (prefill.request.mode, prefill.chain, prefill.request.route) == (Mode.PREFILL, (), ())
    assert (talk.open.hop, talk.open.chain) == (HOPS[0], HOPS[1:])
    assert talk.open.request.route == HOPS[1:]
    for token in (8, 9):
        talk.tell(Replied(talk.open.ref, drawn(talk, token), HOPS[2]))
        talk.tell(Delivered())
    assert talk.tokens == [7, 8, 9]
    assert len(talk.forwards) == 3 + 3
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

    talk.step(token=8)
    assert talk.open.chain, "a miss does not speak against handing on"
    talk.tell(Replied(talk.open.ref, Refusal(Code.INTERNAL, "a bug"), HOPS[1]))
    assert talk.reroutes[-1].avoid == HOPS[1]


def test_a_hop_known_to_be_lost_is_avoided_and_the_next_route_may_chain_again():
    talk = decoding()
    talk.tell(Lost(talk.open.ref, "connection reset", HOPS[2]))

    assert talk.reroutes[-1].avoid == HOPS[2]
    talk.tell(Rerouted(replace(route_of(prefix="other"), chain=True)))
    talk.step(token=8)
    assert [hop.node for hop in talk.open.hops] == ["other0", "other1", "other2"]


def test_a_node_that_cannot_hand_on_costs_a_refill_and_each_hop_is_asked_from_then_on():
    talk = decoding()
    talk.tell(Replied(talk.open.ref, Refusal(Code.HOP_FAILED, "no stream"), HOPS[0]))

    assert refills(talk) == [RefillReason.CHAIN]
    assert talk.reroutes == []
    talk.step(token=8)
    assert (talk.open.chain, talk.tokens) == ((), [7, 8])


def test_a_silent_chain_is_asked_hop_by_hop_so_that_the_silent_one_shows():
    talk = decoding()
    chained = talk.open
    talk.pass_deadline()

    assert talk.now >= chained.silence_s
    assert refills(talk) == [RefillReason.CHAIN]
    assert (talk.open.hop, talk.open.chain) == (HOPS[0], ())
    assert talk.tell(Replied(chained.ref, drawn(talk, 9), HOPS[2])) == []


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
