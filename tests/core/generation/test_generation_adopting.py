"""A generation whose prompt goes on with what an earlier session holds."""

from __future__ import annotations

from dataclasses import replace

from tests.core.generation.talk import LIMITS, SESSION, Talk, miss, route_of

from meshnet.core.generation.sequence import Adoption
from meshnet.core.generation.transcript import Cancelled, Finish
from meshnet.core.protocol.digest import PrefixDigest
from meshnet.core.protocol.messages import Mode
from meshnet.core.vocabulary import SamplingParams, SessionId

OLD = SessionId("old")
PROMPT = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
SAMPLING = SamplingParams(seed=3)


def adopting(*, length: int = 6, held: int = 6, tokens_max: int = 8) -> Talk:
    return Talk(
        prompt=PROMPT,
        adoption=Adoption(OLD, length, held),
        sampling=SAMPLING,
        tokens_max=tokens_max,
        reserved=True,
    )


def test_the_first_step_names_the_session_and_proves_its_ids_to_every_hop():
    talk = adopting()
    talk.step()

    for forward in talk.forwards[:3]:
        request = forward.request
        assert (request.mode, request.session, request.adopt) == (Mode.DECODE, SESSION, OLD)
        assert (request.past_length, request.tokens) == (6, PROMPT[6:])
        assert request.prefix == PrefixDigest.of(PROMPT[:6]).hex
        assert request.sampling == replace(SAMPLING, prompt_length=len(PROMPT))
        assert (request.attempt, request.truncate) == (1, False)
    assert (talk.open.request.adopt, talk.open.request.sampling) == (None, None)
    assert talk.open.request.past_length == len(PROMPT)
    assert talk.machine.stats(0.0).reused == 6
    assert talk.machine.stats(0.0).prefills == 0


def test_a_longer_session_is_shortened_in_the_same_step():
    talk = adopting(held=9)

    assert talk.open.request.truncate
    talk.step()
    assert not talk.open.request.truncate


def test_the_rest_of_a_long_prompt_follows_in_chunks_that_adopt_nothing():
    talk = adopting(length=2, held=2)
    talk.step()

    asked = [forward.request for forward in talk.forwards if forward.ref.hop == 0]
    assert [len(request.tokens) for request in asked[:2]] == [4, 4]
    assert [request.adopt for request in asked[:2]] == [OLD, None]
    assert [request.past_length for request in asked[:2]] == [2, 6]


def test_a_miss_at_a_later_hop_is_filled_anew_under_the_same_session():
    talk = adopting()
    talk.reply(talk.right_answer())
    talk.reply(miss())

    request = talk.open.request
    assert (request.mode, request.adopt, request.attempt) == (Mode.PREFILL, None, 2)
    assert (request.session, request.tokens) == (SESSION, PROMPT[:4])
    assert talk.machine.reused == 0


def test_a_prompt_that_is_filled_anew_after_all_reused_nothing():
    talk = adopting(length=2, held=2)
    while talk.machine.reused == 0:
        talk.reply(talk.right_answer())
    assert talk.machine.reused == 2

    talk.reply(miss())

    assert talk.open.request.mode is Mode.PREFILL
    assert talk.machine.reused == 0


def test_what_a_first_token_came_from_was_reused_whatever_happens_later():
    talk = adopting()
    talk.step()

    talk.reply(miss())

    assert talk.open.request.mode is Mode.PREFILL
    assert talk.machine.reused == 6


def test_a_route_without_caches_adopts_nothing():
    talk = Talk(prompt=PROMPT, adoption=Adoption(OLD, 6, 6), route=route_of(kv_cache=False))

    assert (talk.open.request.mode, talk.open.request.adopt) == (Mode.STATELESS, None)


def test_an_ended_generation_tells_what_its_session_holds():
    talk = adopting(tokens_max=2)
    talk.step(token=70)
    talk.step(token=71)

    assert isinstance(talk.end, Finish)
    remains = talk.releases[0].remains
    assert remains is not None
    assert (remains.ids, remains.held) == ((*PROMPT, 70), len(PROMPT) + 1)
    assert (remains.prompt_length, remains.route) == (len(PROMPT), route_of())


def test_an_ended_generation_tells_what_it_can_go_back_to():
    """Where its turn began, and where its prompt ended that came in one piece."""
    talk = adopting(tokens_max=2)
    talk.step(token=70)
    talk.step(token=71)

    remains = talk.releases[0].remains
    assert remains is not None
    assert remains.marks.lengths == (6, len(PROMPT))


def test_a_generation_filled_anew_goes_back_to_what_its_last_prefill_ended_at():
    talk = Talk(prompt=PROMPT[:4], tokens_max=3)
    talk.step(token=70)
    talk.step(token=71)
    talk.reply(miss())
    talk.step(token=72)
    talk.step(token=72)

    remains = talk.releases[0].remains
    assert remains is not None
    # Six ids in chunks of four.
    assert remains.marks.lengths == (4,)


def chunks(*, lingers: bool, **able: bool) -> list[int]:
    """Positions of each step of a prompt of 30 at the first hop, in chunks of 4."""
    talk = Talk(
        prompt=tuple(range(30)),
        tokens_max=1,
        lingers=lingers,
        route=replace(route_of(), **able),
        limits=replace(LIMITS, opening=3),
    )
    for _ in range(8):
        talk.step(token=70)
    asked = [forward.request for forward in talk.forwards if forward.ref.hop == 0]
    return [len(request.tokens) for request in asked]


def test_what_opens_the_answer_is_cut_off_where_a_next_turn_can_only_go_back_to_marks():
    whole = [4] * 7 + [2]

    assert chunks(lingers=True, marks=True) == [*[4] * 6, 3, 3]
    assert chunks(lingers=True, marks=True, truncate=True) == whole
    assert chunks(lingers=True) == whole
    assert chunks(lingers=False, marks=True) == whole


def test_a_generation_left_inside_a_step_tells_nothing():
    talk = adopting()
    talk.step()
    talk.tell(Cancelled())

    assert talk.releases[0].remains is None
