"""The undisturbed course of a generation: chunks, decodes, stops, and older peers on the route."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from tests.core.generation.talk import SESSION, Talk, activation, route_of

from meshnet.core.generation.sequence import CacheUse
from meshnet.core.generation.transcript import (
    Cancelled,
    Delivered,
    Emit,
    Finish,
    FinishReason,
    Replied,
    Started,
    Tick,
)
from meshnet.core.protocol.codec import encode_request
from meshnet.core.protocol.digest import PrefixDigest
from meshnet.core.protocol.messages import ActivationReply, Mode, TokenReply
from meshnet.core.vocabulary import (
    WIRE_VERSION,
    Hop,
    LayerRange,
    NodeId,
    SampledToken,
    SamplingParams,
)


def test_a_prefill_carries_all_ids_and_the_sampling_parameters_to_every_hop():
    sampling = SamplingParams(temperature=0.5, seed=3)
    talk = Talk(prompt=(1, 2, 3), sampling=sampling)

    talk.step(token=7)

    first_step = talk.forwards[:3]
    assert [forward.request.tokens for forward in first_step] == [(1, 2, 3)] * 3
    assert {forward.request.mode for forward in first_step} == {Mode.PREFILL}
    assert {forward.request.session for forward in first_step} == {SESSION}
    assert {forward.request.wire for forward in first_step} == {WIRE_VERSION}
    sent = first_step[0].request.sampling
    assert sent == SamplingParams(temperature=0.5, seed=3, prompt_length=3)
    assert [forward.request.layers for forward in first_step] == [
        hop.layers for hop in route_of().hops
    ]


def test_the_first_hop_gets_ids_and_every_other_the_activation_before_it():
    talk = Talk(prompt=(1, 2, 3))

    assert talk.open.request.activation is None
    talk.reply(ActivationReply(activation(3), cached=3))

    assert talk.open.hop.node == "node1"
    assert talk.open.request.activation == activation(3)


def test_a_node_of_wire_version_0_gets_its_activation_and_no_meta_block():
    """It knows none and would take ids and parameters for numbers of the activation."""
    first, second, third = route_of().hops
    route = replace(route_of(), hops=(first, replace(second, wire=0), third))
    talk = Talk(prompt=(1, 2, 3), route=route)

    talk.reply(ActivationReply(activation(3), cached=3))
    old = talk.open.request
    talk.reply(ActivationReply(activation(3), cached=None))
    new = talk.open.request

    assert (old.tokens, old.sampling, old.want_token) == ((), None, True)
    assert encode_request(old)[1] == [activation(3).data]
    assert (new.tokens, new.sampling is None) == ((1, 2, 3), False)


def test_every_hop_hears_whose_step_it_is():
    talk = Talk(prompt=(1, 2, 3), owner="tag")

    talk.step(token=7)

    assert {forward.request.owner for forward in talk.forwards} == {"tag"}


@pytest.mark.parametrize(
    ("cuts", "stages"),
    [((8,), 1), ((4, 8), 2), ((5, 8), 2), ((6, 8), 1), ((3, 6, 8), 3), ((1, 2, 3, 8), 2)],
)
def test_the_first_hop_hears_into_how_many_groups_sessions_fall(cuts, stages):
    """As many as hops like the largest would make up the route; the others take what comes."""
    starts = (0, *cuts)
    hops = tuple(
        Hop(NodeId(f"n{start}"), LayerRange(start, stop)) for start, stop in pairwise(starts)
    )
    talk = Talk(prompt=(1, 2, 3), route=replace(route_of(), hops=hops))

    talk.step(token=7, hops=len(hops))

    told = [forward.request.stages for forward in talk.forwards[: len(hops)]]
    assert told == [stages] + [1] * (len(hops) - 1)


def test_after_the_prefill_a_step_sends_the_one_new_id_with_length_and_digest():
    talk = Talk(prompt=(1, 2, 3))

    talk.step(token=7)

    request = talk.open.request
    assert (request.mode, request.past_length, request.tokens) == (Mode.DECODE, 3, (7,))
    assert request.prefix == PrefixDigest.of((1, 2, 3)).hex
    assert request.sampling is None
    assert request.attempt == talk.forwards[0].request.attempt


def test_a_long_prompt_goes_in_chunks_and_only_the_last_asks_for_a_token():
    talk = Talk(prompt=tuple(range(10)))

    talk.step()
    talk.step()
    talk.step(token=7)

    steps = [forward.request for forward in talk.forwards if forward.ref.hop == 0][:3]
    assert [(step.mode, step.past_length, len(step.tokens)) for step in steps] == [
        (Mode.PREFILL, 0, 4),
        (Mode.DECODE, 4, 4),
        (Mode.DECODE, 8, 2),
    ]
    assert [step.want_token for step in steps] == [False, False, True]
    assert talk.tokens == [7]


def test_a_route_that_takes_one_token_at_a_time_gets_the_whole_prompt_at_once():
    talk = Talk(prompt=tuple(range(10)), route=route_of(multi_token=False))

    assert talk.open.request.tokens == tuple(range(10))
    assert talk.open.request.want_token


def test_no_step_is_asked_before_the_consumer_took_the_last_token():
    talk = Talk()
    for _ in range(3):
        actions = talk.reply(talk.right_answer(7))

    assert actions == [Emit(SampledToken(7))]
    assert talk.open.request.mode is Mode.PREFILL
    talk.tell(Delivered())
    assert talk.open.request.mode is Mode.DECODE


def test_a_stop_id_is_emitted_and_ends_the_generation():
    talk = Talk(stop_ids=(9,))

    talk.step(token=7)
    talk.step(token=9)

    assert talk.tokens == [7, 9]
    assert isinstance(talk.end, Finish)
    assert talk.end.reason is FinishReason.STOP
    assert talk.end.stats.completion_tokens == 2


def test_the_last_allowed_token_ends_the_generation_by_length():
    talk = Talk(tokens_max=2, stop_ids=(9,))

    talk.step(token=7)
    talk.step(token=8)

    assert isinstance(talk.end, Finish)
    assert talk.end.reason is FinishReason.LENGTH


def test_a_stop_id_as_the_last_allowed_token_counts_as_stop():
    talk = Talk(tokens_max=2, stop_ids=(9,))

    talk.step(token=7)
    talk.step(token=9)

    assert isinstance(talk.end, Finish)
    assert talk.end.reason is FinishReason.STOP


def test_the_nodes_are_released_once_before_the_last_token_is_handed_out():
    talk = Talk(tokens_max=1)

    talk.step(token=7)

    kinds = [type(action).__name__ for action in talk.actions[-3:]]
    assert kinds == ["Release", "Emit", "Finish"]
    assert talk.releases[0].nodes == ("node0", "node1", "node2")
    assert len(talk.releases) == 1


def test_a_finished_generation_ignores_everything():
    talk = Talk(tokens_max=1)
    talk.step(token=7)

    events = [
        Started(),
        Delivered(),
        Tick(),
        Cancelled(),
        Replied(talk.open.ref, activation_reply()),
    ]

    assert [talk.tell(event) for event in events] == [[]] * 5
    assert talk.machine.deadline() is None


def activation_reply() -> ActivationReply:
    return ActivationReply(activation(3), cached=3)


def test_cancelling_during_the_prefill_releases_only_the_nodes_that_were_asked():
    talk = Talk()
    talk.reply(talk.right_answer())

    actions = talk.tell(Cancelled())

    assert [action.nodes for action in talk.releases] == [("node0", "node1")]
    assert talk.end is None
    assert len(actions) == 1


def test_cancelling_releases_reserved_places_of_nodes_never_asked():
    talk = Talk(reserved=True)

    talk.tell(Cancelled())

    assert talk.releases[0].nodes == ("node0", "node1", "node2")


def test_statistics_count_steps_bytes_and_seconds_per_hop():
    talk = Talk(tokens_max=2)
    talk.now = 0.5
    talk.step(token=7)
    talk.step(token=8)

    assert isinstance(talk.end, Finish)
    stats = talk.end.stats
    assert (stats.prompt_tokens, stats.prefills, stats.refills) == (3, 1, 0)
    assert stats.ttft_s == pytest.approx(0.5)
    middle = stats.hops[1]
    assert middle.node == NodeId("node1")
    assert middle.steps == 2
    assert middle.bytes_out == 2 * (3 * 4 + 1 * 4)
    assert middle.bytes_in == 4 * 4
    assert middle.compute_s == pytest.approx(0.002)


# --- older and lesser peers -----------------------------------------------------------------------


def test_an_old_middle_node_makes_every_step_a_prefill_of_all_ids():
    """It would run one position statelessly and answer 200: silent garbage (architecture, 4)."""
    talk = Talk(prompt=(1, 2, 3))

    talk.reply(talk.right_answer())
    talk.reply(ActivationReply(activation(3), cached=None))
    talk.step(token=7)

    assert talk.tokens == [7]
    assert talk.open.request.mode is Mode.PREFILL
    assert talk.open.request.tokens == (1, 2, 3, 7)
    talk.step(token=8)
    assert talk.open.request.tokens == (1, 2, 3, 7, 8)
    assert talk.machine.cache_use is CacheUse.EACH_STEP


def test_an_old_node_met_in_the_first_chunk_gets_the_whole_prompt_instead():
    talk = Talk(prompt=tuple(range(10)))

    talk.reply(ActivationReply(activation(4), cached=None))

    assert talk.open.request.mode is Mode.PREFILL
    assert talk.open.request.tokens == tuple(range(10))
    assert talk.open.ref.hop == 0


def test_an_old_tail_is_served_by_prefills_and_by_the_ids_of_its_text():
    talk = Talk(prompt=(1, 2, 3))
    talk.reply(talk.right_answer())
    talk.reply(talk.right_answer())

    talk.reply(TokenReply(drawn=None, text="ab", cached=None))
    talk.tell(Delivered())

    assert talk.tokens == list(b"ab")
    assert talk.open.request.mode is Mode.PREFILL
    assert talk.open.request.tokens == (1, 2, 3, *b"ab")


def test_each_id_of_an_old_tails_text_obeys_the_stop_rules():
    talk = Talk(prompt=(1, 2, 3), stop_ids=(ord("b"),))
    talk.reply(talk.right_answer())
    talk.reply(talk.right_answer())

    talk.reply(TokenReply(drawn=None, text="abc", cached=None))

    assert talk.tokens == list(b"ab")
    assert isinstance(talk.end, Finish)
    assert talk.end.reason is FinishReason.STOP


def test_an_old_tail_that_has_no_more_text_ends_the_generation():
    talk = Talk()
    talk.reply(talk.right_answer())
    talk.reply(talk.right_answer())

    talk.reply(TokenReply(drawn=None, text="", cached=None))

    assert isinstance(talk.end, Finish)
    assert talk.end.reason is FinishReason.STOP


def test_a_route_that_cannot_cache_gets_all_ids_in_stateless_steps():
    talk = Talk(prompt=tuple(range(10)), route=route_of(kv_cache=False))

    talk.step(token=7)

    request = talk.open.request
    assert request.mode is Mode.STATELESS
    assert request.tokens == (*range(10), 7)
    assert request.sampling is not None
    assert (request.attempt, request.prefix, request.past_length) == (None, None, 0)
    talk.tell(Cancelled())
    assert talk.releases == []
