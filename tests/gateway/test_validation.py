"""What is refused, with which status and which name; and what is not."""

from __future__ import annotations

import asyncio
import json

import pytest
from tests.gateway.api import USER, Gateway, chat_scope, error, ids_of

from meshnet.gateway.settings import ApiLimits, GatewaySettings
from meshnet.simulation.toy_text import EOS, VOCABULARY

HELLO = [*ids_of("Hello"), EOS]


async def post(gateway: Gateway, content: bytes, path: str = "/v1/chat/completions"):
    return await gateway.send("POST", path, content=content)


WHOLE = b'"model": "default", "prompt": "a", "messages": [{"role": "user", "content": "a"}]'


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "invalid_json"),
        (b"{", "invalid_json"),
        (b"\xff\xfe{}", "invalid_json"),
        (b"[" * 100_000, "invalid_json"),
        (b"{" + WHOLE + b', "x": 1, "x": 2}', "invalid_json"),
        (b"{" + WHOLE + b', "x": NaN}', "invalid_json"),
        (b"{" + WHOLE + b', "x": -Infinity}', "invalid_json"),
        (b"{" + WHOLE + b', "x": ' + b"9" * 5000 + b"}", "invalid_json"),
        (b"{" + WHOLE + b', "temperature": 1e999}', "invalid_value"),
        (b'"text"', "invalid_type"),
        (b"[]", "invalid_type"),
        (b"null", "invalid_type"),
    ],
    ids=[
        "empty", "half", "not utf-8", "deep", "twice", "nan", "infinity", "huge integer",
        "huge number", "string", "array", "null",
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_a_body_that_is_no_json_object_is_400(path: str, body: bytes, code: str):
    """Pit A35: also where NaN or a doubled key is in a field that nobody reads."""
    response = await post(Gateway(), body, path)

    assert response.status_code == 400
    assert error(response)["type"] == "invalid_request_error"
    assert error(response)["code"] == code


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": None}, "model"),
        ({"model": 7}, "model"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "wizard", "content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [*USER, {"role": "user", "content": None}]}, "messages[1].content"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages[0].content"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_p": -0.1}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"top_k": 1.5}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"frequency_penalty": -2.5}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"repetition_penalty": -3}, "repetition_penalty"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"max_tokens": 3.0}, "max_tokens"),
        ({"min_tokens": 4, "max_tokens": 3}, "min_tokens"),
        ({"seed": 2**64}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"stop": ""}, "stop"),
        ({"stop": ["", "x"]}, "stop[0]"),
        ({"stop": [1]}, "stop[0]"),
        ({"stop": 1}, "stop"),
        ({"stop": {"a": 1}}, "stop"),
        ({"logit_bias": {"abc": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"+1": 1}}, "logit_bias"),
        ({"logit_bias": {str(VOCABULARY): 1}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": {"5": 1, "05": 2}}, "logit_bias"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"stop_token_ids": [VOCABULARY]}, "stop_token_ids[0]"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": 1}, "logprobs"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": 1}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"chat_template_kwargs": {"other": 1}}, "chat_template_kwargs.other"),
    ],
)
async def test_a_wrong_field_is_named(fields: dict, param: str):
    """Pits A35, A40, A41, A42 and A46: 400, never 422 and never 500."""
    gateway = Gateway(HELLO)
    body = {"model": "default", "messages": USER} | fields

    response = await post(gateway, json.dumps(body).encode())

    assert response.status_code == 400
    assert error(response)["param"] == param
    assert gateway.generator.requests == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("best_of", 2),
        ("functions", [{"name": "f"}]),
        ("function_call", {"name": "f"}),
        ("audio", {"voice": "x"}),
        ("modalities", ["text", "audio"]),
        ("chat_template", "{{ x }}"),
        ("truncate_prompt_tokens", 5),
        ("continue_final_message", True),
        ("echo", True),
        ("guided_json", {}),
    ],
)
async def test_what_would_change_the_answer_is_refused_not_ignored(name: str, value: object):
    """Pit A55."""
    response = await Gateway(HELLO).chat(**{name: value})

    assert response.status_code == 400
    assert error(response)["param"] == name
    assert error(response)["code"] == "unsupported_parameter"


@pytest.mark.parametrize(
    ("name", "value"),
    [("suffix", "x"), ("best_of", 2)],
)
async def test_a_completion_refuses_the_same_way(name: str, value: object):
    """Pit A55."""
    response = await Gateway(HELLO).complete(**{name: value})

    assert response.status_code == 400
    assert error(response)["param"] == name


async def test_values_that_ask_for_nothing_are_accepted():
    response = await Gateway(HELLO).chat(
        n=1,
        tools=[],
        tool_choice="auto",
        response_format={"type": "text"},
        modalities=["text"],
        stop=None,
        logit_bias=None,
        stream_options=None,
    )

    assert response.status_code == 200


