"""Which parts of a model's text are its answer, its thoughts, and calls of tools.

    <think> ... </think>  text  <tool_call> {"name": ..., "arguments": ...} </tool_call>

transformers' response parser follows the text; it is told what to look for by the tokenizer's
own `response_template`, or by one of ours for the styles that chat templates show: Hermes
(Qwen too), and Llama 3, where the whole answer is a call.

Invariants
    * no text is lost: what turns out to be no call is said as the text it is;
    * the parts do not depend on how the text was cut into pieces;
    * space beside a thought or a call is not said.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from meshnet.core.vocabulary import GrammarError, Said, Spoken, Thought, ToolCall
from meshnet.engine.grammar import grammar_of_call

THINK = "<think>"
_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_CALLS = "tool_calls"
_THOUGHTS = frozenset({"thinking", "reasoning", "reasoning_content"})
_THINKING = {"open": THINK, "close": "</think>", "content": "text"}
_CONTENT = {"content": "text", "content_args": {"strip": False}}
_RAW = {"content": "text", "content_args": {"strip": False}, "repeats": True}
_HERMES = {_CALLS: {"open": _OPEN, "close": _CLOSE} | _RAW}
_LLAMA = {_CALLS: {"open_pattern": r"\A\s*(?:<\|python_tag\|>\s*(?=\{)|(?=\{))"} | _RAW}


class Style:
    """How the models of one chat template write their answers."""

    def __init__(self, chat_template: str, response_template: dict[str, Any] | None) -> None:
        self._own = response_template
        self._calls: dict[str, Any] = {}
        if _OPEN in chat_template and "<function=" not in chat_template:
            self._calls = _HERMES
        elif '"parameters"' in chat_template and "ipython" in chat_template:
            self._calls = _LLAMA
        self._thinks = "</think>" in chat_template

    @property
    def calls_tools(self) -> bool:
        """Whether its calls can be told from its text."""
        own = self._own is not None and _CALLS in self._own.get("fields", {})
        return bool(self._calls) or own

    def grammar_of_call(self, prompt: str, tools: Sequence[dict[str, Any]]) -> str:
        """Return the grammar of an answer to `prompt` that is a call of one of `tools`.

        Raises GrammarError.
        """
        if self._own is not None or not self._calls:
            raise GrammarError("the form of this model's calls cannot be prescribed")
        begun = "</think>\n\n" if self._begins_thought(prompt) else ""
        if self._calls is _LLAMA:
            return grammar_of_call(tools, before=begun, after="", arguments="parameters")
        before, after = f"{begun}{_OPEN}\n", f"\n{_CLOSE}"
        return grammar_of_call(tools, before=before, after=after, arguments="arguments")

    def _begins_thought(self, prompt: str) -> bool:
        return self._thinks and prompt.rstrip().endswith(THINK)

    def speech(
        self, prompt: str, tools: Sequence[dict[str, Any]], *, thoughts: bool
    ) -> Speech | None:
        """Return what follows an answer to `prompt`; None where all of it is text."""
        names = frozenset(tool["function"]["name"] for tool in tools)
        if self._own is not None:
            return Speech(self._own, prompt, tools, names, thoughts=thoughts)
        fields = dict(self._calls) if tools else {}
        if thoughts and self._thinks:
            fields["thinking"] = _THINKING
        if not fields:
            return None
        spec = {"start_anchor": "\0", "fields": fields | {"content": _CONTENT}}
        begun = THINK if "thinking" in fields and self._begins_thought(prompt) else ""
        return Speech(spec, begun, tools, names, thoughts=thoughts)


class Speech:
    """Follow one answer. With `thoughts` false they are text like any other."""

    def __init__(
        self,
        template: dict[str, Any],
        prefix: str,
        tools: Sequence[dict[str, Any]],
        names: frozenset[str],
        *,
        thoughts: bool,
    ) -> None:
        from transformers.utils.chat_parsing import ResponseParser

        self._parser: Any = ResponseParser(template, prefix=prefix, tools=list(tools))
        self._names, self._thoughts = names, thoughts
        self._raw = ""
        """Of the call that is open, from its mark on."""
        self._space = ""
        """Held until it is known what follows it."""
        self._beside = bool(prefix)
        """Nothing was said since a thought or a call."""
        marks = template["fields"].get(_CALLS, {})
        self._opening, self._closing = (_literal(marks.get(name)) for name in ("open", "close"))
        self._ended = False

    def feed(self, text: str) -> list[Said]:
        if not text:
            return []
        return self._followed(lambda: self._parser.feed(text), text)

    def end(self) -> list[Said]:
        """There is no more text."""
        self._ended = True
        said = self._followed(lambda: self._parser.finalize()[1], "")
        if self._space and not self._beside:
            said.append(Spoken(self._space))
        return said

    def _followed(self, events: Callable[[], list[dict[str, Any]]], text: str) -> list[Said]:
        if self._parser is None:
            return self._spoken(text)
        parser, told = self._parser, self._parser._pos  # behind it lies what may become a mark
        try:
            parsed = events()
        except (ValueError, TypeError, LookupError, RecursionError):
            # the model wrote no such call after all: from here on all is text
            self._parser = None
            return self._spoken(self._raw + parser._buffer[told:])
        return [said for event in parsed for said in self._said(event)]

    def _said(self, event: dict[str, Any]) -> list[Said]:
        kind, field = event["type"], event["field"]
        text = event["text"] if kind == "region_chunk" else ""
        if field == _CALLS:
            self._raw = self._opening if kind == "region_open" else self._raw + text
            return self._called(event["value"]) if kind == "region_close" else []
        if field in _THOUGHTS and self._thoughts:
            self._space, self._beside = "", True
            return [Thought(text)] if text else []
        return self._spoken(text) if text else []

    def _called(self, value: Any) -> list[Said]:
        """The calls of a region that has ended, or its text if it holds none."""
        raw, self._raw = self._raw, ""
        if isinstance(value, str):
            values = _objects(value)
        else:
            values = value if isinstance(value, list) else [value]
        calls = [_call(each) for each in values]
        known = [call for call in calls if call is not None and call.name in self._names]
        if not known or len(known) < len(calls):
            return self._spoken(raw + self._closing * (not self._ended))
        self._space, self._beside = "", True
        return [*known]

    def _spoken(self, text: str) -> list[Said]:
        text = self._space + text
        if self._beside:
            text = text.lstrip()
        shown = text.rstrip()
        self._space = text[len(shown) :]
        self._beside = self._beside and not shown
        return [Spoken(shown)] if shown else []


def _literal(mark: Any) -> str:
    return mark if isinstance(mark, str) else ""


def _objects(text: str) -> list[Any]:
    """The JSON values of a text, parted by spaces or semicolons; none if there is anything else."""
    decoder, values, at = json.JSONDecoder(), [], 0
    while (at := _skipped(text, at)) < len(text):
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            return []
        values.append(value)
    return values


def _skipped(text: str, at: int) -> int:
    while at < len(text) and (text[at].isspace() or text[at] == ";"):
        at += 1
    return at


def _call(value: Any) -> ToolCall | None:
    """None: no call, or one whose arguments no JSON can hold (NaN, an unpaired surrogate)."""
    if not isinstance(value, dict):
        return None
    function = value.get("function", value)
    if not isinstance(function, dict):
        return None
    arguments = function.get("arguments", function.get("parameters", {}))
    if not isinstance(function.get("name"), str) or not isinstance(arguments, dict):
        return None
    try:
        told = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        told.encode()
    except (ValueError, TypeError, RecursionError):
        return None
    return ToolCall(function["name"], told)
