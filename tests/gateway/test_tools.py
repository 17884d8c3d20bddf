"""Calls of tools and thoughts, whole and streamed, as the API's clients read them."""

from __future__ import annotations

import json
import threading
from typing import Any

import openai
import pytest
from tests.gateway.api import USER, Gateway, chunks, error, finish_reasons, ids_of
from tests.gateway.scripted import Gate
from tests.gateway.speaking_text import SpeakingText

from meshnet.simulation.toy_text import EOS

TOOL = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {}}},
}
OTHER = {"type": "function", "function": {"name": "add"}}
TOOLS = {"tools": [TOOL, OTHER]}
LOOK = '<tool_call>{"name": "look", "arguments": {"at": "é"}}</tool_call>'
ADD = '<tool_call>{"name": "add", "arguments": {}}</tool_call>'
BOTH = f"<think>Hm.</think>Sure.\n{LOOK}\n{ADD}"


def gateway(text: str) -> Gateway:
    return Gateway((*ids_of(text), EOS), text=SpeakingText())


def accumulated(told: list[dict[str, Any]]) -> dict[str, Any]:
    """Add up deltas as openai-python does: texts joined, calls by index."""
    message: dict[str, Any] = {"tool_calls": []}
    for chunk in told:
        for name, value in chunk["choices"][0]["delta"].items():
            if name != "tool_calls":
                message[name] = message.get(name, "") + value
                continue
            for delta in value:
                if delta["index"] == len(message["tool_calls"]):
                    assert set(delta) == {"index", "id", "type", "function"}
                    assert delta["function"]["arguments"] == ""
                    message["tool_calls"].append(json.loads(json.dumps(delta)))
                    continue
                assert set(delta) == {"index", "function"}
                call = message["tool_calls"][delta["index"]]
                call["function"]["arguments"] += delta["function"]["arguments"]
    return message


async def test_calls_are_told_apart_from_text_and_thoughts():
    answer = (await gateway(BOTH).chat(**TOOLS)).json()

    choice = answer["choices"][0]
    message = choice["message"]
    assert choice["finish_reason"] == "tool_calls"
    assert (message["content"], message["reasoning_content"]) == ("Sure.", "Hm.")
    assert message["reasoning"] == message["reasoning_content"]
    calls = message["tool_calls"]
    assert [call["function"] for call in calls] == [
        {"name": "look", "arguments": '{"at": "é"}'},
        {"name": "add", "arguments": "{}"},
    ]
    assert len({call["id"] for call in calls}) == 2
    assert all(call["id"].startswith("call_") for call in calls)
    spent = answer["usage"]["completion_tokens_details"]["reasoning_tokens"]
    assert 0 < spent < answer["usage"]["completion_tokens"]


async def test_streamed_deltas_add_up_to_the_whole_message():
    """Pits A48 and A49."""
    whole = (await gateway(BOTH).chat(**TOOLS)).json()["choices"][0]["message"]

    told = chunks(await gateway(BOTH).chat(stream=True, **TOOLS))

    message = accumulated(told)
    assert message["content"] == whole["content"]
    assert message["reasoning_content"] == message["reasoning"] == whole["reasoning"]
    functions = [call["function"] for call in message["tool_calls"]]
    assert functions == [call["function"] for call in whole["tool_calls"]]


@pytest.mark.parametrize(
    ("text", "reason"), [("Sure.", "stop"), (LOOK, "tool_calls"), ("<tool_call>{}", "stop")]
)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_ends_by_its_calls_if_and_only_if_it_has_some(
    text: str, reason: str, stream: bool
):
    """Pits A50 and A51."""
    response = await gateway(text).chat(stream=stream, **TOOLS)

    if not stream:
        assert response.json()["choices"][0]["finish_reason"] == reason
        return
    assert finish_reasons(response) == [reason]
    last = chunks(response)[-1]["choices"][0]
    assert (last["delta"], last["finish_reason"]) == ({}, reason)


async def test_a_call_cut_by_the_limit_is_the_text_it_is():
    answer = (await gateway(LOOK).chat(max_tokens=20, **TOOLS)).json()["choices"][0]

    assert answer["finish_reason"] == "length"
    assert LOOK.startswith(answer["message"]["content"])


async def test_tools_reach_the_template_unless_none_may_be_called():
    asked = gateway("a")
    await asked.chat(**TOOLS)
    await asked.chat(tool_choice="none", **TOOLS)
    await asked.chat()

    with_tools, forbidden, plain = (request.prompt for request in asked.generator.requests)
    assert forbidden == plain
    assert len(with_tools) > len(plain)


async def test_where_none_may_be_called_a_call_is_text():
    answer = (await gateway(LOOK).chat(tool_choice="none", **TOOLS)).json()["choices"][0]

    assert answer["message"]["content"] == LOOK
    assert answer["finish_reason"] == "stop"


