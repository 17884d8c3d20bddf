"""CANCEL: a client that leaves costs no further token, streaming or not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2
import pytest
from tests.gateway.api import USER, Gateway, chat_scope, chunks, error, ids_of
from tests.gateway.scripted import Gate

from meshnet.gateway.delivery import unless_gone
from meshnet.gateway.settings import GatewaySettings
from meshnet.head import FailureCode, GenerationFailed
from meshnet.simulation.toy_text import EOS

OFTEN = GatewaySettings(keepalive_s=0.01, grace_s=0.0)


def chat_body(**fields: Any) -> dict[str, Any]:
    return {"model": "default", "messages": USER, "max_tokens": 200} | fields


@pytest.mark.parametrize("waiting", ["during prefill", "after a token"])
async def test_leaving_a_stream_closes_its_generation(waiting: str):
    """Pit A56."""
    gate = Gate()
    gateway = Gateway([gate] if waiting == "during prefill" else [ord("a"), gate], settings=OFTEN)

    async with gateway.served() as url, httpx2.AsyncClient() as client:
        stream = client.stream("POST", f"{url}/v1/chat/completions", json=chat_body(stream=True))
        async with stream as response:
            await gate.reached.wait()
            await anext(response.aiter_raw())
        await gateway.generator.over.wait()

    assert gateway.generator.closed_early == 1
    assert gateway.generator.running == 0


async def test_leaving_before_the_answer_closes_its_generation():
    """Pit A56: without a stream just the same."""
    gate = Gate()
    gateway = Gateway([ord("a"), gate])

    async with gateway.served() as url, httpx2.AsyncClient() as client:
        async with asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(
                client.post(f"{url}/v1/chat/completions", json=chat_body(), timeout=60)
            )
            await gate.reached.wait()
            asking.cancel()
        await gateway.generator.over.wait()

    assert gateway.generator.closed_early == 1


async def test_leaving_between_prompts_starts_no_further_one():
    gate = Gate()
    gateway = Gateway([ord("a"), gate])

    async with gateway.served() as url, httpx2.AsyncClient() as client:
        body = {"model": "default", "prompt": ["a", "b", "c"], "stream": True}
        async with client.stream("POST", f"{url}/v1/completions", json=body) as response:
            await gate.reached.wait()
            await anext(response.aiter_raw())
        await gateway.generator.over.wait()

    assert len(gateway.generator.requests) == 1
    assert gateway.generator.running == 0


async def test_every_way_to_end_ends_a_generation_exactly_once():
    """Pits A57 and A61: nothing is left, and what is over is not closed again."""
    finished = Gateway([*ids_of("Hello"), EOS])
    failed = Gateway([ord("a"), GenerationFailed(FailureCode.UPSTREAM, "lost")])

    for stream in (False, True):
        await finished.chat(stream=stream)
        await failed.chat(stream=stream)

    ended = [
        (gateway.generator.finished, gateway.generator.failed, gateway.generator.closed_early)
        for gateway in (finished, failed)
    ]
    assert ended == [(2, 0, 0), (0, 2, 0)]


async def test_a_client_that_does_not_read_is_not_generated_ahead_for():
    """A slow reader slows its own generation: at most a few events are made ahead of it."""
    gateway = Gateway([ord("a")])
    stuck = asyncio.Event()
    never = asyncio.Event()
    first_body = True

    async def send(message: dict[str, Any]) -> None:
        nonlocal first_body
        if message["type"] == "http.response.body" and first_body:
            first_body = False
            stuck.set()
            await never.wait()

    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(asgi_chat(gateway, send, never))
        await stuck.wait()
        for _ in range(200):
            await asyncio.sleep(0)
        drawn = gateway.generator.drawn
        serving.cancel()

    assert drawn <= 3
    assert gateway.generator.closed_early == 1


async def test_a_client_that_reads_nothing_for_long_counts_as_gone():
    gateway = Gateway([ord("a")], settings=GatewaySettings(stall_s=0.01))
    never = asyncio.Event()

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.body":
            await never.wait()

    await asgi_chat(gateway, send, never)

    assert gateway.generator.closed_early == 1


async def asgi_chat(
    gateway: Gateway, send: Callable[[dict[str, Any]], Awaitable[None]], gone: asyncio.Event
) -> None:
    """One streaming chat by hand, so that the test decides when a send returns."""
    body = json.dumps(chat_body(stream=True)).encode()
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    await gateway.app(chat_scope("content-type", "application/json"), receive, send)


async def test_work_is_finished_when_nobody_leaves():
    staying = asyncio.Event()

    async def receive() -> dict[str, Any]:
        await staying.wait()
        return {"type": "http.disconnect"}

    async def work() -> int:
        return 7

    assert await unless_gone(receive, work()) == 7


async def test_a_failed_prompt_of_a_batch_fails_the_batch():
    def script(request):
        if request.prompt == (2,):
            return [GenerationFailed(FailureCode.UPSTREAM, "lost")]
        return [ord("a"), EOS]

    whole = await Gateway(script).complete(prompt=[[1], [2]])
    told = await Gateway([ord("a"), EOS]).complete(prompt=[[1], [2]], stream=True)

    assert whole.status_code == 502
    assert error(whole)["code"] == "upstream_error"
    assert {chunk["choices"][0]["index"] for chunk in chunks(told)} == {0, 1}
