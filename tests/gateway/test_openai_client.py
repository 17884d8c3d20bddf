"""CLIENT: the official client, its types strictly checked, over a loopback socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import openai
import pytest
from tests.gateway.api import USER, Gateway, ids_of
from tests.gateway.scripted import Gate

from meshnet.gateway.settings import GatewaySettings
from meshnet.head import FailureCode, GenerationFailed
from meshnet.simulation.toy_text import EOS, ToyText, word

FOX = [word("The"), word(" quick"), word(" br"), word("own"), word(" fox."), EOS]


@asynccontextmanager
async def client_of(
    gateway: Gateway, *, strict: bool = True, retries: int = 0, key: str = "none"
) -> AsyncIterator[openai.AsyncOpenAI]:
    async with (
        gateway.served() as url,
        openai.AsyncOpenAI(
            base_url=f"{url}/v1",
            api_key=key,
            max_retries=retries,
            _strict_response_validation=strict,
        ) as client,
    ):
        yield client


async def test_a_chat():
    async with client_of(Gateway(FOX)) as client:
        told = await client.chat.completions.create(model="default", messages=USER)

    assert told.choices[0].message.content == "The quick brown fox."
    assert told.choices[0].finish_reason == "stop"
    assert told.usage is not None
    assert told.usage.completion_tokens == len(FOX)
    assert told._request_id is not None


async def test_a_streamed_chat_with_usage_and_logprobs():
    async with client_of(Gateway(FOX)) as client:
        stream = await client.chat.completions.create(
            model="org/toy",
            messages=USER,
            stream=True,
            stream_options={"include_usage": True},
            logprobs=True,
            top_logprobs=2,
        )
        told = [chunk async for chunk in stream]

    assert told[-1].usage is not None
    assert told[-1].usage.completion_tokens == len(FOX)
    text = "".join(choice.delta.content or "" for chunk in told for choice in chunk.choices)
    assert text == "The quick brown fox."


async def test_the_client_s_own_accumulation():
    """Pit A106: it joins strings of all deltas and keeps the last usage and fingerprint."""
    async with (
        client_of(Gateway(FOX)) as client,
        client.chat.completions.stream(
            model="default", messages=USER, stream_options={"include_usage": True}
        ) as stream,
    ):
        told = await stream.get_final_completion()

    assert told.choices[0].message.role == "assistant"
    assert told.choices[0].message.content == "The quick brown fox."
    assert told.choices[0].finish_reason == "stop"
    assert told.usage is not None
    assert told.system_fingerprint == "fp_toy"


async def test_completions_of_two_prompts_with_logprobs():
    async with client_of(Gateway(FOX)) as client:
        told = await client.completions.create(model="default", prompt=["a", "b"], logprobs=2)

    assert [choice.text for choice in told.choices] == ["The quick brown fox."] * 2
    assert told.choices[1].logprobs is not None
    assert told.choices[1].logprobs.text_offset == [0, 3, 9, 12, 15]


async def test_a_streamed_completion():
    """Loosely typed: the client's strict types know no chunk without a finish reason."""
    async with client_of(Gateway(FOX), strict=False) as client:
        stream = await client.completions.create(model="default", prompt="a", stream=True)
        told = [chunk async for chunk in stream]

    assert "".join(chunk.choices[0].text for chunk in told) == "The quick brown fox."
    assert told[-1].choices[0].finish_reason == "stop"


async def test_models():
    async with client_of(Gateway(FOX)) as client:
        listed = [model async for model in client.models.list()]
        one = await client.models.retrieve("org/toy")

    assert [model.id for model in listed] == ["org/toy"]
    assert one.id == "org/toy"


async def test_errors_are_the_client_s_own_classes():
    locked = GatewaySettings(api_keys=("right",))
    async with client_of(Gateway(FOX, settings=locked), key="right") as client:
        with pytest.raises(openai.BadRequestError) as bad:
            await client.chat.completions.create(model="default", messages=USER, temperature=3)
        with pytest.raises(openai.NotFoundError) as unknown:
            await client.chat.completions.create(model="gpt", messages=USER)
        with pytest.raises(openai.AuthenticationError) as denied:
            await client.with_options(api_key="wrong").models.list()

    assert (bad.value.param, bad.value.code) == ("temperature", "invalid_value")
    assert unknown.value.code == "model_not_found"
    assert denied.value.code == "invalid_api_key"


async def test_a_context_that_is_too_small_is_told_as_such():
    """Pit A28."""
    async with client_of(Gateway(FOX, text=ToyText(context_length=8))) as client:
        with pytest.raises(openai.BadRequestError, match="maximum context length is 8") as refused:
            await client.chat.completions.create(model="default", messages=USER, max_tokens=9)

    assert refused.value.code == "context_length_exceeded"


async def test_a_failure_in_a_stream_is_an_api_error():
    gateway = Gateway([*ids_of("He"), GenerationFailed(FailureCode.UPSTREAM, "node b is gone")])
    async with client_of(gateway) as client:
        stream = await client.chat.completions.create(model="default", messages=USER, stream=True)

        with pytest.raises(openai.APIError, match="node b is gone"):
            async for _ in stream:
                pass


async def test_the_client_ignores_comments():
    """Pit A16: keep-alive comments are no chunks."""
    gate = Gate()
    often = GatewaySettings(keepalive_s=0.01, grace_s=0.0)
    async with client_of(Gateway([gate, *FOX], settings=often)) as client:
        stream = await client.chat.completions.create(model="default", messages=USER, stream=True)
        gate.opened.set()
        told = [chunk async for chunk in stream]

    text = "".join(choice.delta.content or "" for chunk in told for choice in chunk.choices)
    assert text == "The quick brown fox."


async def test_closing_a_stream_closes_the_generation():
    """Pit A56."""
    gate = Gate()
    gateway = Gateway([ord("a"), ord("b"), gate])
    async with client_of(gateway) as client:
        stream = await client.chat.completions.create(model="default", messages=USER, stream=True)
        async for _ in stream:
            break
        await stream.close()
        await gateway.generator.over.wait()

    assert gateway.generator.closed_early == 1


@pytest.mark.parametrize(
    ("failure", "calls"),
    [
        (None, 0),
        (FailureCode.OVERLOADED, 3),
        (FailureCode.NO_ROUTE, 3),
        (FailureCode.UPSTREAM, 3),
        (FailureCode.NUMERICAL, 1),
        (FailureCode.TIMEOUT, 1),
        (FailureCode.TOO_LARGE, 1),
        (FailureCode.UNAUTHORIZED, 1),
    ],
)
async def test_the_client_retries_only_what_a_retry_may_mend(failure, calls, monkeypatch):
    """Pit A107: bad input reaches no generator at all."""
    monkeypatch.setattr(openai.AsyncOpenAI, "_calculate_retry_timeout", lambda *_: 0.0)
    script = FOX if failure is None else [GenerationFailed(failure, "why")]
    gateway = Gateway(script)
    async with client_of(gateway, retries=2) as client:
        with pytest.raises(openai.APIStatusError):
            await client.chat.completions.create(
                model="default", messages=USER, temperature=9 if failure is None else 1
            )

    assert len(gateway.generator.requests) == calls
