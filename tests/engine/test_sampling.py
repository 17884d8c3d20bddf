"""The tail's draw, against transformers' processors and by its own rules."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from meshnet.core.vocabulary import BadField, NumericalError, SamplingParams
from meshnet.engine.history import History
from meshnet.engine.sampling import LOGPROB_FLOOR, Sampler, uniform

VOCAB = 3000
SAMPLER = Sampler()


def logits_of(seed: int, vocab_size: int = VOCAB, width: float = 3.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(vocab_size, generator=generator) * width


def transformers_probabilities(
    logits: torch.Tensor, history: list[int], sampling: SamplingParams, position: int
) -> torch.Tensor:
    """The distribution transformers would draw from; OpenAI's two penalties by their formula."""
    ids = torch.tensor([history])
    scores = logits.double()[None]
    if sampling.repetition_penalty != 1.0:
        scores = RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)(ids, scores)
    for token in history[sampling.prompt_length :]:
        scores[0, token] -= sampling.frequency_penalty
    for token in set(history[sampling.prompt_length :]):
        scores[0, token] -= sampling.presence_penalty
    if sampling.logit_bias:
        bias = {(id_,): -math.inf if value == -100 else value for id_, value in sampling.logit_bias}
        scores = SequenceBiasLogitsProcessor(bias)(ids, scores)
    if position < sampling.banned_until:
        scores[0, list(sampling.banned)] = -math.inf
    warpers = LogitsProcessorList([TemperatureLogitsWarper(sampling.temperature)])
    if sampling.top_k:
        warpers.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1.0:
        warpers.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p:
        warpers.append(MinPLogitsWarper(sampling.min_p))
    return warpers(ids, scores).softmax(-1)[0]


def assert_same_distribution(
    logits: torch.Tensor, history: list[int], sampling: SamplingParams, position: int = 99
) -> None:
    expected = transformers_probabilities(logits, history, sampling, position)
    ids, probabilities = SAMPLER.distribution(logits, History(history), sampling, position)

    ours = torch.zeros(len(logits), dtype=torch.float64)
    ours[ids] = probabilities
    assert torch.equal(ours.nonzero(), expected.nonzero())
    assert torch.allclose(ours, expected, rtol=0, atol=1e-6)


GRID = list(
    itertools.product((0.3, 1.0, 2.0), (0, 2, 50, 5000), (1.0, 0.95, 0.5, 0.01), (0.0, 0.05, 1.0))
)


@pytest.mark.parametrize(("temperature", "top_k", "top_p", "min_p"), GRID)
def test_the_candidates_are_those_of_transformers(
    temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    """Pit A37."""
    sampling = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)

    for seed in range(2):
        assert_same_distribution(logits_of(seed), [1, 2, 3], sampling)


@pytest.mark.parametrize("top_p", [0.5, 0.9, 0.999, 0.9999999])
def test_a_nucleus_wider_than_the_first_candidates_is_that_of_transformers(top_p: float) -> None:
    sampling = SamplingParams(temperature=2.0, top_p=top_p)
    logits = logits_of(5, vocab_size=20_000, width=1.0)
    # transformers keeps what its ascending sum exceeds 1 - p by, so stay clear of its rounding.
    expected = transformers_probabilities(logits, [1], sampling, 9)

    ids, _ = SAMPLER.distribution(logits, [1], sampling, 9)

    assert len(ids) > 1024
    assert torch.equal(ids, expected.nonzero().reshape(-1))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10_000),
    history=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=40),
    prompt=st.integers(0, 40),
    sampling=st.builds(
        SamplingParams,
        temperature=st.sampled_from([0.5, 1.0, 1.7]),
        top_k=st.sampled_from([0, 1, 40]),
        top_p=st.sampled_from([1.0, 0.9]),
        min_p=st.sampled_from([0.0, 0.02]),
        presence_penalty=st.sampled_from([0.0, 1.5, -2.0]),
        frequency_penalty=st.sampled_from([0.0, 0.7, -2.0]),
        repetition_penalty=st.sampled_from([1.0, 1.3, 0.5]),
        logit_bias=st.sampled_from([(), ((3, 20.0),), ((5, -100.0), (9, -3.5))]),
        banned=st.sampled_from([(), (2, 7)]),
        banned_until=st.sampled_from([0, 50]),
    ),
)
def test_penalties_biases_and_bans_are_those_of_transformers(
    seed: int, history: list[int], prompt: int, sampling: SamplingParams
) -> None:
    """Pit A40."""
    sampling = replace(sampling, prompt_length=min(prompt, len(history)))

    assert_same_distribution(logits_of(seed), history, sampling, position=len(history))


