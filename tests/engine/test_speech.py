"""Answers parted into text, thoughts and calls, whatever pieces they come in."""

from __future__ import annotations

import json
from itertools import groupby

import pytest

from meshnet.core.vocabulary import Said, Spoken, Thought, ToolCall
from meshnet.engine.speech import Speech, Style

HERMES = "... <tool_call> {{ tool }} </tool_call> ..."
LLAMA = '... Environment: ipython ... {"name": ..., "parameters": ...} ...'
THINKS = "... </think> ..."
GEMMA = {
    "start_anchor": "<model>",
    "fields": {
        "thinking": {"open": "<t>", "close": "</t>", "content": "text"},
        "tool_calls": {
            "open": "<call>",
            "close": "</call>",
            "content": "json",
            "repeats": True,
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"content": "text"},
    },
}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("look", "add")
]
LOOK = '{"name": "look", "arguments": {"at": "é <b>", "n": 1}}'
LOOKED = ToolCall("look", '{"at": "é <b>", "n": 1}')
ADDED = ToolCall("add", "{}")


def parted(speech: Speech | None, *pieces: str) -> list[Said]:
    assert speech is not None
    said = [each for piece in pieces for each in speech.feed(piece)] + speech.end()
    joined: list[Said] = []
    for kind, group in groupby(said, type):
        parts = list(group)
        if kind is ToolCall:
            joined += parts
        else:
            joined.append(kind("".join(part.text for part in parts)))
    return joined


def heard(text: str, template: str, *, prompt: str = "", thoughts: bool = True) -> list[Said]:
    """The parts, which are the same for every cut into two pieces and for single characters."""
    style = Style(template, None)

    def speech() -> Speech | None:
        return style.speech(prompt, TOOLS, thoughts=thoughts)

    whole = parted(speech(), text)
    for cut in range(1, len(text)):
        assert parted(speech(), text[:cut], text[cut:]) == whole
    assert parted(speech(), *text) == whole
    return whole


def test_a_call_in_hermes_style_is_found_wherever_it_is_cut() -> None:
    """Pit A48."""
    text = f"Let me see.\n<tool_call>\n{LOOK}\n</tool_call>\n<tool_call>{{"
    text += '"name": "add", "arguments": {}}</tool_call>'

    assert heard(text, HERMES) == [Spoken("Let me see."), LOOKED, ADDED]


def test_calls_in_llama_3_style_are_the_whole_answer() -> None:
    call = LOOK.replace("arguments", "parameters")

    assert heard(call, LLAMA) == [LOOKED]
    assert heard(f'<|python_tag|>{call}; {{"name": "add"}}', LLAMA) == [LOOKED, ADDED]


@pytest.mark.parametrize(
    "text",
    [
        '{"answer": 42}',
        '{"name": "unknown", "parameters": {}}',
        '{"name": "look", "parameters": 3}',
        '{"name": "look"',
        "{not json}  and more ",
        "plain",
        "  spaced  ",
    ],
)
def test_an_object_that_calls_nothing_is_text(text: str) -> None:
    assert heard(text, LLAMA) == [Spoken(text)]


@pytest.mark.parametrize(
    "text",
    [
        "a <tool_call>{broken}</tool_call> b",
        '<tool_call>{"name": "look"',
        "<tool_call></tool_call>",
        "less <tool_cal then more",
        "ends with <tool_c",
        '<tool_call>[{"name": "unknown"}]</tool_call> ',
        '<tool_call>{"name": "look", "arguments": {"at": NaN}}</tool_call>',
        '<tool_call>{"name": "look", "arguments": {"at": -1e999}}</tool_call>',
        '<tool_call>{"name": "look", "arguments": {"at": "\\ud800"}}</tool_call>',
    ],
)
def test_what_is_no_call_after_all_is_said_as_it_is(text: str) -> None:
    assert heard(text, HERMES) == [Spoken(text)]


def test_thoughts_are_parted_from_the_answer_without_the_space_beside_them() -> None:
    """Pit A07: no piece of a tag is ever shown."""
    text = "<think>\nHm < 3.\n</think>\n\nFour.\n"

    assert heard(text, THINKS) == [Thought("\nHm < 3.\n"), Spoken("Four.\n")]
    assert heard(text, HERMES + THINKS) == [Thought("\nHm < 3.\n"), Spoken("Four.\n")]


def test_thoughts_that_the_prompt_begins_are_thoughts() -> None:
    prompt = "<|im_start|>assistant\n<think>\n"

    assert heard("Hm</think>\nFour.", THINKS, prompt=prompt) == [Thought("Hm"), Spoken("Four.")]
    assert heard("never ends", THINKS, prompt=prompt) == [Thought("never ends")]


def test_thoughts_may_hold_what_looks_like_a_call() -> None:
    text = f"<think><tool_call>{LOOK}</tool_call></think><tool_call>{LOOK}</tool_call>"

    assert heard(text, HERMES + THINKS)[1:] == [LOOKED]


def test_without_tools_and_thoughts_there_is_nothing_to_part() -> None:
    style = Style(HERMES + THINKS, None)

    assert style.speech("", [], thoughts=False) is None
    assert style.calls_tools
    assert not Style("plain {{ messages }}", None).calls_tools
    assert not Style("<tool_call><function=name></function></tool_call>", None).calls_tools


def test_a_models_own_response_template_comes_first() -> None:
    style = Style("plain", GEMMA)
    text = f"<t>why</t>Sure. <call>{LOOK}</call>"

    speech = style.speech("<model>", TOOLS, thoughts=True)

    assert style.calls_tools
    assert parted(speech, *text) == [Thought("why"), Spoken("Sure."), LOOKED]


@pytest.mark.parametrize(
    "text",
    [
        "Sure. <call>{broken}</call> and more",
        "<call>{broken",
        f"<call>{'[' * 10_000}</call>.",
        f"Sure. <call>{LOOK.replace('look', 'unknown')}</call> and more",
        '<call>{"name": "look", "arguments": {"at": Infinity}}</call>',
        '<call>{"name": "look", "arguments": 3}</call>',
    ],
)
def test_what_is_no_call_in_a_models_own_template_is_said_as_it_is(text: str) -> None:
    style = Style("plain", GEMMA)
    cuts = {1, len(text) // 2, *range(len(text) - 16, len(text))}

    pieces = [[text], *([text[:cut], text[cut:]] for cut in cuts)]
    if len(text) < 1_000:
        pieces.append([*text])

    for each in pieces:
        assert parted(style.speech("<model>", TOOLS, thoughts=True), *each) == [Spoken(text)]


def test_without_tools_a_models_own_template_calls_nothing() -> None:
    text = f"Sure. <call>{LOOK}</call>"

    speech = Style("plain", GEMMA).speech("<model>", [], thoughts=True)

    assert parted(speech, *text) == [Spoken(text)]


def test_a_tool_of_odd_parameters_leaves_its_call_as_text() -> None:
    odd = {"type": "object", "properties": {"at": {"anyOf": 3}}}
    tools = [{"type": "function", "function": {"name": "look", "parameters": odd}}]
    text = f"<call>{LOOK}</call>"

    speech = Style("plain", GEMMA).speech("<model>", tools, thoughts=True)

    assert parted(speech, *text) == [Spoken(text)]


def test_arguments_are_json_whatever_they_hold() -> None:
    arguments = {"text": '"</x>\\', "list": [1, None, {"a": "b"}]}
    body = json.dumps({"name": "look", "arguments": arguments})

    (call,) = heard(f"<tool_call>{body}</tool_call>", HERMES)

    assert isinstance(call, ToolCall)
    assert json.loads(call.arguments) == arguments
