"""The next turn of a chat over real shards: the ids of a cold run, for its new positions only."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from tests.families import LAYERS, save_family
from tests.head.cluster import collect
from tests.torch_mesh import mesh_of

from meshnet.core.generation.limits import GenerationLimits
from meshnet.core.vocabulary import LayerRange, SamplingParams, WeightFormat
from meshnet.engine.loading import load_shard
from meshnet.engine.shard import TorchModelShard
from meshnet.head import FinishEvent, GenerationRequest, Head
from meshnet.head.lingering import shared

ANSWER = 12
FIRST = tuple(3 + (7 * at) % 90 for at in range(60))
QUESTION = (11, 5, 17, 23)


def split(path: Path, weights: WeightFormat, cuts: tuple[int, ...] = (2,)) -> list[TorchModelShard]:
    return [
        load_shard(path, LayerRange(start, stop), weights=weights, token_text=str)
        for start, stop in pairwise([0, *cuts, LAYERS])
    ]


async def asked(
    head: Head, prompt: tuple[int, ...], *, owner: str = "me", **sampling: float
) -> tuple[tuple[int, ...], FinishEvent]:
    params = SamplingParams(**sampling)  # type: ignore[arg-type]
    request = GenerationRequest(prompt, ANSWER, params, frozenset(), 120.0, prefix_owner=owner)
    return await collect(head, request)


def ran(finish: FinishEvent) -> set[int]:
    """Positions run by each hop."""
    return {hop.positions for hop in finish.hops}


@pytest.mark.parametrize("weights", [WeightFormat.FP32, WeightFormat.INT8], ids=str)
@pytest.mark.parametrize("name", ["llama", "mistral-swa", "gemma3", "deepseek_v3"])
async def test_a_second_turn_is_that_of_a_cold_run(
    tmp_path: Path, name: str, weights: WeightFormat
):
    """Pit A67. Full, sliding and MLA attention; the window is shorter than the chat."""
    shards = split(save_family(tmp_path, name), weights)
    async with mesh_of(shards) as (head, _):
        answer, _ = await asked(head, FIRST)
        second = (*FIRST, *answer, *QUESTION)
        warm, finish = await asked(head, second)
        cold, cold_finish = await asked(head, second, owner="you")

    assert warm == cold
    held = len(FIRST) + ANSWER - 1
    assert (finish.cached_tokens, cold_finish.cached_tokens) == (held, 0)
    assert min(ran(finish)) >= len(second) - held + ANSWER - 1 > 0
    assert max(ran(finish)) < len(second) < min(ran(cold_finish))


@pytest.mark.parametrize("name", ["llama", "mistral-swa", "gemma3", "deepseek_v3"])
async def test_a_turn_that_drops_the_answer_is_that_of_a_cold_run(tmp_path: Path, name: str):
    """As with a template that leaves out what the last answer thought."""
    shards = split(save_family(tmp_path, name), WeightFormat.INT8)
    assert all(shard.description.capabilities.truncate for shard in shards)
    async with mesh_of(shards) as (head, _):
        answer, _ = await asked(head, FIRST)
        second = (*FIRST, *answer[8:], *QUESTION)
        warm, finish = await asked(head, second)
        cold, _ = await asked(head, second, owner="you")

    assert warm == cold
    assert finish.cached_tokens == shared((*FIRST, *answer), second) < len(FIRST) + ANSWER - 1


async def test_the_draws_of_a_next_turn_are_those_of_a_cold_run(llama: Path):
    """The tail's history goes on with the session: penalties count from the new prompt's end."""
    sampling = {"temperature": 1.0, "seed": 9, "presence_penalty": 1.5, "repetition_penalty": 1.3}
    async with mesh_of(split(llama, WeightFormat.INT8)) as (head, _):
        answer, _ = await asked(head, FIRST)
        second = (*FIRST, *answer[:6], *QUESTION)
        warm, finish = await asked(head, second, **sampling)
        cold, _ = await asked(head, second, owner="you", **sampling)

    assert warm == cold
    assert finish.cached_tokens == len(FIRST) + 6


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[TorchModelShard]]:
    """Shards of models whose states cannot be shortened, loaded once for each family."""

    @cache
    def make(name: str) -> list[TorchModelShard]:
        return split(save_family(tmp_path_factory.mktemp(name), name), WeightFormat.INT8)

    return make


SUMMED_UP = ["lfm2", "qwen3_next", "bamba", "falcon_h1", "mamba2"]
HELD = len(FIRST) + ANSWER - 1
"""Positions of the first turn: what was drawn last was never run."""


@pytest.mark.parametrize("name", SUMMED_UP)
async def test_a_state_is_gone_on_with(states: Callable[[str], list[TorchModelShard]], name: str):
    async with mesh_of(states(name)) as (head, _):
        answer, _ = await asked(head, FIRST)
        second = (*FIRST, *answer, *QUESTION)
        warm, finish = await asked(head, second)
        cold, _ = await asked(head, second, owner="you")

    assert warm == cold
    assert finish.cached_tokens == HELD


@pytest.mark.parametrize("name", SUMMED_UP)
async def test_a_state_goes_back_to_the_end_of_the_prompt(
    states: Callable[[str], list[TorchModelShard]], name: str
):
    """As with a template that leaves out what the last answer thought."""
    shards = states(name)
    assert not any(shard.description.capabilities.truncate for shard in shards)
    assert all(shard.description.capabilities.marks for shard in shards)
    async with mesh_of(shards) as (head, client):
        answer, _ = await asked(head, FIRST)
        second = (*FIRST, *answer[8:], *QUESTION)
        before = client.modes.count("prefill")
        warm, finish = await asked(head, second)
        refilled = client.modes.count("prefill") - before
        cold, _ = await asked(head, second, owner="you")

    assert warm == cold
    assert finish.cached_tokens == len(FIRST)
    assert refilled == 0


@pytest.mark.parametrize("name", ["qwen3_next", "bamba"])
async def test_a_state_goes_back_to_before_the_words_that_opened_the_answer(
    states: Callable[[str], list[TorchModelShard]], name: str
):
    """A template that opens the thinking itself drops that, too, with what was thought."""
    history, opening = (*FIRST, *FIRST[::-1]), (7, 8, 9)
    first = (*history, *opening)
    async with mesh_of(states(name)) as (head, _):
        answer, _ = await asked(head, first)
        second = (*history, *answer[8:], *QUESTION, *opening)
        warm, finish = await asked(head, second)
        cold, _ = await asked(head, second, owner="you")

    assert warm == cold
    assert finish.cached_tokens == len(first) - GenerationLimits().opening


@pytest.mark.parametrize("name", ["qwen3_next", "bamba"])
async def test_a_turn_asked_again_starts_where_it_started(
    states: Callable[[str], list[TorchModelShard]], name: str
):
    async with mesh_of(states(name)) as (head, _):
        answer, _ = await asked(head, FIRST)
        second = (*FIRST, *answer, *QUESTION)
        once, _ = await asked(head, second)
        again, finish = await asked(head, second)

    assert again == once
    assert finish.cached_tokens == HELD


@pytest.mark.parametrize("kept", [len(FIRST) + 4, len(FIRST) - 1], ids=["answer", "prompt"])
async def test_a_state_goes_back_to_no_other_length(
    states: Callable[[str], list[TorchModelShard]], kept: int
):
    """The nearest mark before it will do; where there is none, all is run."""
    async with mesh_of(states("qwen3_next")) as (head, _):
        answer, _ = await asked(head, FIRST)
        second = (*(*FIRST, *answer)[:kept], *QUESTION)
        warm, finish = await asked(head, second)
        cold, _ = await asked(head, second, owner="you")

    assert warm == cold
    assert finish.cached_tokens == (len(FIRST) if kept > len(FIRST) else 0)


@pytest.mark.parametrize("name", ["jamba", "minimax"])
async def test_what_can_neither_be_shortened_nor_put_back_runs_again(tmp_path: Path, name: str):
    shards = split(save_family(tmp_path, name), WeightFormat.FP32)
    assert not any(shard.description.capabilities.shortens for shard in shards)
    async with mesh_of(shards) as (head, _):
        await asked(head, FIRST)
        warm, finish = await asked(head, (*FIRST, *QUESTION))
        cold, _ = await asked(head, (*FIRST, *QUESTION), owner="you")

    assert warm == cold
    assert finish.cached_tokens == 0
