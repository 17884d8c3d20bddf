"""Anthropic's client against `/v1/messages`."""

import os

import anthropic
import pytest

KEY, URL = os.environ["MESHNET_SUITE_KEY"], os.environ["MESHNET_SUITE_URL"]
ASK = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER = {
    "name": "weather",
    "input_schema": {
        "type": "object",
        "properties": {"town": {"type": "string", "maxLength": 12}},
        "required": ["town"],
        "additionalProperties": False,
    },
}


@pytest.fixture
def client():
    with anthropic.Anthropic(
        base_url=URL, api_key=KEY, max_retries=0, timeout=120, _strict_response_validation=True
    ) as client:
        yield client


def test_chat(client):
    told = client.messages.create(model="default", messages=ASK, max_tokens=12)
    assert told.content[0].text
    assert told.stop_reason == "max_tokens"
    assert told.usage.output_tokens == 12


def test_streamed_chat(client):
    with client.messages.stream(model="default", messages=ASK, max_tokens=12) as stream:
        pieces = list(stream.text_stream)
        told = stream.get_final_message()
    assert len(pieces) > 1
    assert "".join(pieces) == told.content[0].text


def test_token_counts(client):
    counted = client.messages.count_tokens(model="default", messages=ASK)
    told = client.messages.create(model="default", messages=ASK, max_tokens=1)
    cached = told.usage.cache_read_input_tokens or 0
    assert counted.input_tokens == told.usage.input_tokens + cached


def test_tool_calls(client):
    told = client.messages.create(
        model="default", messages=ASK, max_tokens=60, tools=[WEATHER],
        tool_choice={"type": "tool", "name": "weather"},
    )  # fmt: skip
    (call,) = [block for block in told.content if block.type == "tool_use"]
    assert (told.stop_reason, set(call.input)) == ("tool_use", {"town"})


def test_streamed_tool_calls(client):
    with client.messages.stream(
        model="default", messages=ASK, max_tokens=60, tools=[WEATHER],
        tool_choice={"type": "tool", "name": "weather"},
    ) as stream:  # fmt: skip
        told = stream.get_final_message()
    assert [block.name for block in told.content if block.type == "tool_use"] == ["weather"]


def test_errors_of_their_kinds(client):
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="nobody", messages=ASK, max_tokens=1)
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        client.messages.create(model="default", messages=ASK, max_tokens=0)
    with pytest.raises(anthropic.AuthenticationError):
        client.with_options(api_key="wrong").messages.create(
            model="default", messages=ASK, max_tokens=1
        )
