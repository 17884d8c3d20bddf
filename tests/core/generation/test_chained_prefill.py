"""A long prompt's chunks on a chain: several on their way at once, answered by the last hop."""

from __future__ import annotations

from dataclasses import replace

from tests.core.generation.talk import LIMITS, Talk, miss, route_of
from tests.core.generation.test_generation_chains import chained, drawn

from meshnet.core.generation.sequence import Adoption
from meshnet.core.generation.transcript import Delivered, Forward, Lost, Refilling, Replied
from meshnet.core.protocol.messages import Mode, Reply
from meshnet.core.vocabulary import Route, SessionId

PROMPT = tuple(range(40))
TEN_CHUNKS = replace(LIMITS, prefill_chunk=4, chunk_grain=4)


def prefilling(route: Route | None = None) -> Talk:
    return Talk(prompt=PROMPT, limits=TEN_CHUNKS, route=route or chained())


def answer(talk: Talk, asked: Forward, hops: int = 3) -> list[int]:
    """Answer rightly; return the past lengths of what is asked then."""
    reply: Reply = talk.right_answer(7, hops, to=asked)
    actions = talk.tell(Replied(asked.ref, reply, asked.hops[-1]))
    return [each.request.past_length for each in actions if isinstance(each, Forward)]


def final(talk: Talk, asked: Forward) -> list[int]:
    """The same for a chain that ends in the tail."""
    cached = asked.request.past_length + len(asked.request.tokens)
    reply = replace(drawn(talk, 7), cached=cached)
    if not asked.request.want_token:
        reply = replace(reply, drawn=None)
    actions = talk.tell(Replied(asked.ref, reply, asked.hops[-1]))
    return [each.request.past_length for each in actions if isinstance(each, Forward)]


def test_as_many_chunks_are_on_their_way_as_keep_all_hops_at_work():
    talk = prefilling()

    assert [each.request.past_length for each in talk.waiting] == [0, 4, 8, 12, 16, 20]
    assert [each.request.mode for each in talk.waiting] == [Mode.PREFILL] + [Mode.DECODE] * 5
    assert final(talk, talk.open) == [24]


def test_a_long_chain_has_no_more_out_than_a_stream_takes():
    assert len(prefilling(chained(7)).waiting) == 8


def test_every_chunk_has_what_it_has_hop_by_hop_and_the_head_sends_ids_alone():
    star = prefilling(route_of())
    while not star.tokens:
        star.reply(star.right_answer(7))
    talk = prefilling()
    while not talk.tokens:
        final(talk, talk.open)

    asked = {each.request.past_length: each.request for each in star.forwards if not each.ref.hop}
    for each in talk.forwards:
        alone = replace(each.request, route=())
        assert alone == replace(asked[alone.past_length], deadline_ms=alone.deadline_ms)
    stats = talk.machine.stats(talk.now)
    assert [hop.bytes_out for hop in stats.hops] == [4 * len(PROMPT), 0, 0]
    assert [hop.bytes_in for hop in stats.hops] == [0, 0, 0]
    talk.tell(Delivered())
    assert (talk.open.request.past_length, talk.tokens) == (len(PROMPT), [7])


def test_an_answer_gives_those_behind_it_their_time():
    talk = prefilling()
    silence_s = talk.open.silence_s
    talk.now = silence_s - 0.5
    final(talk, talk.open)

    deadline = talk.machine.deadline()
    assert deadline == talk.now + silence_s


def test_a_refusal_of_one_chunk_closes_the_questions_of_all():
    talk = prefilling()
    before = talk.waiting
    talk.tell(Replied(before[2].ref, miss(), before[2].hops[1]))

    assert [each.request.attempt for each in talk.waiting] == [2] * 6
    assert all(final(talk, each) == [] for each in before)


def test_a_hop_lost_during_a_prompt_is_known_by_name():
    talk = prefilling()
    lost = talk.open.hops[1]
    talk.tell(Lost(talk.open.ref, "connection reset", lost))

    assert (talk.reroutes[-1].avoid, talk.waiting) == (lost, [])


def test_answers_in_another_order_are_not_trusted():
    talk = prefilling()
    final(talk, talk.waiting[1])

    assert [each for each in talk.actions if isinstance(each, Refilling)]
    assert (talk.open.chain, talk.open.request.mode) == ((), Mode.PREFILL)


def test_a_session_is_adopted_along_a_chain_as_well():
    old = Adoption(SessionId("old"), 4, 9)
    talk = Talk(prompt=PROMPT[:10], limits=TEN_CHUNKS, route=chained(), adoption=old)

    first, second = talk.waiting
    assert len(first.chain) == len(second.chain) == 2
    assert (first.request.adopt, first.request.truncate) == (old.session, True)
    assert first.request.sampling is not None
    assert (second.request.adopt, second.request.sampling) == (None, None)
    final(talk, first)
    final(talk, second)
    assert (talk.tokens, talk.machine.reused) == ([7], 4)


def parted() -> Route:
    """Four hops, of which the third is an older node."""
    route = route_of(4)
    return replace(route, onward=frozenset({route.hops[0].node}))


def test_an_older_node_is_asked_by_itself_and_the_others_still_hand_on():
    talk = prefilling(parted())

    assert [hop.node for hop in talk.open.hops] == ["node0", "node1"]
    while not talk.tokens:
        answer(talk, talk.open, hops=3)
    ways = {each.ref.hop: [hop.node for hop in each.hops] for each in talk.forwards}
    assert ways == {0: ["node0", "node1"], 1: ["node2"], 2: ["node3"]}
    for stage in range(3):
        sent = [each.request.tokens for each in talk.forwards if each.ref.hop == stage]
        assert sum(sent, ()) == PROMPT
