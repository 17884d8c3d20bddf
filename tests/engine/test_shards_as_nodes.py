"""Shards of real models behind node services: what only shows when both meet."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import transformers.models.llama.modeling_llama as llama_code
from tests.families import LAYERS, save_family
from tests.family_rows import TOKENS, prompt
from tests.shard_chain import unsplit
from tests.torch_mesh import drawn, mesh_of

from meshnet.core.vocabulary import LayerRange, SamplingParams, WeightFormat
from meshnet.engine.loading import load_shard
from meshnet.engine.shard import TorchModelShard
from meshnet.head import GenerationRequest, Head

CUTS = [(2,), (1, 2)]


def shard(
    path: Path, start: int, stop: int, weights: WeightFormat = WeightFormat.FP32
) -> TorchModelShard:
    """These models have no tokenizer."""
    return load_shard(path, LayerRange(start, stop), weights=weights, token_text=str)


def split(path: Path, cuts: tuple[int, ...]) -> list[TorchModelShard]:
    return [shard(path, start, stop) for start, stop in pairwise([0, *cuts, LAYERS])]


@pytest.mark.parametrize("cuts", CUTS, ids=str)
@pytest.mark.parametrize("name", ["llama", "gemma3n", "gemma4"])
async def test_nodes_pass_on_whatever_a_model_sends_between_its_layers(
    tmp_path: Path, name: str, cuts: tuple[int, ...]
):
    """Pit A74. Gemma 3n sends four streams and inputs of later layers; both cross every cut."""
    path = save_family(tmp_path, name)
    reference = unsplit(path, prompt(), TOKENS)

    async with mesh_of(split(path, cuts)) as (head, _):
        ids, finish = await drawn(head, prompt(), TOKENS)

    assert ids == reference.ids
    assert finish.prefills == 1


@pytest.mark.parametrize(
    ("short", "right_min"),
    [(WeightFormat.BF16, 18), (WeightFormat.FP16, 18), (WeightFormat.INT8, 14)],
)
async def test_nodes_of_unlike_formats_serve_one_route(
    llama: Path, short: WeightFormat, right_min: int
):
    """Pits A76 and A77: each converts what it receives; most tokens are those of fp32."""
    shards = [shard(llama, 0, 2), shard(llama, 2, 4, short), shard(llama, 4, LAYERS)]
    right = 0

    async with mesh_of(shards) as (head, _):
        for start in range(0, 40, 2):
            ids = [*prompt(), *range(3, 4 + start)]
            expected = unsplit(llama, ids, 1).ids
            got, _ = await drawn(head, ids, 1)
            right += got == expected

    assert right >= right_min, f"{right} of 20 first tokens"
    assert len({each.description.arithmetic for each in shards}) == 2


async def test_layers_that_swallow_the_cache_make_the_route_stateless_and_the_ids_right(
    llama: Path, monkeypatch: pytest.MonkeyPatch
):
    """Pits A71 and A112: one such node among three, found out at its start."""
    reference = unsplit(llama, prompt(), TOKENS)
    forward = llama_code.LlamaDecoderLayer.forward

    def without_cache(self: Any, hidden_states: Any, *args: Any, cache: Any = None, **rest: Any):
        return forward(self, hidden_states, *args, **rest)

    first, last = shard(llama, 0, 2), shard(llama, 4, LAYERS)
    with monkeypatch.context() as patched:
        patched.setattr(llama_code.LlamaDecoderLayer, "forward", without_cache)
        middle = shard(llama, 2, 4)

    async with mesh_of([first, middle, last]) as (head, client):
        ids, _ = await drawn(head, prompt(), TOKENS)

    assert not middle.supports_kv_cache
    assert ids == reference.ids
    assert set(client.modes) == {"stateless"}


async def leave_after(head: Head, ids: list[int], tokens: int) -> None:
    asked = GenerationRequest(tuple(ids), TOKENS, SamplingParams(), frozenset(), 120.0)
    async with aclosing(head.generate(asked)) as items:
        for _ in range(tokens):
            await anext(items)


async def test_chats_on_the_same_nodes_do_not_touch_each_other(llama: Path):
    """Pit A62: eight at once, each with its own prompt, while eight others leave midway."""
    prompts = [[*prompt(), 3 + number] for number in range(8)]
    expected = [unsplit(llama, ids, TOKENS).ids for ids in prompts]

    async with mesh_of(split(llama, (2, 4))) as (head, _), asyncio.TaskGroup() as group:
        for number, ids in enumerate(prompts):
            group.create_task(leave_after(head, ids[::-1], 1 + number))
        chats = [group.create_task(drawn(head, ids, TOKENS)) for ids in prompts]

    assert [chat.result()[0] for chat in chats] == expected
