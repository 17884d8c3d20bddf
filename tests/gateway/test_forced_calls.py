"""Calls that have to be: the answer is kept to the form of one call, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.engine.tokenizers import saved
from tests.gateway.api import Gateway, error
from tests.models import byte_level_tokenizer

from meshnet.engine.text import HFText

HERMES = "{{ messages[-1].content }}<tool_call> {{ tools }}"
LLAMA = '{{ messages[-1].content }}ipython {"name": , "parameters": }'
LOOK = {
    "type": "object",
    "properties": {"at": {"type": "integer"}},
    "required": ["at"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "look", "parameters": LOOK}},
    {"type": "function", "function": {"name": "add"}},
]
NAMED = {"type": "function", "function": {"name": "add"}}


def text_of(template: str, path: Any) -> HFText:
    tokenizer = byte_level_tokenizer()
    tokenizer.chat_template = template
    return saved(tokenizer, path, max_position_embeddings=2048)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> HFText:
    return text_of(HERMES, tmp_path_factory.mktemp("hermes"))


def gateway(text: HFText, said: str) -> Gateway:
    return Gateway((*text.encode(said, special=False), min(text.stop_ids)), text=text)


def hermes(call: str) -> str:
    return f"<tool_call>\n{call}\n</tool_call>"


async def test_a_required_call_may_be_of_any_tool(text: HFText):
    made = gateway(text, hermes('{"name": "look", "arguments": {"at": 3}}'))

    answer = (await made.chat(tools=TOOLS, tool_choice="required")).json()["choices"][0]

    (call,) = answer["message"]["tool_calls"]
    assert call["function"]["name"] == "look"
    assert json.loads(call["function"]["arguments"]) == {"at": 3}
    assert answer["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ("required", "Sure."),
        ("required", hermes('{"name": "look", "arguments": {}}')),
        ("required", hermes('{"name": "unknown", "arguments": {}}')),
        (NAMED, hermes('{"name": "look", "arguments": {"at": 3}}')),
    ],
)
async def test_what_is_not_the_call_that_was_required_is_an_error(
    text: HFText, choice: Any, said: str
):
    answer = await gateway(text, said).chat(tools=TOOLS, tool_choice=choice)

    assert answer.status_code == 502


def taking(parameters: dict[str, Any]) -> list[dict[str, Any]]:
    """Two tools, of which `deep`, the second, takes these."""
    return [TOOLS[0], {"type": "function", "function": {"name": "deep", "parameters": parameters}}]


REFERRING = {
    "$defs": {"A": {"type": "integer"}},
    "properties": {"at": {"$ref": "#/$defs/A"}, "next": {"$ref": "#"}},
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("parameters", "arguments", "status"),
    [
        (REFERRING, '{"at": 3, "next": {"at": 4}}', 200),
        (REFERRING, '{"at": "x"', 502),
        (REFERRING, '{"next": {"name": "look"', 502),
        ({"$ref": "#/$defs/A", "$defs": {"A": LOOK}}, '{"at": 3}', 200),
        ({"$ref": "#/$defs/A", "$defs": {"A": LOOK}}, '{"other": 3}', 502),
        ({}, '{"any": [1]}', 200),
        ({}, "3", 502),
        ({"properties": {}}, "[]", 502),
    ],
)
async def test_arguments_are_an_object_of_the_tools_own_schema(
    text: HFText, parameters: dict[str, Any], arguments: str, status: int
):
    """References in a schema point into it, wherever the call holds it."""
    made = gateway(text, hermes(f'{{"name": "deep", "arguments": {arguments}}}'))

    answer = await made.chat(tools=taking(parameters), tool_choice="required")

    assert answer.status_code == status
    if status == 200:
        (call,) = answer.json()["choices"][0]["message"]["tool_calls"]
        assert json.loads(call["function"]["arguments"]) == json.loads(arguments)


async def test_a_thought_that_the_prompt_begins_is_closed_first(tmp_path: Any):
    text = text_of(HERMES + "</think><think>\n", tmp_path)
    said = "</think>\n\n" + hermes('{"name": "add", "arguments": {}}')

    answer = (await gateway(text, said).chat(tools=TOOLS, tool_choice=NAMED)).json()["choices"][0]

    assert answer["message"]["content"] is None
    assert answer["message"]["tool_calls"][0]["function"]["name"] == "add"


async def test_llama_3_calls_are_the_whole_answer(tmp_path: Any):
    made = gateway(text_of(LLAMA, tmp_path), '{"name": "add", "parameters": {}}')

    answer = (await made.chat(tools=TOOLS, tool_choice=NAMED)).json()["choices"][0]

    assert answer["message"]["tool_calls"][0]["function"] == {"name": "add", "arguments": "{}"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "what", "tools": TOOLS}, "tool_choice"),
        (
            {"tool_choice": {"type": "function", "function": {"name": "x"}}, "tools": TOOLS},
            "tool_choice.function.name",
        ),
        ({"tool_choice": "required", "tools": TOOLS, "ignore_eos": True}, "ignore_eos"),
        (
            {
                "tool_choice": "required",
                "tools": taking({"properties": {"a": {"type": "x"}}}),
            },
            "tool_choice",
        ),
        (
            {"tool_choice": "required", "tools": taking({"type": ["object", "null"]})},
            "tools[1].function.parameters.type",
        ),
        (
            {"tool_choice": "required", "tools": TOOLS, "stop_token_ids": [3]},
            "stop_token_ids",
        ),
    ],
)
async def test_a_choice_that_cannot_be_kept_is_refused(
    text: HFText, fields: dict[str, Any], param: str
):
    """Pits A52 and A55."""
    response = await gateway(text, "a").chat(**fields)

    assert response.status_code == 400
    assert error(response)["param"] == param


async def test_a_form_of_calls_that_only_the_tokenizer_knows_cannot_be_prescribed(tmp_path: Any):
    tokenizer = byte_level_tokenizer()
    tokenizer.chat_template = HERMES
    tokenizer.response_template = {
        "start_anchor": "<a>",
        "fields": {"tool_calls": {"open": "<c>", "close": "</c>"}, "content": {}},
    }
    text = saved(tokenizer, tmp_path, max_position_embeddings=2048)

    response = await gateway(text, "a").chat(tools=TOOLS, tool_choice="required")

    assert text.calls_tools
    assert error(response)["param"] == "tool_choice"
