"""The official client, strict about what it is answered."""

import os

import openai
import pytest
from pydantic import BaseModel

KEY, URL = os.environ["MESHNET_SUITE_KEY"], os.environ["MESHNET_SUITE_URL"]
ASK = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"town": {"type": "string", "maxLength": 12}},
            "required": ["town"],
            "additionalProperties": False,
        },
    },
}
FORCED = {"type": "function", "function": {"name": "weather"}}


class Verdict(BaseModel):
    right: bool


@pytest.fixture
def client():
    with openai.OpenAI(
        base_url=f"{URL}/v1", api_key=KEY, max_retries=0, timeout=120,
        _strict_response_validation=True,
    ) as client:  # fmt: skip
        yield client


def test_models(client):
    assert [model.object for model in client.models.list()] != []


def test_chat(client):
    told = client.chat.completions.create(model="default", messages=ASK, temperature=0)
    assert "Paris" in told.choices[0].message.content
    assert told.usage.total_tokens == told.usage.prompt_tokens + told.usage.completion_tokens


def test_streamed_chat(client):
    with client.chat.completions.stream(
        model="default", messages=ASK, temperature=0, stream_options={"include_usage": True}
    ) as stream:
        events = [event.type for event in stream]
        told = stream.get_final_completion()
    assert events.count("content.delta") > 1
    assert "Paris" in told.choices[0].message.content
    assert told.usage.completion_tokens > 1


def test_several_choices(client):
    told = client.chat.completions.create(
        model="default", messages=ASK, max_tokens=4, n=3, temperature=1.0, seed=1
    )
    assert [choice.index for choice in told.choices] == [0, 1, 2]


def test_log_probabilities(client):
    told = client.chat.completions.create(
        model="default", messages=ASK, max_tokens=3, logprobs=True, top_logprobs=2
    )
    assert [len(each.top_logprobs) for each in told.choices[0].logprobs.content] == [2, 2, 2]


def test_structured_output(client):
    told = client.chat.completions.parse(
        model="default", messages=ASK, max_tokens=40, response_format=Verdict
    )
    assert isinstance(told.choices[0].message.parsed, Verdict)


def test_tool_calls(client):
    told = client.chat.completions.parse(
        model="default", messages=ASK, tools=[WEATHER], tool_choice=FORCED, max_tokens=60
    )
    (call,) = told.choices[0].message.tool_calls
    assert told.choices[0].finish_reason in ("tool_calls", "stop")
    assert set(call.function.parsed_arguments) == {"town"}


def test_streamed_tool_calls(client):
    with client.chat.completions.stream(
        model="default", messages=ASK, tools=[WEATHER], tool_choice=FORCED, max_tokens=60
    ) as stream:
        for _ in stream:
            pass
        told = stream.get_final_completion()
    assert told.choices[0].message.tool_calls[0].function.name == "weather"


def test_completions(client):
    told = client.completions.create(
        model="default", prompt=["One, two, three,", "Four,"], max_tokens=4, echo=True
    )
    assert [choice.text[:5] for choice in told.choices] == ["One, ", "Four,"]
    assert client.completions.create(model="default", prompt=[504, 17], max_tokens=4).choices


def test_errors_of_their_kinds(client):
    with pytest.raises(openai.NotFoundError, match="nobody"):
        client.chat.completions.create(model="nobody", messages=ASK)
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(model="default", messages=ASK, temperature=9)
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()
    with pytest.raises(openai.BadRequestError, match="context"):
        client.chat.completions.create(
            model="default", messages=[{"role": "user", "content": "word " * 20_000}]
        )