async def test_an_answer_that_ends_by_its_call_tells_what_was_cached():
    made = gateway(LOOK + "more")
    made.generator.cached_tokens = 2

    told = (await made.chat(parallel_tool_calls=False, **TOOLS)).json()

    assert told["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}


class Allowing:
    def take(self, token_id: int) -> bool:
        return True


async def test_what_reads_a_whole_prompt_or_compiles_never_holds_the_event_loop():
    threads: list[int] = []

    class Watching(SpeakingText):
        def speech(self, prompt: Any, tools: Any, *, thoughts: bool) -> Any:
            threads.append(threading.get_ident())
            return SpeakingText.speech(self, prompt, tools, thoughts=thoughts)

        def grammar_of_call(self, prompt: Any, tools: Any) -> str:
            return "any"

        def follow(self, grammar: str) -> Any:
            threads.append(threading.get_ident())
            return Allowing()

    made = Gateway((*ids_of(LOOK), EOS), text=Watching())

    answer = await made.chat(n=2, tool_choice="required", **TOOLS)

    assert answer.status_code == 200
    assert len(threads) >= 4
    assert threading.get_ident() not in threads


@pytest.mark.parametrize("arguments", ['{"a": "\\ud800"}', '{"a": 1e999}', '{"a": NaN}'])
async def test_arguments_of_earlier_calls_that_no_template_can_write_are_refused(arguments: str):
    function = {"name": "look", "arguments": arguments}
    spoken = [{"role": "assistant", "tool_calls": [{"id": "1", "function": function}]}]

    response = await gateway("a").chat(messages=spoken)

    assert response.status_code == 400
    assert error(response)["param"] == "messages[0].tool_calls[0].function.arguments"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"a": "!"}}}]},
            "tools[0].function.parameters",
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "f", "schema": {"a": "!"}},
                }
            },
            "response_format.json_schema.schema",
        ),
    ],
)
@pytest.mark.parametrize("odd", ['"\\ud800"', "1e999", '{"\\udfff": 1}'])
async def test_an_object_that_no_template_can_write_is_refused_by_name(
    fields: dict[str, Any], param: str, odd: str
):
    """Neither unpaired surrogates nor infinite numbers are JSON that a tokenizer can take."""
    body = json.dumps({"model": "default", "messages": USER} | fields).replace('"!"', odd)

    response = await gateway("a").send(
        "POST",
        "/v1/chat/completions",
        content=body.encode(),
        headers={"content-type": "application/json"},
    )

    assert response.status_code == 400
    assert error(response)["param"] == param


@pytest.mark.parametrize("stream", [False, True])
async def test_one_call_at_a_time_ends_the_generation(stream: bool):
    made = Gateway((*ids_of(LOOK), *ids_of("x"), Gate()), text=SpeakingText())

    response = await made.chat(parallel_tool_calls=False, stream=stream, **TOOLS)

    if stream:
        assert finish_reasons(response) == ["tool_calls"]
    else:
        assert len(response.json()["choices"][0]["message"]["tool_calls"]) == 1
    assert made.generator.running == 0


async def test_thoughts_stay_in_the_text_where_that_is_asked_for():
    text = "<think>Hm.</think>Four."

    answer = (await gateway(text).chat(separate_reasoning=False)).json()["choices"][0]

    assert answer["message"]["content"] == text
    assert "reasoning" not in answer["message"]


async def test_log_probabilities_of_all_tokens_travel_with_what_is_said():
    answer = (await gateway(BOTH).chat(logprobs=True, **TOOLS)).json()["choices"][0]
    streamed = chunks(await gateway(BOTH).chat(logprobs=True, stream=True, **TOOLS))

    entries = [entry["token"] for entry in answer["logprobs"]["content"]]
    assert "".join(entries) == BOTH
    parts = [chunk["choices"][0]["logprobs"] for chunk in streamed]
    told = [entry["token"] for part in parts if part for entry in part["content"]]
    assert "".join(told) == BOTH


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": TOOL}, "tools"),
        ({"tools": [TOOL, TOOL]}, "tools"),
        ({"tools": [TOOL] * 129}, "tools"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "a b"}}]},
            "tools[0].function.name",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "a", "parameters": 3}}]},
            "tools[0].function.parameters",
        ),
        ({"tool_choice": "any", **TOOLS}, "tool_choice"),
        ({"parallel_tool_calls": 1, **TOOLS}, "parallel_tool_calls"),
    ],
)
async def test_what_is_wrong_with_tools_is_named(fields: dict[str, Any], param: str):
    response = await gateway("a").chat(**fields)

    assert response.status_code == 400
    assert error(response)["param"] == param


async def test_a_model_that_shows_no_form_of_calls_refuses_tools_by_name():
    """Pit A55: never a call as text under a 200."""
    response = await Gateway((EOS,)).chat(**TOOLS)

    assert response.status_code == 400
    assert error(response)["param"] == "tools"


async def test_the_official_client_reads_calls_strictly_and_streamed():
    made = gateway(BOTH)
    async with (
        made.served() as url,
        openai.AsyncOpenAI(
            base_url=f"{url}/v1", api_key="none", max_retries=0, _strict_response_validation=True
        ) as client,
    ):
        asked: Any = {"model": "default", "messages": USER, **TOOLS}
        whole = await client.chat.completions.create(**asked)
        async with client.chat.completions.stream(**asked) as stream:
            final = await stream.get_final_completion()

    for completion in (whole, final):
        message = completion.choices[0].message
        assert message.role == "assistant"
        assert [call.function.name for call in message.tool_calls] == ["look", "add"]
        assert json.loads(message.tool_calls[0].function.arguments) == {"at": "é"}
        assert completion.choices[0].finish_reason == "tool_calls"
