"""Copies of states that cannot be shortened: taken at marks, bounded, and promised."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from tests.families import LAYERS, VOCAB_SIZE, save_family

from meshnet.core.protocol.marks import MARKS_MAX
from meshnet.core.vocabulary import (
    Activation,
    KVCacheMiss,
    LayerRange,
    SamplingParams,
    ShardStep,
    WeightFormat,
)
from meshnet.engine.loading import load_shard
from meshnet.engine.session_state import SessionState
from meshnet.engine.shard import TorchModelShard

LAYERS_HERE = LayerRange(0, 4)
NAMES = ["lfm2", "qwen3_next", "bamba", "falcon_h1", "nemotron_h", "kimi_linear", "mamba2"]
PROMPT = 20
IDS = torch.randint(3, VOCAB_SIZE, (200,), generator=torch.Generator().manual_seed(2)).tolist()


@pytest.fixture(scope="module")
def shard_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], TorchModelShard]:
    @cache
    def make(name: str) -> TorchModelShard:
        path = save_family(tmp_path_factory.mktemp(name), name)
        return load_shard(path, LAYERS_HERE, weights=WeightFormat.INT8)

    return make


def ran(
    shard: TorchModelShard,
    state: SessionState,
    start: int,
    stop: int,
    *,
    want_token: bool = True,
    first: int = 0,
) -> bytes:
    """What leaves the layers for positions [start, stop); their ids are those from `first` on."""
    ids = tuple(IDS[first + start : first + stop])
    step = ShardStep(
        LAYERS_HERE, start, stop - start, ids, None, SamplingParams(), want_token=want_token
    )
    leaving = shard.run(step, state)
    assert isinstance(leaving, Activation)
    return bytes(leaving.data)


def turn(shard: TorchModelShard) -> tuple[SessionState, list[bytes]]:
    """A session after a prompt and four tokens, and what each step gave."""
    state = shard.new_state(LAYERS_HERE)
    gave = [ran(shard, state, 0, PROMPT)]
    gave += [ran(shard, state, at, at + 1) for at in range(PROMPT, PROMPT + 4)]
    return state, gave


@pytest.mark.parametrize("name", NAMES)
def test_a_session_goes_on_from_a_mark_as_if_it_had_never_been_longer(
    shard_of: Callable[[str], TorchModelShard], name: str
):
    """Pit A72."""
    shard = shard_of(name)
    state, gave = turn(shard)

    shard.truncate(state, PROMPT)

    assert state.length == PROMPT
    assert [ran(shard, state, at, at + 1) for at in range(PROMPT, PROMPT + 4)] == gave[1:]


@pytest.mark.parametrize("name", NAMES)
def test_it_goes_back_more_than_once(shard_of: Callable[[str], TorchModelShard], name: str):
    """The copy stays what it is, whatever runs on what was made from it."""
    shard = shard_of(name)
    state, gave = turn(shard)
    for first in (50, 90):
        shard.truncate(state, PROMPT)
        ran(shard, state, PROMPT, PROMPT + 6, first=first)

    shard.truncate(state, PROMPT)

    assert state.marks.lengths == tuple(state.cache.copies) == (PROMPT,)
    assert ran(shard, state, PROMPT, PROMPT + 1) == gave[1]


@pytest.mark.parametrize("length", [PROMPT - 1, PROMPT + 1, PROMPT + 5])
def test_no_other_length_will_do_and_the_session_stays(
    shard_of: Callable[[str], TorchModelShard], length: int
):
    shard = shard_of("qwen3_next")
    state, _ = turn(shard)
    other, _ = turn(shard)

    with pytest.raises(KVCacheMiss, match="cannot be shortened"):
        shard.truncate(state, length)

    assert ran(shard, state, PROMPT + 4, PROMPT + 5) == ran(shard, other, PROMPT + 4, PROMPT + 5)


@pytest.mark.parametrize("name", NAMES)
def test_the_copies_of_many_turns_are_bounded_and_promised(
    shard_of: Callable[[str], TorchModelShard], name: str
):
    shard = shard_of(name)
    state = shard.new_state(LAYERS_HERE)
    promised = shard.description.kv_bytes
    for past in range(0, 60, 6):
        ran(shard, state, past, past + 5)
        ran(shard, state, past + 5, past + 6)

        assert len(state.cache.copies) <= MARKS_MAX
        assert shard.state_bytes(state) <= promised.of(past + 6)
    # What is promised is what is taken, and not much beyond it.
    assert promised.fixed <= shard.state_bytes(state)


def test_a_prompt_in_chunks_is_copied_where_its_last_chunk_begins(
    shard_of: Callable[[str], TorchModelShard],
):
    shard = shard_of("bamba")
    state = shard.new_state(LAYERS_HERE)
    ran(shard, state, 0, 7, want_token=False)
    ran(shard, state, 7, 14, want_token=False)

    assert not state.cache.copies

    ran(shard, state, 14, PROMPT)

    assert list(state.cache.copies) == [14]


def test_what_can_be_shortened_is_never_copied(tmp_path: Any):
    shard = load_shard(save_family(tmp_path, "gemma3"), LAYERS_HERE, weights=WeightFormat.INT8)

    state, _ = turn(shard)

    assert shard.description.capabilities.marks == 0
    assert not state.cache.copies


def test_layers_of_one_kind_say_what_they_can_do_themselves(tmp_path: Any):
    """A shard of attention alone shortens to any length, whatever the others' layers are."""
    path = save_family(tmp_path, "qwen3_next")

    attention = load_shard(path, LayerRange(5, LAYERS), token_text=str).description.capabilities
    linear = load_shard(path, LayerRange(0, 3)).description.capabilities

    assert (attention.truncate, attention.marks) == (True, 0)
    assert (linear.truncate, linear.marks) == (False, MARKS_MAX)
    assert attention.shortens
    assert linear.shortens
