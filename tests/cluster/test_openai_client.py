"""The official client, its types strictly checked, against `meshnet up`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from tests.cluster.api import NARROW, WIDE, counted, expected_text, get, until
from tests.processes import MeshnetProcess, meshnet
from tests.reference import prompt_ids

PROMPT = "What is the capital of France?"
TOKENS = 24
LONG = 440
CHOICES = 16
"""Prompts of one request, run one after the other: together they take long on any machine."""
USER: Any = [{"role": "user", "content": PROMPT}]
EXACTLY: dict[str, Any] = {"temperature": 0, "extra_body": {"ignore_eos": True}}


@pytest.fixture(scope="module")
def mesh(
    tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MeshnetProcess]:
    with meshnet(
        "up", "--model", str(tiny_model_dir), "--nodes", "2", "--port", "0", "--json-ready",
        MESHNET_WEIGHTS="fp32", MESHNET_CACHE_DIR=str(tmp_path_factory.mktemp("cache")),
        MESHNET_PREFIX_SESSIONS="0", MESHNET_DRAFTS="off",
    ) as process:  # fmt: skip
        yield process


@pytest.fixture
async def client(mesh: MeshnetProcess) -> AsyncIterator[openai.AsyncOpenAI]:
    narrow = httpx2.AsyncHTTPTransport(socket_options=NARROW)
    async with openai.AsyncOpenAI(
        base_url=f"{mesh.url}/v1",
        api_key="none",
        max_retries=0,
        http_client=openai.DefaultAsyncHttpxClient(timeout=120, transport=narrow),
        _strict_response_validation=True,
    ) as client:
        yield client


async def test_a_chat(client: openai.AsyncOpenAI, tiny_model_dir: Path):
    told = await client.chat.completions.create(
        model="default", messages=USER, max_completion_tokens=TOKENS, **EXACTLY
    )

    assert told.choices[0].message.content == expected_text(tiny_model_dir, PROMPT, TOKENS)
    assert told.choices[0].finish_reason == "length"
    assert told.model == tiny_model_dir.name
    assert told.usage is not None
    prompt = len(prompt_ids(tiny_model_dir, PROMPT))
    assert (told.usage.prompt_tokens, told.usage.completion_tokens) == (prompt, TOKENS)


async def test_a_streamed_chat_with_its_usage(client: openai.AsyncOpenAI, tiny_model_dir: Path):
    stream = await client.chat.completions.create(
        model="default", messages=USER, max_tokens=TOKENS, stream=True,
        stream_options={"include_usage": True}, **EXACTLY,
    )  # fmt: skip
    chunks = [chunk async for chunk in stream]

    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    finishes = [choice.finish_reason for chunk in chunks for choice in chunk.choices]
    assert text == expected_text(tiny_model_dir, PROMPT, TOKENS)
    assert [reason for reason in finishes if reason is not None] == ["length"]
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == TOKENS


async def test_completions_of_texts_and_of_ids(client: openai.AsyncOpenAI, tiny_model_dir: Path):
    ids = prompt_ids(tiny_model_dir, PROMPT)

    by_ids = await client.completions.create(
        model="default", prompt=ids, max_tokens=TOKENS, **EXACTLY
    )
    two = await client.completions.create(
        model="default", prompt=["one", "two"], max_tokens=4, **EXACTLY
    )

    assert by_ids.choices[0].text == expected_text(tiny_model_dir, PROMPT, TOKENS)
    assert [choice.index for choice in two.choices] == [0, 1]
    assert two.usage is not None
    assert two.usage.completion_tokens == 8


async def test_models(client: openai.AsyncOpenAI, tiny_model_dir: Path):
    listed = [model.id async for model in client.models.list()]
    one = await client.models.retrieve(tiny_model_dir.name)

    assert listed == [tiny_model_dir.name]
    assert one.id == tiny_model_dir.name


async def test_errors(client: openai.AsyncOpenAI):
    with pytest.raises(openai.NotFoundError) as unknown:
        await client.chat.completions.create(model="gpt", messages=USER)
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("gpt")
    with pytest.raises(openai.BadRequestError, match="maximum context length is 512") as long:
        await client.chat.completions.create(model="default", messages=USER, max_tokens=512)
    with pytest.raises(openai.BadRequestError) as bad:
        await client.chat.completions.create(model="default", messages=USER, temperature=3)

    assert unknown.value.code == "model_not_found"
    assert long.value.code == "context_length_exceeded"
    assert (bad.value.param, bad.value.code) == ("temperature", "invalid_value")


def steps(mesh: MeshnetProcess) -> list[int]:
    return [told["steps"] for told in described(mesh)]


def described(mesh: MeshnetProcess) -> list[dict[str, Any]]:
    return [get(f"{node['url']}/node") for node in get(f"{mesh.url}/mesh")["nodes"]]


async def abandoned(mesh: MeshnetProcess, cancelled: int, before: list[int]) -> list[int]:
    """Wait until the nodes have let go of a chat that was left early; return the steps so far."""

    def over() -> bool:
        ended = counted(mesh.url, "meshnet_generations_total", "outcome")[("cancelled",)]
        return ended > cancelled and all(told["sessions"] == 0 for told in described(mesh))

    await until(over, "the chat is cancelled and no node holds its session")
    after = steps(mesh)
    assert all(0 < now - then < CHOICES * LONG for now, then in zip(after, before, strict=True))
    return after


async def prove_idle(client: openai.AsyncOpenAI, mesh: MeshnetProcess, after: list[int]) -> None:
    """Another chat's steps are all that is added: one prefill, then a decode for each token."""
    await client.chat.completions.create(
        model="default", messages=USER, max_tokens=TOKENS, **EXACTLY
    )
    assert [now - then for now, then in zip(steps(mesh), after, strict=True)] == [TOKENS, TOKENS]


async def test_closing_a_stream_ends_its_steps_and_its_sessions(
    client: openai.AsyncOpenAI, mesh: MeshnetProcess
):
    """Pit A56."""
    before = steps(mesh)
    cancelled = counted(mesh.url, "meshnet_generations_total", "outcome")[("cancelled",)]
    stream = await client.chat.completions.create(
        model="default", messages=USER, max_tokens=LONG, stream=True, **EXACTLY, **WIDE
    )
    for _ in range(3):
        await anext(stream)
    await stream.close()

    await prove_idle(client, mesh, await abandoned(mesh, cancelled, before))


async def test_leaving_before_the_answer_ends_its_steps_and_its_sessions(
    client: openai.AsyncOpenAI, mesh: MeshnetProcess
):
    """Pit A56."""
    before = steps(mesh)
    cancelled = counted(mesh.url, "meshnet_generations_total", "outcome")[("cancelled",)]
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(
            client.completions.create(
                model="default", prompt=[PROMPT] * CHOICES, max_tokens=LONG, **EXACTLY
            )
        )
        await until(lambda: min(map(int.__sub__, steps(mesh), before)) > 0, "the chat runs")
        asking.cancel()

    await prove_idle(client, mesh, await abandoned(mesh, cancelled, before))
