"""SSE: chunks, their order, usage, and what a failure looks like."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
import pytest
from tests.gateway.api import USER, Gateway, chunks, error, frames, frames_of, ids_of, streamed_text
from tests.gateway.scripted import Gate

from meshnet.gateway.settings import GatewaySettings
from meshnet.head import FailureCode, GenerationFailed
from meshnet.simulation.toy_text import EOS

HELLO = [*ids_of("Hello"), EOS]


async def test_every_choice_tells_its_finish_reason_once_and_null_before():
    """Pit A09."""
    told = chunks(await Gateway(HELLO).chat(stream=True))

    reasons = [chunk["choices"][0]["finish_reason"] for chunk in told]
    assert reasons == [None] * (len(told) - 1) + ["stop"]
    assert all("finish_reason" in chunk["choices"][0] for chunk in told)


@pytest.mark.parametrize(
    ("script", "fields", "reason"),
    [
        (HELLO, {}, "stop"),
        (HELLO, {"stop": "lo"}, "stop"),
        (HELLO, {"max_tokens": 2}, "length"),
    ],
)
async def test_a_stream_ends_with_reason_then_usage_then_done(script, fields, reason):
    """Pit A10."""
    response = await Gateway(script).chat(
        stream=True, stream_options={"include_usage": True}, **fields
    )

    *_, finish, usage, done = frames(response)
    assert finish["choices"][0]["delta"] == {}
    assert finish["choices"][0]["finish_reason"] == reason
    assert usage["choices"] == []
    assert done == "[DONE]"


async def test_a_stream_that_fails_ends_with_an_error_and_no_reason():
    """Pit A10."""
    gateway = Gateway(
        [*ids_of("He"), GenerationFailed(FailureCode.UPSTREAM, "node b did not answer")],
    )

    response = await gateway.chat(stream=True)

    *told, failure, done = frames(response)
    assert failure == {
        "error": {
            "message": "node b did not answer",
            "type": "server_error",
            "param": None,
            "code": "upstream_error",
        }
    }
    assert done == "[DONE]"
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in told)


@pytest.mark.parametrize(
    ("options", "usages"),
    [(None, 0), ({"include_usage": False}, 0), ({"include_usage": True}, 1)],
)
async def test_usage_is_streamed_only_on_demand(options, usages):
    """Pits A11 and A12: and then the chunk has choices, none."""
    told = chunks(await Gateway(HELLO).chat(stream=True, stream_options=options))

    with_usage = [chunk for chunk in told if chunk.get("usage")]
    assert len(with_usage) == usages
    assert all(("usage" in chunk) == bool(usages) for chunk in told)
    assert all(chunk["choices"] == [] for chunk in with_usage)
    assert all(chunk is told[-1] for chunk in with_usage)


async def test_usage_is_the_same_streamed_or_not():
    """Pit A13: template and BOS count as prompt, EOS counts as completion."""
    gateway = Gateway(HELLO)
    prompt = gateway.text.render_chat([{"role": "user", "content": "hi"}], {})

    whole = (await gateway.chat()).json()["usage"]
    streamed = chunks(await gateway.chat(stream=True, stream_options={"include_usage": True}))

    assert whole["prompt_tokens"] == len(prompt)
    assert whole["completion_tokens"] == len(HELLO)
    assert whole["total_tokens"] == len(prompt) + len(HELLO)
    assert streamed[-1]["usage"] == whole


@pytest.mark.parametrize(
    ("script", "reason"),
    [(ids_of("abcdef"), "length"), ([*ids_of("ab"), EOS], "stop")],
    ids=["cap", "eos is the third token"],
)
async def test_a_cap_is_length_and_an_end_is_stop(script, reason):
    """Pit A14."""
    told = (await Gateway(script).chat(max_tokens=3)).json()

    assert told["choices"][0]["finish_reason"] == reason
    assert told["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"messages": [{"role": "user", "content": "x" * 300}]}, 400, "messages"),
        ({"model": "gpt-5"}, 404, "model"),
        ({"temperature": 3}, 400, "temperature"),
    ],
)
async def test_bad_input_is_refused_before_a_stream_begins(fields, status, param):
    """Pit A15."""
    gateway = Gateway(HELLO)

    response = await gateway.chat(stream=True, **fields)

    assert response.status_code == status
    assert error(response)["param"] == param
    assert gateway.generator.requests == []


async def test_a_refusal_within_the_grace_gets_its_own_status():
    """Pit A15, for what only the head can know."""
    gateway = Gateway([GenerationFailed(FailureCode.NO_ROUTE, "layers 4-8 are served by nobody")])

    response = await gateway.chat(stream=True)

    assert response.status_code == 503
    assert error(response)["code"] == "no_route"


async def test_line_ends_in_text_cannot_forge_an_event():
    """Pit A17."""
    said = "a\r\n\ndata: [DONE]\n\n\u2028: b"

    response = await Gateway([*ids_of(said), EOS]).chat(stream=True)

    assert streamed_text(response) == said
    assert "\u2028" not in response.text


async def test_the_role_comes_once_and_what_names_the_answer_always():
    """Pit A106."""
    told = chunks(await Gateway(HELLO).chat(stream=True, stream_options={"include_usage": True}))

    deltas = [chunk["choices"][0]["delta"] for chunk in told if chunk["choices"]]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert not any("role" in delta for delta in deltas[1:])
    for name in ("id", "created", "model", "system_fingerprint", "object"):
        assert len({chunk[name] for chunk in told}) == 1
    assert told[0]["object"] == "chat.completion.chunk"


async def test_proxies_are_told_not_to_buffer():
    """Pit A16."""
    response = await Gateway(HELLO).chat(stream=True)

    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"


@asynccontextmanager
async def waiting_stream(gateway: Gateway) -> AsyncIterator[AsyncIterator[str]]:
    """A live stream that has sent comments only: its text, part by part."""
    body = {"model": "default", "messages": USER, "stream": True}
    async with (
        gateway.served() as url,
        httpx2.AsyncClient() as client,
        client.stream("POST", f"{url}/v1/chat/completions", json=body) as response,
    ):
        parts = response.aiter_text()
        received = ""
        while received.count(": keep-alive\n\n") < 3:
            received += await anext(parts)
        assert frames_of(received) == []
        yield parts


OFTEN = GatewaySettings(keepalive_s=0.01, grace_s=0.0)


async def test_a_long_prefill_is_bridged_by_comments():
    """Pit A16: the headers are there at once, and something is sent while nothing is drawn."""
    prefill = Gate()

    async with waiting_stream(Gateway([prefill, *HELLO], settings=OFTEN)) as parts:
        prefill.opened.set()
        *told, last = frames_of("".join([part async for part in parts]))

    assert last == "[DONE]"
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in told) == "Hello"


async def test_a_failure_after_the_headers_is_an_error_frame():
    prefill = Gate()
    failure = GenerationFailed(FailureCode.OVERLOADED, "no place is free")

    async with waiting_stream(Gateway([prefill, failure], settings=OFTEN)) as parts:
        prefill.opened.set()
        told, last = frames_of("".join([part async for part in parts]))

    assert told["error"]["code"] == "overloaded"
    assert last == "[DONE]"
