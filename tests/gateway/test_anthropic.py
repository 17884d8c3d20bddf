"""POST /v1/messages: Anthropic's shapes and events over the same chats."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest
from tests.gateway.api import Gateway, ids_of
from tests.gateway.scripted import Gate
from tests.gateway.speaking_text import SpeakingText

from meshnet.core.generation.transcript import FailureCode
from meshnet.gateway.settings import GatewaySettings
from meshnet.head import GenerationFailed
from meshnet.simulation.toy_text import EOS, word

ASKED = {"model": "default", "max_tokens": 400, "messages": [{"role": "user", "content": "hi"}]}
TOOL = {"name": "look", "description": "d", "input_schema": {"type": "object", "properties": {}}}
CALL = '<tool_call>{"name": "look", "arguments": {"at": "é"}}</tool_call>'


def gateway(said: str, **options: Any) -> Gateway:
    return Gateway((*ids_of(said), EOS), text=SpeakingText(), **options)


async def post(made: Gateway, path: str = "/v1/messages", **fields: Any) -> httpx2.Response:
    return await made.send("POST", path, json=ASKED | fields)


def events(response: httpx2.Response) -> list[dict[str, Any]]:
    """The data of every event, whose name is its type."""
    assert response.headers["content-type"].startswith("text/event-stream")
    told = []
    for event in response.text.removesuffix("\n\n").split("\n\n"):
        name, data = event.split("\n")
        body = json.loads(data.removeprefix("data: "))
        assert name == f"event: {body['type']}"
        told.append(body)
    return told


def accumulated(told: list[dict[str, Any]]) -> dict[str, Any]:
    """Add up events as Anthropic's client does."""
    message = told[0]["message"]
    texts: dict[int, str] = {}
    for event in told[1:]:
        match event["type"]:
            case "content_block_start":
                assert event["index"] == len(message["content"])
                message["content"].append(event["content_block"])
            case "content_block_delta":
                block, delta = message["content"][event["index"]], event["delta"]
                kind = delta["type"].removesuffix("_delta")
                if kind == "input_json":
                    texts[event["index"]] = texts.get(event["index"], "") + delta["partial_json"]
                else:
                    block[kind] += delta[kind]
            case "message_delta":
                message |= event["delta"]
                message["usage"] |= event["usage"]
    for index, text in texts.items():
        message["content"][index]["input"] = json.loads(text)
    return message


async def test_a_message_has_anthropics_shape():
    made = gateway("Sure.")
    made.generator.cached_tokens = 2

    told = (await post(made)).json()

    assert told | {"id": "", "usage": {}} == {
        "id": "",
        "type": "message",
        "role": "assistant",
        "model": "org/toy",
        "content": [{"type": "text", "text": "Sure."}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {},
    }
    assert told["id"].startswith("msg_")
    prompt = len(made.generator.requests[0].prompt)
    assert told["usage"] == {
        "input_tokens": prompt - 2,
        "cache_read_input_tokens": 2,
        "cache_creation_input_tokens": 0,
        "output_tokens": len(ids_of("Sure.")) + 1,
    }


async def test_events_come_in_anthropics_order():
    told = events(await post(gateway("Sure."), stream=True))

    kinds = [event["type"] for event in told]
    deltas = kinds.count("content_block_delta")
    assert kinds == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * deltas,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert told[0]["message"]["usage"]["input_tokens"] > 0


async def test_streamed_blocks_add_up_to_the_whole_message():
    said = f"<think>Hm.</think>Sure.\n{CALL}\n{CALL}"

    whole = (await post(gateway(said), tools=[TOOL])).json()
    told = events(await post(gateway(said), tools=[TOOL], stream=True))

    message = accumulated(told)
    kinds = [block["type"] for block in whole["content"]]
    assert kinds == ["thinking", "text", "tool_use", "tool_use"]
    assert whole["content"][2]["input"] == {"at": "é"}
    assert whole["stop_reason"] == "tool_use"
    ids = [block.pop("id", None) for block in whole["content"] + message["content"]]
    assert len({each for each in ids if each}) == 2
    assert message | {"id": whole["id"]} == whole
    opened = [event["index"] for event in told if event["type"] == "content_block_start"]
    closed = [event["index"] for event in told if event["type"] == "content_block_stop"]
    assert opened == closed == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("fields", "reason", "stop"),
    [
        ({"max_tokens": 2}, "max_tokens", None),
        ({"stop_sequences": ["x", "r"]}, "stop_sequence", "r"),
        ({}, "end_turn", None),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_why_a_message_ended_is_told(
    fields: dict[str, Any], reason: str, stop: str | None, stream: bool
):
    response = await post(gateway("Sure."), stream=stream, **fields)

    message = accumulated(events(response)) if stream else response.json()
    assert (message["stop_reason"], message["stop_sequence"]) == (reason, stop)


async def test_a_conversation_with_tools_becomes_the_chat_it_is():
    made = gateway("a")
    system = [{"type": "text", "text": "be "}, {"type": "text", "text": "brief"}]
    use = {"type": "tool_use", "id": "t1", "name": "look", "input": {"at": 1}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "seen"}
    spoken = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [{"type": "text", "text": "So"}, use]},
        {"role": "user", "content": [result, {"type": "text", "text": "and?"}]},
    ]
    call = {"id": "t1", "type": "function", "function": {"name": "look", "arguments": "{}"}}

    await post(made, messages=spoken, system=system)
    await made.chat(
        messages=[
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "So", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "t1", "content": "seen"},
            {"role": "user", "content": "and?"},
        ]
    )

    first, second = made.generator.requests
    assert first.prompt == second.prompt


