"""The toy shard equals its oracle, and every kind of damage to its state shows in the output."""

from itertools import accumulate, pairwise

import pytest

from meshnet.core.vocabulary import (
    Activation,
    BadField,
    Drawn,
    LayerRange,
    SamplingParams,
    ShardStep,
    StepTorn,
    WrongShard,
)
from meshnet.simulation.faults import CALM
from meshnet.simulation.plan import plan
from meshnet.simulation.toy_shard import ToyShard, ToyState, oracle

LAYERS = 8
PROMPT = (3, 1, 4, 1, 5)
SEEDED = SamplingParams(temperature=0.9, seed=7)
PENALISED = SamplingParams(
    presence_penalty=0.7, frequency_penalty=0.5, repetition_penalty=1.4, prompt_length=len(PROMPT)
)


def through(
    shards: list[ToyShard], states: list[ToyState], tokens: tuple[int, ...], past_length: int,
    sampling: SamplingParams,
) -> int:  # fmt: skip
    output: Activation | Drawn | None = None
    for shard, state in zip(shards, states, strict=True):
        before = output if isinstance(output, Activation) else None
        layers = shard.description.layers
        step = ShardStep(layers, past_length, len(tokens), tokens, before, sampling)
        output = shard.run(step, state)
    assert isinstance(output, Drawn)
    return output.ids[-1]


def split(*cuts: int) -> tuple[list[ToyShard], list[ToyState]]:
    edges = (0, *cuts, LAYERS)
    ranges = [LayerRange(a, b) for a, b in pairwise(edges)]
    shards = [ToyShard(layers, layers_total=LAYERS) for layers in ranges]
    return shards, [shard.new_state(shard.description.layers) for shard in shards]


def cached_generation(sampling: SamplingParams, count: int, *cuts: int) -> tuple[int, ...]:
    shards, states = split(*cuts)
    tokens = list(PROMPT)
    new, past = PROMPT, 0
    for _ in range(count):
        token = through(shards, states, new, past, sampling)
        past, new = past + len(new), (token,)
        tokens.append(token)
    return tuple(tokens[len(PROMPT) :])


TOLD = SamplingParams(forced=(9, 2, 6), prompt_length=len(PROMPT) + 3)
KEPT = SamplingParams(temperature=1.0, seed=3, grammar="3", prompt_length=len(PROMPT))


@pytest.mark.parametrize("sampling", [SamplingParams(), SEEDED, PENALISED, TOLD, KEPT])
@pytest.mark.parametrize("cuts", [(), (3,), (3, 6), (1, 2, 7)])
def test_cached_generation_over_any_split_equals_the_oracle(sampling, cuts):
    assert cached_generation(sampling, 12, *cuts) == oracle(PROMPT, sampling, 12, LAYERS)


def test_a_lost_tail_history_changes_a_penalised_token():
    """The tail's ids are session state: a refill that forgot them must be visible."""
    expected = oracle(PROMPT, PENALISED, 6, LAYERS)
    shards, states = split(4)
    new, past, tokens = PROMPT, 0, []
    for _ in range(6):
        states[-1].history.clear()
        token = through(shards, states, new, past, PENALISED)
        past, new = past + len(new), (token,)
        tokens.append(token)

    assert tuple(tokens) != expected


def rows_after(state_of: str) -> bytes:
    shard = ToyShard(LayerRange(0, 4), layers_total=LAYERS)
    layers = shard.description.layers
    state = shard.new_state(layers)
    first = () if state_of == "lost" else (1, 2, 2) if state_of == "doubled" else (1, 2)
    past = 3 if state_of == "displaced" else 2
    if first:
        shard.run(ShardStep(layers, 0, len(first), first, None, SamplingParams()), state)
    out = shard.run(ShardStep(layers, past, 1, (9,), None, SamplingParams()), state)
    assert isinstance(out, Activation)
    return bytes(out.data)


@pytest.mark.parametrize("damage", ["lost", "doubled", "displaced"])
def test_a_damaged_cache_changes_the_output(damage):
    assert rows_after(damage) != rows_after("whole")


def test_a_torn_step_leaves_layers_of_unequal_length():
    shard = ToyShard(LayerRange(0, 4), layers_total=LAYERS, fail_after=lambda: 2)
    layers = shard.description.layers
    state = shard.new_state(layers)

    with pytest.raises(StepTorn):
        shard.run(ShardStep(layers, 0, 3, (1, 2, 3), None, SamplingParams()), state)

    assert state.lengths == [3, 3, 0, 0]


def test_a_step_outside_the_shards_layers_is_refused_before_the_state_is_touched():
    shard = ToyShard(LayerRange(2, 4), layers_total=LAYERS)
    state = shard.new_state(LayerRange(2, 4))

    with pytest.raises(WrongShard):
        shard.run(ShardStep(LayerRange(0, 4), 0, 1, (1,), None, SamplingParams()), state)
    with pytest.raises(BadField):
        shard.run(ShardStep(LayerRange(2, 4), 0, 1, (1,), None, SamplingParams()), state)

    assert state.lengths == [0, 0]


def test_a_prefill_chunk_that_is_not_the_last_draws_nothing():
    shard = ToyShard(LayerRange(0, LAYERS), layers_total=LAYERS)
    layers = shard.description.layers
    state = shard.new_state(layers)

    chunk = ShardStep(layers, 0, 2, (1, 2), None, SEEDED, want_token=False)
    assert shard.run(chunk, state) is None
    last = shard.run(ShardStep(layers, 2, 3, (3, 4, 5), None, SEEDED), state)

    assert isinstance(last, Drawn)
    assert last.ids == oracle((1, 2, 3, 4, 5), SEEDED, 1, LAYERS)


def test_logprobs_are_the_log_softmax_of_the_raw_scores():
    shard = ToyShard(LayerRange(0, LAYERS), layers_total=LAYERS)
    sampling = SamplingParams(logprobs=20, logit_bias=((5, 100.0),))

    result = shard.run(ShardStep(LayerRange(0, LAYERS), 0, 2, (1, 2), None, sampling), None)

    assert isinstance(result, Drawn)
    (drawn,) = result.tokens
    assert drawn.token_id == 5
    assert [entry.logprob for entry in drawn.top] == sorted(
        (entry.logprob for entry in drawn.top), reverse=True
    )
    assert all(entry.logprob < 0 for entry in drawn.top)


def test_what_is_told_is_drawn_and_ends_nothing_and_then_the_rest():
    told = oracle(PROMPT, TOLD, 6, LAYERS, stop_ids=frozenset({2}))

    assert told[:3] == (9, 2, 6)
    assert told[3:] == oracle((*PROMPT, 9, 2, 6), SamplingParams(), 3, LAYERS, frozenset({2}))


def test_an_answer_is_kept_to_its_grammar_by_all_its_ids():
    answer = oracle(PROMPT, KEPT, 20, LAYERS)

    assert all(total % 3 for total in accumulate(answer))
    assert any(total % 3 == 0 for total in accumulate(oracle(PROMPT, SEEDED, 20, LAYERS)))


def test_clusters_have_prompts_scored_and_answers_kept_to_grammars():
    asked = [chat.sampling for seed in range(30) for chat in plan(seed, CALM).chats]

    assert sum(bool(each.forced) for each in asked) > 10
    assert sum(bool(each.grammar) for each in asked) > 10
