"""A cache never changes a token: every prompt length, every step a state may be lost at."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.families import LAYERS, VOCAB_SIZE, save_family
from tests.family_rows import DISTINCT_MIN, TOLERANCE, prompt
from tests.shard_chain import Answer, Chain, load_chain, unsplit

from meshnet.core.vocabulary import KVCacheMiss, MissReason

LENGTHS = [1, 2, 4, 5, 6, 8, 9, 16, 33, 100, 200]
Family = Callable[[str], tuple[Path, Chain]]


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Family:
    made: dict[str, tuple[Path, Chain]] = {}

    def make(name: str) -> tuple[Path, Chain]:
        if name not in made:
            path = save_family(tmp_path_factory.mktemp(name), name)
            made[name] = path, Chain(load_chain(path, (2, 3), LAYERS))
        return made[name]

    return make


def ids_of(length: int) -> list[int]:
    generator = torch.Generator().manual_seed(length)
    return torch.randint(3, VOCAB_SIZE, (length,), generator=generator).tolist()


def assert_same(answer: Answer, reference: Answer) -> None:
    assert answer.difference(reference) <= TOLERANCE
    assert answer.ids == reference.ids or len(set(reference.ids)) < DISTINCT_MIN


@pytest.mark.parametrize("length", LENGTHS)
def test_prompts_of_any_length_continue_as_the_unsplit_model_does(family: Family, length: int):
    """Pit A67: prefilled at once or in chunks of five, and then decoded."""
    path, chain = family("llama")
    reference = unsplit(path, ids_of(length), 5)

    at_once = chain.generate(ids_of(length), 5)
    in_chunks = chain.generate(ids_of(length), 5, chunk=5)
    stateless = chain.generate(ids_of(length), 5, cached=False)

    assert at_once.ids == in_chunks.ids == stateless.ids == reference.ids


@pytest.mark.parametrize("name", ["llama", "mistral-swa", "qwen3_next", "deepseek_v3"])
def test_a_refill_at_any_step_continues_as_if_nothing_had_been_lost(family: Family, name: str):
    """Pits A67 and A80: every state is lost before each step in turn."""
    path, chain = family(name)
    reference = unsplit(path, prompt(), 12)

    for step in range(1, 12):
        assert_same(chain.generate(prompt(), 12, miss_at=step), reference)


@pytest.mark.parametrize("name", ["qwen3_next", "lfm2", "granitemoehybrid"])
def test_a_replayed_step_of_a_recurrent_state_is_a_miss_and_a_refill_is_right(
    family: Family, name: str
):
    """Pit A72: such a state cannot be rolled back, so off by one is a miss like any other."""
    path, chain = family(name)
    reference = unsplit(path, prompt(), 12)
    first = chain.generate(prompt(), 6)
    ids = prompt() + first.ids
    past = len(ids) - 1
    chain.step(ids[past:], past)

    with pytest.raises(KVCacheMiss) as replayed:
        chain.step(ids[past:], past)
    chain.drop()
    token = chain.step(ids, 0)

    assert replayed.value.reason is MissReason.PAST_LENGTH
    assert token is not None
    difference = float((chain.logits[-1] - reference.logits[6]).abs().max())
    assert difference <= TOLERANCE


@pytest.mark.parametrize("name", ["mistral-swa", "gemma3"])
def test_a_full_window_counts_positions_and_not_what_it_still_holds(family: Family, name: str):
    """Pit A73: window 8, prompt 20, 20 tokens more; the length agreed on is that of the text."""
    path, chain = family(name)
    reference = unsplit(path, ids_of(20), 20)

    answer = chain.generate(ids_of(20), 20)

    assert_same(answer, reference)
    assert {state.length for state in chain.states if state is not None} == {39}
