"""The next turn of a chat over real shards: the ids of a cold run, for its new positions only."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from tests.families import LAYERS, save_family
from tests.head.cluster import collect
from tests.torch_mesh import mesh_of

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


@pytest.mark.parametrize("name", ["lfm2", "qwen3_next", "mamba2"])
async def test_a_state_that_cannot_be_taken_back_is_only_gone_on_with(tmp_path: Path, name: str):
    """Recurrent and convolutional layers: all ids of the session, or none of them."""
    shards = split(save_family(tmp_path, name), WeightFormat.FP32)
    able = all(shard.description.capabilities.multi_token for shard in shards)
    assert not any(shard.description.capabilities.truncate for shard in shards)
    async with mesh_of(shards) as (head, _):
        answer, _ = await asked(head, FIRST)
        dropping, dropped = await asked(head, (*FIRST, *QUESTION))
        cold, _ = await asked(head, (*FIRST, *QUESTION), owner="you")
        second = (*FIRST, *answer, *QUESTION)
        warm, finish = await asked(head, second)
        cold_second, _ = await asked(head, second, owner="you")

    assert (dropping, warm) == (cold, cold_second)
    assert dropped.cached_tokens == 0
    assert finish.cached_tokens == (len(FIRST) + ANSWER - 1 if able else 0)
