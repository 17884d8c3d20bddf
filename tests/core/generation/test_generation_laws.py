"""Whatever the network says, a generation ends, once, and never takes a token back."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.generation.talk import Talk, activation, route_of

from meshnet.core.generation.transcript import (
    Alive,
    Cancelled,
    Delivered,
    Emit,
    Fail,
    Finish,
    Forward,
    GenerationAction,
    GenerationEvent,
    Lost,
    NoRoute,
    Release,
    Replied,
    Reroute,
    Rerouted,
    Started,
    StepRef,
    Tick,
)
from meshnet.core.protocol.messages import ActivationReply, Code, Mode, Refusal, Reply, TokenReply
from meshnet.core.vocabulary import Drawn, MissReason, SampledToken

lengths = st.one_of(st.none(), st.integers(0, 12))
refusals = st.builds(
    Refusal,
    st.sampled_from(Code),
    st.just("refused"),
    st.one_of(st.none(), st.floats()),
    st.one_of(st.none(), st.sampled_from(MissReason)),
)
drawings = st.builds(
    Drawn,
    st.lists(st.integers(-2, 2**33).map(SampledToken), min_size=1, max_size=4).map(tuple),
)
replies = st.one_of(
    refusals,
    st.builds(ActivationReply, st.integers(1, 8).map(activation), lengths),
    st.builds(
        TokenReply,
        st.one_of(st.none(), drawings),
        st.text(max_size=3),
        lengths,
    ),
)
refs = st.builds(StepRef, st.integers(0, 3), st.integers(0, 3), st.integers(0, 3))
routes = st.builds(
    route_of,
    st.integers(1, 4),
    kv_cache=st.booleans(),
    multi_token=st.booleans(),
    prefix=st.sampled_from(["node", "other"]),
)
strays: st.SearchStrategy[GenerationEvent] = st.one_of(
    st.builds(Replied, refs, replies),
    st.builds(Lost, refs, st.just("lost")),
    st.builds(Alive, refs),
    st.builds(Rerouted, routes),
    st.builds(NoRoute, st.just("none")),
    st.sampled_from([Tick(), Started(), Delivered()]),
)


class RIGHT:
    """Stands for the answer a sound node gives."""


answers: st.SearchStrategy[Reply | type[RIGHT] | None] = st.one_of(
    st.just(RIGHT), st.just(RIGHT), st.just(RIGHT), st.none(), replies
)
moves = st.lists(st.tuples(answers, st.lists(strays, max_size=2), st.floats(0.0, 5.0)), max_size=40)


class Player:
    """Answers whatever is asked: by the script first, then as a sound cluster would."""

    def __init__(self, talk: Talk) -> None:
        self.talk = talk
        self.asked: object = None
        self.hops = 3
        self.note(talk.actions)

    def note(self, actions: list[GenerationAction]) -> None:
        for action in actions:
            if isinstance(action, Forward | Reroute | Emit):
                self.asked = action

    def tell(self, event: GenerationEvent) -> None:
        actions = self.talk.tell(event)
        if isinstance(event, Rerouted) and any(isinstance(a, Forward) for a in actions):
            self.hops = len(event.route.hops)
        self.note(actions)

    def turn(self, answer: object) -> None:
        asked, self.asked = self.asked, None
        if self.talk.waiting:  # of several questions the oldest is answered first
            asked = self.talk.open
        match asked:
            case Emit():
                self.tell(Delivered())
            case Reroute():
                self.tell(Rerouted(route_of()))
            case Forward() if answer is None:
                self.tell(Lost(asked.ref, "lost"))
            case Forward() if answer is RIGHT:
                self.tell(Alive(asked.ref))
                self.tell(Replied(asked.ref, self.talk.right_answer(7, self.hops)))
            case Forward():
                self.tell(Replied(asked.ref, answer))  # type: ignore[arg-type]
            case _:
                deadline = self.talk.machine.deadline()
                self.talk.now = max(self.talk.now, deadline or 0.0)
                self.tell(Tick())


def play(talk: Talk, script: list[tuple[object, list[GenerationEvent], float]]) -> None:
    player = Player(talk)
    for answer, events, pause_s in script:
        talk.now += pause_s
        for event in events:
            player.tell(event)
        player.turn(answer)
    for _ in range(500):
        if talk.end is not None:
            return
        player.turn(RIGHT)
    raise AssertionError("the generation does not end")


@settings(max_examples=100, deadline=None)
@given(moves, st.integers(1, 10), st.integers(1, 6))
def test_any_answers_end_in_exactly_one_finish_or_fail(script, prompt_length, tokens_max):
    talk = Talk(prompt=tuple(range(prompt_length)), tokens_max=tokens_max, deadline_at=500.0)

    play(talk, script)

    ends = [action for action in talk.actions if isinstance(action, Finish | Fail)]
    assert len(ends) == 1
    assert talk.actions[-1] is ends[0]
    assert len([action for action in talk.actions if isinstance(action, Release)]) <= 1
    assert len(talk.tokens) <= tokens_max
    assert talk.machine.deadline() is None


@settings(max_examples=100, deadline=None)
@given(moves, st.integers(1, 10))
def test_every_question_extends_the_prompt_by_exactly_what_was_emitted(script, prompt_length):
    """What the nodes are sent is at all times the prompt and the emitted tokens, in order."""
    prompt = tuple(range(prompt_length))
    talk = Talk(prompt=prompt, tokens_max=6, deadline_at=500.0)

    play(talk, script)

    emitted: list[int] = []
    for action in talk.actions:
        if isinstance(action, Emit):
            emitted.append(action.token.token_id)
        if isinstance(action, Forward):
            request = action.request
            known = (*prompt, *emitted)
            past, new = request.past_length, request.tokens
            assert known[past : past + len(new)] == new
            assert request.want_token == (past + len(new) == len(known))
            assert (past > 0) == (request.mode is Mode.DECODE)


@settings(max_examples=100, deadline=None)
@given(moves)
def test_attempts_only_rise_and_steps_never_repeat(script):
    talk = Talk(deadline_at=500.0)

    play(talk, script)

    refs = [forward.ref for forward in talk.forwards]
    assert len(set(refs)) == len(refs)
    assert all(a.attempt <= b.attempt for a, b in pairwise(refs))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(strays, st.just(Cancelled())), max_size=30), st.floats(0.0, 1000.0))
def test_no_order_of_events_raises(events, pause_s):
    talk = Talk()

    for event in events:
        talk.now += pause_s
        talk.tell(event)
        deadline = talk.machine.deadline()
        assert deadline is None or deadline <= 1000.0