async def test_fields_that_are_not_known_are_named():
    """Pit A32."""
    response = await post(gateway("a"), metadata={"user_id": "u"}, service_tier="auto")

    assert response.headers["x-meshnet-ignored"] == "metadata,service_tier"


async def test_fields_that_are_not_known_are_named_wherever_they_stand():
    kept = {"cache_control": {"type": "ephemeral"}}
    thought = {"type": "thinking", "thinking": "so", "signature": "s"}
    spoken = [
        {"role": "user", "content": [{"type": "text", "text": "hi"} | kept] * 2},
        {"role": "assistant", "content": [thought, {"type": "text", "text": "So"}]},
        {"role": "user", "content": "and?", "mood": "glad"},
    ]

    response = await post(
        gateway("a"),
        messages=spoken,
        system=[{"type": "text", "text": "be brief"} | kept],
        thinking={"type": "enabled", "budget_tokens": 1024},
    )

    assert response.headers["x-meshnet-ignored"].split(",") == [
        "system.cache_control",
        "messages.content.cache_control",
        "messages.mood",
        "thinking.budget_tokens",
    ]


@pytest.mark.parametrize(("kind", "thinks"), [("enabled", 1), ("adaptive", 1), ("disabled", 0)])
async def test_the_template_is_told_whether_to_think(kind: str, thinks: int):
    made = gateway("a")

    await post(made, thinking={"type": kind}, output_config={"effort": "low"})

    assert made.generator.requests[0].prompt.count(word("<|think|>")) == thinks


async def test_names_of_tools_may_be_as_long_as_anthropics():
    name = "x" * 128
    said = f'<tool_call>{{"name": "{name}", "arguments": {{"at": NaN}}}}</tool_call>'
    called = said.replace("NaN", "1")

    told = (await post(gateway(called), tools=[TOOL | {"name": name}])).json()
    spoken = (await post(gateway(said), tools=[TOOL | {"name": name}])).json()

    assert told["content"][0]["name"] == name
    assert spoken["content"] == [{"type": "text", "text": said}]


async def test_tokens_are_counted_as_they_would_be_billed():
    made = gateway("a")
    fields = {"system": "be brief", "tools": [TOOL]}
    usage = (await post(made, **fields)).json()["usage"]

    counted = await made.send(
        "POST",
        "/v1/messages/count_tokens",
        json={"model": "default", "messages": ASKED["messages"], **fields},
    )

    assert counted.json() == {"input_tokens": usage["input_tokens"]}
    assert len(made.generator.requests) == 1


@pytest.mark.parametrize(
    ("fields", "status", "kind", "named"),
    [
        ({"max_tokens": None}, 400, "invalid_request_error", "max_tokens"),
        ({"messages": []}, 400, "invalid_request_error", "messages"),
        ({"model": "other"}, 404, "not_found_error", "other"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            400,
            "invalid_request_error",
            "messages[0].content[0].type",
        ),
        ({"tool_choice": {"type": "what"}}, 400, "invalid_request_error", "tool_choice.type"),
        ({"tool_choice": {"type": "any"}}, 400, "invalid_request_error", "tool_choice"),
        ({"thinking": {"type": 1}}, 400, "invalid_request_error", "thinking.type"),
        ({"output_config": {"format": {}}}, 400, "invalid_request_error", "output_config.format"),
        ({"output_config": {"other": 1}}, 400, "invalid_request_error", "output_config.other"),
        (
            {"messages": [*ASKED["messages"], {"role": "assistant", "content": "So"}]},
            400,
            "invalid_request_error",
            "messages[1]",
        ),
        ({"tools": [TOOL | {"name": "x" * 129}]}, 400, "invalid_request_error", "1 to 128"),
        ({"mcp_servers": [{}]}, 400, "invalid_request_error", "mcp_servers"),
        (
            {"messages": [{"role": "user", "content": "x" * 5000}]},
            400,
            "invalid_request_error",
            "maximum context length",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_refusals_have_anthropics_shape(
    fields: dict[str, Any], status: int, kind: str, named: str, stream: bool
):
    response = await post(gateway("a"), stream=stream, **fields)

    assert response.status_code == status
    body = response.json()
    assert body["type"] == "error"
    assert body["error"]["type"] == kind
    assert named in body["error"]["message"]


async def test_a_failure_in_a_stream_is_an_event_and_no_end():
    failure = GenerationFailed(FailureCode.UPSTREAM, "gone")
    gate = Gate()
    settings = GatewaySettings(grace_s=0.0)
    made = Gateway((*ids_of("ab"), gate, failure), text=SpeakingText(), settings=settings)
    gate.opened.set()

    told = events(await post(made, stream=True))

    assert told[-1] == {"type": "error", "error": {"type": "api_error", "message": "gone"}}
    assert "message_stop" not in {event["type"] for event in told}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"x-api-key": "right"}, 200),
        ({"authorization": "Bearer right"}, 200),
        ({"x-api-key": "wrong"}, 401),
        ({}, 401),
    ],
)
async def test_either_header_carries_the_key(headers: dict[str, str], status: int):
    made = gateway("a", settings=GatewaySettings(api_keys=("right",)))

    response = await made.send("POST", "/v1/messages", json=ASKED, headers=headers)

    assert response.status_code == status
    if status == 401:
        assert response.json()["error"]["type"] == "authentication_error"