def test_every_draw_is_a_candidate_and_the_draws_follow_the_distribution() -> None:
    """Chi-square over keyed draws; seeds are fixed, so the figure is too."""
    logits = logits_of(3, vocab_size=12, width=1.0)
    sampling = SamplingParams(temperature=1.0, top_k=8, seed=77)
    ids, probabilities = SAMPLER.distribution(logits, [], sampling, 0)
    draws = 4000

    counts = dict.fromkeys(ids.tolist(), 0)
    for position in range(draws):
        counts[SAMPLER.draw(logits, [], sampling, position).token_id] += 1

    expected = dict(zip(ids.tolist(), (probabilities * draws).tolist(), strict=True))
    chi_square = sum((counts[id_] - expected[id_]) ** 2 / expected[id_] for id_ in expected)
    assert chi_square < 18.48  # 99 % point at 7 degrees of freedom


def test_the_uniform_numbers_are_keyed_by_seed_and_position() -> None:
    numbers = {uniform(seed, position) for seed in range(30) for position in range(30)}

    assert len(numbers) == 900
    assert all(0.0 <= number < 1.0 for number in numbers)
    assert 0.45 < sum(numbers) / 900 < 0.55
    assert uniform(2**64 - 1, 2**24) == uniform(2**64 - 1, 2**24)


def test_a_draw_does_not_depend_on_the_draws_before_it() -> None:
    """Pit A39: what makes a refill, a replacement tail or a verified draft draw the same token."""
    sampling = SamplingParams(temperature=1.5, seed=4)
    forwards = [SAMPLER.draw(logits_of(n), [], sampling, n) for n in range(20)]

    backwards = [Sampler().draw(logits_of(n), [], sampling, n) for n in reversed(range(20))]

    assert forwards == backwards[::-1]


def test_seed_zero_is_a_seed_like_any_other() -> None:
    """Pit A39."""

    def text(seed: int) -> list[int]:
        sampling = SamplingParams(temperature=1.5, seed=seed)
        return [SAMPLER.draw(logits_of(1), [], sampling, n).token_id for n in range(10)]

    assert text(0) == text(0)
    assert text(0) != text(1)


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(),
        SamplingParams(temperature=1e-9),
        SamplingParams(temperature=1.3, top_k=1, seed=5),
        SamplingParams(temperature=1.3, top_p=0.0, seed=5),
    ],
)
def test_greedy_in_all_its_spellings_is_the_argmax(sampling: SamplingParams) -> None:
    """Pits A35 and A36."""
    for seed in range(20):
        logits = logits_of(seed)
        assert SAMPLER.draw(logits, [], sampling, 3).token_id == int(logits.argmax())


@pytest.mark.parametrize(
    "sampling", [SamplingParams(), SamplingParams(temperature=1.0, top_k=1, seed=3)]
)
def test_equal_logits_go_to_the_lowest_id(sampling: SamplingParams) -> None:
    """Pit A36."""
    logits = torch.zeros(5000)
    logits[[700, 4000, 4900]] = 2.0

    assert SAMPLER.draw(logits, [], sampling, 0).token_id == 700


def test_top_k_cuts_equal_logits_by_id() -> None:
    logits = torch.zeros(5000)
    logits[10] = 1.0

    ids, _ = SAMPLER.distribution(logits, [], SamplingParams(temperature=1.0, top_k=3), 0)

    assert ids.tolist() == [0, 1, 10]


def test_presence_and_frequency_leave_the_prompt_alone() -> None:
    """Pit A40."""
    logits = torch.tensor([3.0, 2.9, 0.0])
    prompt_only = SamplingParams(presence_penalty=2.0, frequency_penalty=2.0, prompt_length=4)

    assert SAMPLER.draw(logits, [0, 0, 0, 0], prompt_only, 4).token_id == 0
    assert SAMPLER.draw(logits, [0, 0, 0, 0, 0], prompt_only, 5).token_id == 1


def test_repetition_counts_the_prompt_and_pushes_down_negative_logits_too() -> None:
    """Pit A40."""
    logits = torch.tensor([-1.0, -1.1, -9.0])

    token = SAMPLER.draw(logits, [0], SamplingParams(repetition_penalty=1.5, prompt_length=1), 1)

    assert token.token_id == 1


def test_a_bias_of_plus_100_forces_and_of_minus_100_bans() -> None:
    """Pit A41."""
    logits = torch.tensor([500.0, 1.0, 0.0])

    forced = SAMPLER.draw(logits / 100, [], SamplingParams(logit_bias=((2, 100.0),)), 0)
    banned = SAMPLER.draw(logits, [], SamplingParams(logit_bias=((0, -100.0),)), 0)

    assert forced.token_id == 2
    assert banned.token_id == 1