async def test_unknown_fields_are_ignored_and_named():
    """Pit A32."""
    response = await Gateway(HELLO).chat(
        store=True,
        metadata={"a": "b"},
        user="me",
        service_tier="auto",
        parallel_tool_calls=False,
        reasoning_effort="low",
        prediction={"type": "content", "content": "x"},
    )

    assert response.status_code == 200
    assert response.headers["x-meshnet-ignored"] == ("store,metadata,user,service_tier,prediction")


async def test_unknown_fields_are_named_wherever_they_stand():
    part = {"type": "text", "text": "hi", "cache_control": {}}
    tool = {"type": "function", "function": {"name": "f", "strict": True}}
    call = {"id": "t", "type": "function", "function": {"name": "f", "arguments": "{}"}}

    response = await Gateway(HELLO).chat(
        messages=[
            {"role": "user", "content": [part, part]},
            {"role": "assistant", "content": "a", "tool_calls": [call], "refusal": None},
            {"role": "tool", "tool_call_id": "t", "content": "b", "mood": "glad"},
        ],
        tools=[tool],
        tool_choice="none",
    )

    assert response.status_code == 200
    assert response.headers["x-meshnet-ignored"].split(",") == [
        "messages.content.cache_control",
        "messages.mood",
        "tools.function.strict",
    ]


async def test_a_name_that_could_forge_a_header_is_not_repeated():
    response = await Gateway(HELLO).chat(**{"a\r\nx-evil: 1": 1, "é": 2, "fine": 3})

    assert response.headers["x-meshnet-ignored"] == "fine"
    assert "x-evil" not in response.headers


async def test_an_image_part_is_named_and_never_fetched():
    """Pits A23 and A98."""
    content = [
        {"type": "text", "text": "what is this"},
        {"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/x.png"}},
    ]

    response = await Gateway(HELLO).chat(messages=[{"role": "user", "content": content}])

    assert response.status_code == 400
    assert error(response)["param"] == "messages[0].content[1]"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 10**6}, "n"),
        ({"n": 0}, "n"),
        ({"n": True}, "n"),
        ({"logprobs": True, "top_logprobs": 10**6}, "top_logprobs"),
        ({"logit_bias": {str(key): 1 for key in range(2000)}}, "logit_bias"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": "x" * 257}, "stop"),
        ({"messages": USER * 4097}, "messages"),
        ({"stop_token_ids": [1] * 300}, "stop_token_ids"),
    ],
)
async def test_sizes_are_bounded(fields: dict, param: str):
    """Pit A99."""
    response = await Gateway(HELLO).chat(**fields)

    assert response.status_code == 400
    assert error(response)["param"] == param


@pytest.mark.parametrize("stop", [["a", "b", "c", "d", "e"], ["x" * 256], []])
async def test_more_stops_than_openai_allows_are_fine(stop: list[str]):
    """Pit A46."""
    assert (await Gateway(HELLO).chat(stop=stop)).status_code == 200


async def test_a_declared_body_over_the_cap_is_refused_unread():
    """Pit A99: the body is never asked for."""
    gateway = Gateway(HELLO)
    sent: list[dict] = []

    async def receive() -> dict:
        raise AssertionError("the body was read")

    async def send(message: dict) -> None:
        sent.append(message)

    await gateway.app(chat_scope("content-length", "1000000000"), receive, send)

    assert sent[0]["status"] == 413
    assert json.loads(sent[1]["body"])["error"]["code"] == "request_too_large"


async def test_an_undeclared_body_is_refused_where_it_passes_the_cap():
    """Pit A99."""
    gateway = Gateway(HELLO, settings=GatewaySettings(limits=ApiLimits(body_bytes=1000)))
    given = 0

    async def endless():
        nonlocal given
        while True:
            given += 1
            yield b" " * 400

    response = await gateway.send("POST", "/v1/chat/completions", content=endless())

    assert response.status_code == 413
    assert given == 3


async def test_a_body_that_never_comes_is_not_waited_for_long():
    gateway = Gateway(HELLO, settings=GatewaySettings(body_s=0.01))
    never = asyncio.Event()

    async def stuck():
        yield b"{"
        await never.wait()

    response = await gateway.send("POST", "/v1/chat/completions", content=stuck())

    assert response.status_code == 408
    assert error(response)["code"] == "request_timeout"


@pytest.mark.parametrize("wrong", [{"keepalive_s": 0}, {"grace_s": -1}, {"api_keys": ("",)}])
def test_settings_that_make_no_sense_are_refused(wrong: dict):
    with pytest.raises(ValueError, match="expected"):
        GatewaySettings(**wrong)


async def test_a_form_is_no_json():
    """A web page may post forms to any origin, so they are no way in."""
    response = await Gateway(HELLO).send("POST", "/v1/chat/completions", data={"model": "default"})

    assert response.status_code == 415
    assert "application/json" in error(response)["message"]


async def test_a_message_never_repeats_a_text_of_the_client():
    response = await Gateway(HELLO).chat(temperature="my secret")

    assert "my secret" not in response.text
