"""LiteLLM as people use it before a local server: `openai/...` with an own address."""

import os

import litellm
import pytest

KEY, URL = os.environ["MESHNET_SUITE_KEY"], os.environ["MESHNET_SUITE_URL"]
ASK = [{"role": "user", "content": "What is the capital of France?"}]
HERE = {"api_base": f"{URL}/v1", "api_key": KEY, "max_retries": 0, "timeout": 120, "temperature": 0}


def test_chat():
    told = litellm.completion("openai/default", messages=ASK, **HERE)
    assert "Paris" in told.choices[0].message.content
    assert told.usage.completion_tokens > 1


def test_streamed_chat():
    pieces = litellm.completion("openai/default", messages=ASK, max_tokens=12, stream=True, **HERE)
    texts = [piece.choices[0].delta.content or "" for piece in pieces]
    assert "Paris" in "".join(texts)


def test_completions():
    told = litellm.text_completion(
        model="text-completion-openai/default", prompt="One, two, three,", max_tokens=4, **HERE
    )
    assert told.choices[0].text


def test_tool_calls():
    tool = {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {"town": {"type": "string", "maxLength": 12}},
                "required": ["town"],
                "additionalProperties": False,
            },
        },
    }
    told = litellm.completion(
        "openai/default", messages=ASK, tools=[tool], tool_choice="required", max_tokens=60, **HERE
    )
    assert told.choices[0].message.tool_calls[0].function.name == "weather"


def test_errors_of_their_kinds():
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(
            "openai/default", messages=[{"role": "user", "content": "word " * 20_000}], **HERE
        )
    with pytest.raises(litellm.AuthenticationError):
        litellm.completion("openai/default", messages=ASK, **{**HERE, "api_key": "wrong"})
    with pytest.raises(litellm.NotFoundError):
        litellm.completion("openai/nobody", messages=ASK, **HERE)
    with pytest.raises(litellm.BadRequestError):
        litellm.completion("openai/default", messages=ASK, **{**HERE, "temperature": 9})
