"""More chats than places: all are answered, none refused, and never more at once than places.

Who was on a node when is read from its own events, from a session's first step to the eviction
that ends it. That no place stands idle meanwhile is shown where time is ours:
tests/simulation/test_scenarios.py.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

import httpx2
import pytest
from tests.cluster.api import answered, counted, expected_text, get, streamed, until
from tests.processes import MeshnetProcess, gateway, nodes
from tests.reference import layer_count

from meshnet.core.routing import partition

CHATS = 12
PLACES = 2
TOKENS = 60
RUNNING = 8
EVENTS = {"MESHNET_LOG_FORMAT": "json", "MESHNET_LOG_LEVEL": "debug"}


def sessions_held(node: MeshnetProcess, first_event: int) -> list[set[str]]:
    """Read, of the node's events from `first_event` on, who was there after each change."""
    held: list[set[str]] = [set()]
    for line in node.told()[first_event:]:
        event = json.loads(line) if line.startswith("{") else {}
        match event.get("event"):
            case "forward_served" if event["session"] not in held[-1]:
                held.append(held[-1] | {event["session"]})
            case "session_evicted":
                held.append(held[-1] - {event["session"]})
    return held


Crowd = tuple[list[MeshnetProcess], list[MeshnetProcess]]


@contextmanager
def crowd(model: Path) -> Iterator[Crowd]:
    """Two nodes of two places each, and two gateways over them."""
    ranges = [str(layers) for layers in partition(layer_count(model), 2)]
    places = {"MESHNET_KV_MAX_SESSIONS": str(PLACES), "MESHNET_WEIGHTS": "fp32"}
    with ExitStack() as stack:
        serving = stack.enter_context(nodes(model, ranges, **places, **EVENTS))
        urls = [node.url for node in serving]
        alone = {"MESHNET_PREFIX_SESSIONS": "0"}  # so that every session is one that runs
        yield serving, [stack.enter_context(gateway(model, urls, **alone)) for _ in range(2)]


@pytest.fixture(scope="module")
def crowded(tiny_model_dir: Path) -> Iterator[Crowd]:
    with crowd(tiny_model_dir) as started:
        yield started


async def check_crowd(crowded: Crowd, model: Path, *, gateways: int, tokens: int) -> None:
    serving, heads = crowded
    prompts = [f"Chat {chat} of {CHATS}: what is the capital of France?" for chat in range(CHATS)]
    expected = [expected_text(model, prompt, tokens) for prompt in prompts]
    events = [len(node.told()) for node in serving]
    prefills = [forwards(node, "prefill") for node in serving]

    async with asyncio.TaskGroup() as group:
        chats = [
            group.create_task(answered(heads[place % gateways].url, prompt, tokens))
            for place, prompt in enumerate(prompts)
        ]

    assert [chat.result() for chat in chats] == expected
    for node, before, first_event in zip(serving, prefills, events, strict=True):
        await until(lambda node=node: get(f"{node.url}/node")["sessions"] == 0, "all released")
        asked = forwards(node, "prefill") - before
        held = sessions_held(node, first_event)
        assert len(set().union(*held)) == CHATS
        assert max(map(len, held)) <= PLACES
        assert CHATS <= asked <= 2 * CHATS


@pytest.mark.parametrize("gateways", [1, 2])
async def test_twelve_chats_share_two_places(crowded: Crowd, tiny_model_dir: Path, gateways: int):
    await check_crowd(crowded, tiny_model_dir, gateways=gateways, tokens=TOKENS)


@pytest.mark.slow
async def test_twelve_chats_of_a_real_model_share_two_places(smollm2_dir: Path):
    with crowd(smollm2_dir) as crowded:
        for gateways in (1, 2):
            await check_crowd(crowded, smollm2_dir, gateways=gateways, tokens=48)


def forwards(node: MeshnetProcess, mode: str) -> int:
    """How many steps of a mode the node was asked for, served or refused."""
    return counted(node.url, "meshnet_forward_requests_total", "mode")[(mode,)]


@asynccontextmanager
async def running_chats(url: str, tokens: int) -> AsyncIterator[None]:
    """Keep RUNNING streams open, each past its first token; they end with their gateway."""
    begun: set[int] = set()
    all_begun = asyncio.Event()

    def seen(chat: int) -> None:
        begun.add(chat)
        if len(begun) == RUNNING:
            all_begun.set()

    async def run(chat: int) -> None:
        with suppress(httpx2.HTTPError):  # its gateway is killed under it
            told = await streamed(url, f"Chat {chat}", tokens, seen=lambda _: seen(chat))
            assert told.finishes == []

    async with asyncio.TaskGroup() as group:
        for chat in range(RUNNING):
            group.create_task(run(chat))
        async with asyncio.timeout(120):
            await all_begun.wait()
        yield


async def first_token_after_a_dead_gateway(model: Path, tokens: int) -> float:
    """Kill a gateway whose chats hold every place; return how soon another one's chat starts."""
    prompt = "Who is there?"
    ranges = [str(layers) for layers in partition(layer_count(model), 2)]
    with nodes(model, ranges, MESHNET_WEIGHTS="fp32") as serving:
        urls = [node.url for node in serving]
        with gateway(model, urls) as doomed, gateway(model, urls) as other:
            async with running_chats(doomed.url, tokens):
                held = [get(f"{url}/node") for url in urls]
                doomed.kill()
                killed_at = time.monotonic()
                chat = await streamed(other.url, prompt, 16)
            after = [get(f"{url}/node") for url in urls]
    assert [(n["sessions"], n["sessions_max"]) for n in held] == [(RUNNING, RUNNING)] * 2
    assert chat.text == expected_text(model, prompt, 16)
    assert [n["pid"] for n in after] == [node.pid for node in serving]
    return chat.arrivals[0] - killed_at


async def test_a_dead_gateway_s_places_come_free_and_the_nodes_live_on(tiny_model_dir: Path):
    waited_s = await first_token_after_a_dead_gateway(tiny_model_dir, 450)

    print(f"first token {waited_s:.1f} s after the kill")


@pytest.mark.slow
async def test_a_chat_starts_within_ten_seconds_of_a_gateway_s_death(smollm2_dir: Path):
    """Pins of sessions that nobody touches expire after 5 s (ADR-0029)."""
    waited_s = await first_token_after_a_dead_gateway(smollm2_dir, 1000)

    print(f"first token {waited_s:.1f} s after the kill")
    assert waited_s <= 10.0
