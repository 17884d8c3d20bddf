"""The shard with the last layer draws tokens from all ids of the session."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tests.families import LAYERS
from tests.shard_chain import Chain, load_chain
from tests.shard_steps import (
    TAIL,
    hidden_of,
    hidden_step,
)

from meshnet.core.vocabulary import (
    Activation,
    Drawn,
    LayerRange,
    SampledToken,
    SamplingParams,
    ShardStep,
)
from meshnet.engine.shard import TorchModelShard

# --- the tail -------------------------------------------------------------------------------------


def test_the_tail_draws_nothing_when_no_token_is_wanted(tail: TorchModelShard):
    state = tail.new_state(TAIL)

    output = tail.run(hidden_step(TAIL, hidden_of(3), want_token=False), state)

    assert output is None
    assert state.length == 3


def test_penalties_see_all_ids_of_the_session(tail: TorchModelShard):
    """The tail's history is built by the prefill's ids and extended by each decode's."""
    state = tail.new_state(TAIL)
    hidden = hidden_of(3)
    first = tail.run(hidden_step(TAIL, hidden, tokens=(1, 2, 3), want_token=False), state)
    assert first is None
    step = hidden_step(TAIL, hidden_of(1), past=3)
    plain = tail.run(step, _after(tail, hidden, (1, 2, 3)))
    assert isinstance(plain, Drawn)

    # The winner is among the prompt's ids, so a repetition penalty must move it.
    seen = _after(tail, hidden, (1, *plain.ids, 3))
    sampling = SamplingParams(repetition_penalty=50.0, prompt_length=3)
    penalised = tail.run(replace(step, tokens=(4,), sampling=sampling), seen)

    assert isinstance(penalised, Drawn)
    assert penalised.ids != plain.ids


def _after(tail: TorchModelShard, hidden: torch.Tensor, tokens: tuple[int, ...]) -> Any:
    state = tail.new_state(TAIL)
    tail.run(hidden_step(TAIL, hidden, tokens=tokens, want_token=False), state)
    return state


def test_a_peer_that_sends_no_ids_gets_greedy_tokens(tail: TorchModelShard):
    """ADR-0022 knows no ids on the wire, so nothing can be penalised or seeded by position."""
    greedy = tail.run(hidden_step(TAIL, hidden_of(3)), tail.new_state(TAIL))
    hot = SamplingParams(temperature=2.0, seed=3)

    tokens = [
        tail.run(
            hidden_step(TAIL, hidden_of(3), sampling=replace(hot, seed=seed)), tail.new_state(TAIL)
        )
        for seed in range(5)
    ]

    assert tokens == [greedy] * 5


def test_ids_that_come_only_after_a_prefill_without_are_not_taken_for_the_whole(
    tail: TorchModelShard,
):
    """Half a history would penalise and key the draw differently from the refill's."""
    hot = SamplingParams(temperature=2.0, seed=3)

    def draw(sampling: SamplingParams) -> Any:
        state = _after(tail, hidden_of(3), ())
        return tail.run(
            hidden_step(TAIL, hidden_of(1), past=3, tokens=(4,), sampling=sampling), state
        )

    greedy = draw(SamplingParams())
    tokens = [draw(replace(hot, seed=seed)) for seed in range(5)]

    assert tokens == [greedy] * 5


def test_a_seeded_draw_is_the_same_cached_and_stateless(llama: Path):
    chain = Chain(load_chain(llama, (3,), LAYERS))
    head, last = chain.shards
    sampling = SamplingParams(temperature=1.0, seed=11, prompt_length=5)
    ids = (7, 8, 9, 10, 11)

    def draw(tokens: tuple[int, ...], past: int, states: list[Any]) -> SampledToken:
        hop = ShardStep(LayerRange(0, 3), past, len(tokens), tokens, None, sampling)
        entering = head.run(hop, states[0])
        assert isinstance(entering, Activation)
        hop = replace(hop, layers=LayerRange(3, LAYERS), activation=entering)
        token = last.run(hop, states[1])
        assert isinstance(token, Drawn)
        return token.tokens[0]

    states: list[Any] = [shard.new_state(shard.description.layers) for shard in chain.shards]
    draw(ids, 0, states)
    cached = draw((12,), 5, states)
    stateless = draw((*ids, 12), 0, [None, None])

    assert cached.token_id == stateless.token_id
