"""The founding promise on real models over real processes (ADR-0022, "Consequences").

Cached and stateless generation over HTTP nodes emit the ids of the unsplit model's own `generate`,
in fp32, greedily, on 2- and 3-way splits. SmolLM2-135M always; Qwen2.5-0.5B (or any other) when
MESHNET_REAL_MODEL_TESTS=1 and MESHNET_REAL_MODEL_DIR names its directory; Gemma 3 270M in
`make slow`. Narrower formats are compared there with one node that holds the whole model.
"""

from __future__ import annotations

import os
from contextlib import aclosing
from pathlib import Path

import pytest
from tests.cluster.api import get
from tests.heads import greedy, head_over
from tests.processes import nodes
from tests.reference import layer_count, prompt_ids, unsplit_greedy

from meshnet.core.generation.limits import GenerationLimits
from meshnet.core.routing import partition
from meshnet.core.vocabulary import WeightFormat
from meshnet.head import FinishEvent, HeadLimits, TokenEvent

PROMPT = "Explain in a few sentences why the sky is blue."
TOKENS = 48
STATELESS_TOKENS = 12
"""Each runs the whole sequence anew."""


async def generated(
    urls: list[str],
    prompt: list[int],
    tokens: int = TOKENS,
    *,
    kv_cache: bool = True,
    drafts: int | None = 0,
) -> tuple:
    limits = HeadLimits(generation=GenerationLimits(drafts=drafts))
    async with head_over(urls, kv_cache=kv_cache, limits=limits) as head:
        ids: list[int] = []
        finish: FinishEvent | None = None
        async with aclosing(head.generate(greedy(prompt, tokens))) as events:
            async for event in events:
                match event:
                    case TokenEvent(token):
                        ids.append(token.token_id)
                    case FinishEvent():
                        finish = event
        assert finish is not None
        return ids, finish


async def check_split(model: Path, parts: int) -> None:
    prompt = prompt_ids(model, PROMPT)
    expected = unsplit_greedy(model, prompt, TOKENS)
    ranges = [str(layers) for layers in partition(layer_count(model), parts)]
    with nodes(model, ranges, MESHNET_WEIGHTS="fp32") as started:
        urls = [node.url for node in started]

        cached, cached_end = await generated(urls, prompt)
        drafted, _ = await generated(urls, prompt, drafts=4)
        stateless, stateless_end = await generated(urls, prompt, STATELESS_TOKENS, kv_cache=False)

    assert cached == expected
    assert drafted == expected
    assert stateless == expected[:STATELESS_TOKENS]
    # One prefill, and then as many positions as tokens; stateless runs the sequence each time.
    assert cached_end.prefills == 1
    assert cached_end.refills == stateless_end.refills == 0
    for hop in cached_end.hops:
        assert hop.positions == len(prompt) + TOKENS - 1
    for hop in stateless_end.hops:
        assert hop.positions == sum(len(prompt) + step for step in range(STATELESS_TOKENS))


@pytest.mark.parametrize("parts", [2, 3])
async def test_smollm2_cached_and_stateless_equal_unsplit_generate(
    smollm2_dir: Path, parts: int
) -> None:
    await check_split(smollm2_dir, parts)


@pytest.mark.skipif(
    os.environ.get("MESHNET_REAL_MODEL_TESTS") != "1" or "MESHNET_REAL_MODEL_DIR" not in os.environ,
    reason="needs MESHNET_REAL_MODEL_TESTS=1 and MESHNET_REAL_MODEL_DIR=<Qwen2.5-0.5B directory>",
)
@pytest.mark.parametrize("parts", [2, 3])
async def test_a_given_real_model_equals_unsplit_generate(parts: int) -> None:
    await check_split(Path(os.environ["MESHNET_REAL_MODEL_DIR"]), parts)


@pytest.mark.slow
@pytest.mark.parametrize("parts", [2, 3])
async def test_gemma3_270m_equals_unsplit_generate(gemma3_dir: Path, parts: int) -> None:
    await check_split(gemma3_dir, parts)


@pytest.mark.slow
@pytest.mark.parametrize("weights", sorted(set(WeightFormat) - {WeightFormat.FP32}, key=str))
async def test_smollm2_in_every_format_equals_one_node_that_holds_it_all(
    smollm2_dir: Path, weights: WeightFormat
) -> None:
    """Without caches too where shards found that no way of cutting steps changes a bit."""
    prompt = prompt_ids(smollm2_dir, PROMPT)
    with nodes(smollm2_dir, ["0-30"], MESHNET_WEIGHTS=weights.value) as (whole,):
        expected, _ = await generated([whole.url], prompt)

    for parts in (2, 3):
        ranges = [str(layers) for layers in partition(layer_count(smollm2_dir), parts)]
        with nodes(smollm2_dir, ranges, MESHNET_WEIGHTS=weights.value) as started:
            urls = [node.url for node in started]
            shards = [shard for url in urls for shard in get(f"{url}/node")["shards"]]
            exact = all(shard["capabilities"]["exact"] for shard in shards)
            cached, _ = await generated(urls, prompt)
            drafted, _ = await generated(urls, prompt, drafts=4)
            stateless, _ = await generated(urls, prompt, kv_cache=False)

        assert cached == expected
        assert drafted == expected
        assert stateless == expected or not exact
        assert exact or weights not in (WeightFormat.INT8, WeightFormat.INT8_FAST)
