"""Guesses verified in one step of a torch shard, and sessions shortened afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.families import LAYERS
from tests.shard_chain import load_chain

from meshnet.core.vocabulary import (
    Activation,
    Drawn,
    KVCacheMiss,
    LayerRange,
    SamplingParams,
    ShardStep,
)
from meshnet.engine.history import History
from meshnet.engine.shard import TorchModelShard

PROMPT = (7, 8, 9, 10, 11)
SAMPLINGS = {
    "greedy": SamplingParams(logprobs=2, prompt_length=5),
    "seeded": SamplingParams(temperature=1.0, seed=11, prompt_length=5),
    "penalised": SamplingParams(
        temperature=0.7,
        seed=3,
        repetition_penalty=1.4,
        presence_penalty=0.8,
        frequency_penalty=0.6,
        prompt_length=5,
    ),
}


class Session:
    """One session on two shards."""

    def __init__(self, shards: Sequence[TorchModelShard], sampling: SamplingParams) -> None:
        self.shards, self.sampling = shards, sampling
        self.states: list[Any] = [shard.new_state(shard.description.layers) for shard in shards]

    def step(self, tokens: Sequence[int], past: int, drafts: int = 0) -> Drawn:
        step = ShardStep(
            LayerRange(0, 3), past, len(tokens), tuple(tokens), None, self.sampling, drafts=drafts
        )
        entering = self.shards[0].run(step, self.states[0])
        assert isinstance(entering, Activation)
        step = replace(step, layers=LayerRange(3, LAYERS), activation=entering)
        drawn = self.shards[1].run(step, self.states[1])
        assert isinstance(drawn, Drawn)
        return drawn

    def truncate(self, length: int) -> None:
        for shard, state in zip(self.shards, self.states, strict=True):
            shard.truncate(state, length)

    def plain(self, tokens: int) -> list[Any]:
        """Draw without guesses."""
        drawn = [self.step(PROMPT, 0).tokens[0]]
        for past in range(len(PROMPT), len(PROMPT) + tokens - 1):
            drawn += self.step((drawn[-1].token_id,), past).tokens
        return drawn


@pytest.fixture(scope="module")
def shards(llama: Path) -> list[TorchModelShard]:
    return load_chain(llama, (3,), LAYERS)


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("right", [0, 1, 2, 3])
def test_a_verified_step_draws_what_single_steps_would_have_drawn(shards, sampling, right):
    """Right guesses cost no draw, wrong ones leave none behind, penalties see the accepted."""
    expected = Session(shards, sampling).plain(8)
    ids = [token.token_id for token in expected]
    session = Session(shards, sampling)
    assert session.step(PROMPT, 0).ids == (ids[0],)
    guesses = [*ids[1 : 1 + right], *((token + 1) % 64 for token in ids[1 + right : 4])]

    drawn = session.step((ids[0], *guesses), len(PROMPT), drafts=3)

    assert drawn.ids == tuple(ids[1 : right + 2])
    past = len(PROMPT) + 1 + right
    session.truncate(past)
    rest = [
        token
        for at in range(right + 1, 7)
        for token in session.step((ids[at],), past - right - 1 + at).tokens
    ]
    assert [token.token_id for token in rest] == ids[right + 2 :]
    logprobs = [token.logprob for token in (*drawn.tokens, *rest)]
    wanted = [token.logprob for token in expected[1:]]
    if sampling.logprobs:
        assert torch.allclose(torch.tensor(logprobs), torch.tensor(wanted), atol=1e-4)


def test_guesses_of_several_sessions_are_verified_together(shards):
    """One shortened, one not, with unlike numbers of guesses: each gets what it would alone."""
    head, tail = shards
    sampling = SAMPLINGS["penalised"]
    ids = [token.token_id for token in Session(shards, sampling).plain(6)]
    one, other = Session(shards, sampling), Session(shards, sampling)
    for session in (one, other):
        session.step(PROMPT, 0)
    one.step((ids[0], (ids[1] + 1) % 64), len(PROMPT), drafts=1)
    one.truncate(len(PROMPT) + 1)
    steps = [
        ShardStep(
            LayerRange(0, 3), past, len(tokens), tokens, None, sampling, drafts=len(tokens) - 1
        )
        for past, tokens in (
            (len(PROMPT) + 1, (ids[1], ids[2], ids[3])),
            (len(PROMPT), (ids[0], (ids[1] + 1) % 64)),
        )
    ]

    between = head.run_batch(
        [(step, session.states[0]) for step, session in zip(steps, (one, other), strict=True)]
    )
    steps = [
        replace(step, layers=LayerRange(3, LAYERS), activation=activation)
        for step, activation in zip(steps, between, strict=True)
    ]
    drawn = tail.run_batch(
        [(step, session.states[1]) for step, session in zip(steps, (one, other), strict=True)]
    )

    assert [each.ids for each in drawn] == [tuple(ids[2:5]), (ids[1],)]


def test_a_shortened_session_holds_what_it_did_at_that_length(shards):
    session = Session(shards, SAMPLINGS["penalised"])
    session.step(PROMPT, 0)
    before = [state.length for state in session.states]
    once = session.step((3, 4, 5), len(PROMPT))

    session.truncate(len(PROMPT))

    assert [state.length for state in session.states] == before
    assert list(session.states[1].history) == list(PROMPT)
    assert session.step((3, 4, 5), len(PROMPT)) == once


def test_a_session_cannot_be_shortened_to_more_than_it_holds(shards):
    session = Session(shards, SAMPLINGS["greedy"])
    session.step(PROMPT, 0)

    with pytest.raises(KVCacheMiss, match="cannot be shortened"):
        session.truncate(len(PROMPT) + 1)


@settings(derandomize=True, deadline=None)
@given(
    st.integers(0, 4),
    st.lists(st.tuples(st.integers(0, 8), st.lists(st.integers(0, 5), max_size=6)), max_size=8),
)
def test_counts_of_a_shortened_history_are_those_of_its_ids(start, changes):
    history = History()
    for cut, ids in changes:
        history.truncate(max(len(history) - cut, 0))
        history.extend(ids)
        for begin in (0, start):
            found, counts = history.counts(begin)
            expected = {token: history[begin:].count(token) for token in history[begin:]}
            assert dict(zip(found.tolist(), counts.tolist(), strict=True)) == expected
