"""A head that speaks ADR-0022 and nothing else, over real HTTP, to nodes of today.

It owns the first layers, as every head did: it embeds, runs layers 0 to 2 itself and posts hidden
states. Of our fields it knows three, and of a token's answer `text` and `token_id`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager

import pytest
from tests.wire.echoing import RawAnswer, post, serving, spoken

from meshnet.core.vocabulary import (
    Activation,
    Capabilities,
    LayerRange,
    NodeId,
    SamplingParams,
    SessionId,
    ShardStep,
)
from meshnet.node.compute import ComputeThread
from meshnet.node.service import NodeService
from meshnet.node.shards import NodeLimits
from meshnet.simulation.toy_shard import CACHING, ROW_BYTES, ToyShard, ToyState, oracle

LAYERS = 6
OWN = LayerRange(0, 2)
PROMPT = (3, 1, 4, 1, 5)
TOKENS = 8
SESSION = "2f1c"


@asynccontextmanager
async def nodes(middle: Capabilities = CACHING) -> AsyncIterator[tuple[list[str], list]]:
    """Layers 2 to 4 and 4 to 6; yields their URLs and services."""
    async with AsyncExitStack() as servers:
        with ExitStack() as threads:
            urls, services = [], []
            for layers, can in ((LayerRange(2, 4), middle), (LayerRange(4, LAYERS), CACHING)):
                compute = ComputeThread(name=f"old-head-{layers}", jobs_max=4)
                threads.callback(compute.close, deadline_s=30.0)
                service = NodeService(
                    node=NodeId(str(layers)),
                    pid=1,
                    shards=[ToyShard(layers, layers_total=LAYERS, capabilities=can)],
                    compute=compute,
                    limits=NodeLimits(kv_bytes_max=2**20),
                    clock=asyncio.get_running_loop().time,
                )
                services.append(service)
                urls.append(await servers.enter_async_context(serving(service)))
            yield urls, services
            await servers.aclose()


class OldHead:
    """ADR-0022's loop: prefill once, decode one position a step, re-prefill on 409."""

    def __init__(self, urls: list[str], *, stateless: bool = False) -> None:
        self.urls, self.stateless = urls, stateless
        self.shard = ToyShard(OWN, layers_total=LAYERS)
        self.state: ToyState | None = None
        self.modes: list[str] = []
        self.sizes: list[int] = []
        self.misses: list[dict[str, object]] = []

    async def generate(self, prompt: tuple[int, ...], count: int) -> list[int]:
        ids = list(prompt)
        cached = False
        for _ in range(count):
            answer = await self._step(ids, decode=cached and not self.stateless)
            if answer.status == 409:
                self.misses.append(json.loads(answer.body))
                answer = await self._step(ids, decode=False)
            assert answer.status == 200, answer.body
            told = json.loads(answer.body)
            assert told["text"] == f"<{told['token_id']}>"
            ids.append(told["token_id"])
            cached = True
        return ids[len(prompt) :]

    async def _step(self, ids: list[int], *, decode: bool) -> RawAnswer:
        past = len(ids) - 1 if decode else 0
        body = self._own_layers(tuple(ids[past:]), past)
        fields = {} if self.stateless else {"X-Meshnet-Session": SESSION}
        if not self.stateless:
            fields["X-Meshnet-Cache"] = "decode" if decode else "prefill"
        if decode:
            fields["X-Meshnet-Past-Len"] = str(past)
        self.modes.append(fields.get("X-Meshnet-Cache", "stateless"))
        self.sizes.append(len(body))
        for url in self.urls:
            answer = await spoken(url, post(fields, body))
            assert answer is not None
            if answer.status != 200:
                return answer
            body = answer.body
        return answer

    def _own_layers(self, tokens: tuple[int, ...], past: int) -> bytes:
        if past == 0:
            self.state = self.shard.new_state(OWN)
        step = ShardStep(OWN, past, len(tokens), tokens, None, SamplingParams())
        leaving = self.shard.run(step, self.state)
        assert isinstance(leaving, Activation)
        return bytes(leaving.data)


def greedy() -> list[int]:
    return list(oracle(PROMPT, SamplingParams(), TOKENS, LAYERS))


async def test_it_generates_the_models_tokens_with_one_prefill():
    """Each decode carries one position, [1, 1, hidden], however long the sequence is."""
    async with nodes() as (urls, services):
        head = OldHead(urls)
        tokens = await head.generate(PROMPT, TOKENS)
        held = [service.session(SessionId(SESSION)) for service in services]

    assert tokens == greedy()
    assert head.modes == ["prefill"] + ["decode"] * (TOKENS - 1)
    assert head.sizes == [len(PROMPT) * ROW_BYTES] + [ROW_BYTES] * (TOKENS - 1)
    assert [each.layers for each in held] == [LayerRange(2, 4), LayerRange(4, 6)]
    assert {each.length for each in held} == {len(PROMPT) + TOKENS - 1}


async def test_without_headers_it_is_served_as_before_adr_0022():
    async with nodes() as (urls, services):
        head = OldHead(urls, stateless=True)
        tokens = await head.generate(PROMPT, TOKENS)

        assert [service.describe().sessions for service in services] == [0, 0]
    assert tokens == greedy()
    assert head.misses == []


@pytest.mark.parametrize("node", [0, 1])
async def test_a_miss_is_409_and_costs_it_one_prefill(node: int):
    async with nodes() as (urls, services):
        head = OldHead(urls)
        first = await head.generate(PROMPT, 3)
        services[node].release(SessionId(SESSION))
        answer = await head._step([*PROMPT, *first], decode=True)
        rest = await head.generate((*PROMPT, *first), TOKENS - 3)

    assert answer.status == 409
    assert json.loads(answer.body)["error"] == "cache_miss"
    assert first + rest == greedy()


async def test_a_node_that_cannot_cache_misses_every_decode_and_the_tokens_stay_right():
    """Exactly the old cost: a prefill at every step, and no garbage."""
    async with nodes(Capabilities(kv_cache=False, multi_token=False)) as (urls, _):
        head = OldHead(urls)
        tokens = await head.generate(PROMPT, TOKENS)

    assert tokens == greedy()
    assert len(head.misses) == TOKENS - 1
    assert {miss["error"] for miss in head.misses} == {"cache_miss"}