def test_the_bias_is_applied_before_the_temperature() -> None:
    """Pit A41."""
    logits = torch.tensor([2.0, 0.0])
    sampling = SamplingParams(temperature=0.5, logit_bias=((1, 2.0),))

    _, probabilities = SAMPLER.distribution(logits, [], sampling, 0)

    assert probabilities.tolist() == pytest.approx([0.5, 0.5])


def test_banned_ids_are_free_again_from_the_position_named() -> None:
    logits = torch.tensor([5.0, 1.0])
    sampling = SamplingParams(banned=(0,), banned_until=7)

    assert SAMPLER.draw(logits, [], sampling, 6).token_id == 1
    assert SAMPLER.draw(logits, [], sampling, 7).token_id == 0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_not_numbers_are_refused(bad: float) -> None:
    """Pit A75."""
    logits = logits_of(0)
    logits[17] = bad

    with pytest.raises(NumericalError, match="finite"):
        SAMPLER.draw(logits, [], SamplingParams(), 0)


def test_banning_every_token_is_an_error_that_says_so() -> None:
    sampling = SamplingParams(logit_bias=((0, -100.0),), banned=(1,), banned_until=9)

    with pytest.raises(NumericalError, match="no token is left"):
        SAMPLER.draw(torch.zeros(2), [], sampling, 0)


def test_ids_outside_the_vocabulary_are_named() -> None:
    with pytest.raises(BadField, match="logit_bias"):
        SAMPLER.draw(torch.zeros(4), [], SamplingParams(logit_bias=((4, 1.0),)), 0)
    with pytest.raises(BadField, match="banned"):
        SAMPLER.draw(torch.zeros(4), [], SamplingParams(banned=(4,), banned_until=5), 0)


def test_logprobs_are_of_the_raw_logits_sorted_and_finite() -> None:
    logits = torch.tensor([0.0, 2.0, -math.inf, 1.0])
    sampling = SamplingParams(logit_bias=((1, -100.0),), logprobs=4)

    token = SAMPLER.draw(logits, [], sampling, 0)

    raw = logits.log_softmax(0)
    assert token.token_id == 3
    assert token.logprob == pytest.approx(float(raw[3]), abs=1e-6)
    assert [entry.token_id for entry in token.top] == [1, 3, 0]
    assert [entry.logprob for entry in token.top] == pytest.approx(raw[[1, 3, 0]].tolist())


def test_a_logprob_of_minus_infinity_is_the_floor() -> None:
    logits = torch.tensor([0.0, -1e38])

    token = SAMPLER.draw(logits, [], SamplingParams(logit_bias=((0, -100.0),), logprobs=0), 0)

    assert token.logprob == LOGPROB_FLOOR
    assert token.top == ()


def test_the_callers_logits_are_left_alone() -> None:
    logits = logits_of(2)
    before = logits.clone()
    sampling = SamplingParams(
        temperature=0.7, repetition_penalty=1.2, logit_bias=((1, 5.0),), logprobs=3
    )

    SAMPLER.draw(logits, [1, 2], sampling, 2)

    assert torch.equal(logits, before)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    st.lists(st.lists(st.integers(0, 99), max_size=90), max_size=8),
    st.lists(st.integers(0, 60), min_size=1, max_size=3),
)
def test_counts_that_grew_equal_counts_made_afresh(
    chunks: list[list[int]], starts: list[int]
) -> None:
    grown = History()
    ids: list[int] = []
    for chunk in chunks:
        grown.extend(chunk)
        ids += chunk
        for start in starts:
            tokens, counts = grown.counts(start)
            counted = dict(zip(tokens.tolist(), counts.tolist(), strict=True))
            assert counted == {token: ids[start:].count(token) for token in ids[start:]}
    assert list(grown) == ids


def test_half_precision_and_float_logits_draw_alike() -> None:
    logits = logits_of(8).to(torch.bfloat16)
    sampling = SamplingParams(temperature=1.0, top_p=0.9, seed=3)

    for position in range(10):
        half = SAMPLER.draw(logits, [], sampling, position)
        assert half == SAMPLER.draw(logits.float(), [], sampling, position)


def test_what_is_told_is_drawn_with_its_own_log_probability_and_nothing_beyond_it() -> None:
    sampling = SamplingParams(
        logprobs=3, prompt_length=5, forced=(9, 2), banned=(9,), banned_until=10
    )
    logits = logits_of(4)

    told = [SAMPLER.draw(logits, [], sampling, position) for position in (3, 4)]

    assert [token.token_id for token in told] == [9, 2]
    expected = logits.log_softmax(-1).tolist()
    assert [token.logprob for token in told] == pytest.approx([expected[9], expected[2]], abs=1e-5)
    free = SAMPLER.draw(logits, [], sampling, 5)
    assert free == SAMPLER.draw(logits, [], replace(sampling, forced=()), 5)
    assert SAMPLER.draw(logits, [], sampling, 2) == free
