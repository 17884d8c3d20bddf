"""A body of POST /v1/messages, as the chat that it asks for.

system, messages     -> one list; results of tools become messages of their own
tools, tool_choice   -> functions
stop_sequences       -> stop
thinking             -> the template's `enable_thinking`
output_config.effort -> the template's `reasoning_effort`

What it says of its own fields is checked here; what comes out is checked as every chat is.
"""

from __future__ import annotations

import json
from typing import Any

from meshnet.gateway.errors import invalid, unsupported
from meshnet.gateway.fields import Fields, as_array, as_json, as_object, as_text, kind
from meshnet.gateway.refused import Table, refuse
from meshnet.gateway.settings import ApiLimits

_SAME = ("model", "temperature", "top_p", "top_k", "stream")
_CHOICES = {"auto": "auto", "none": "none", "any": "required"}
_REFUSED: Table = {
    "container": ((), "not supported by this server"),
    "mcp_servers": (([],), "not supported by this server"),
    "context_management": ((), "not supported by this server: a prompt is never cut"),
    "output_format": ((), "not supported here: use response_format in /v1/chat/completions"),
}


def chat_of(
    values: dict[str, Any], limits: ApiLimits, *, counting: bool
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The body of the chat that is asked for, and the fields that are ignored.

    `counting`: nothing is to be drawn. Raises ApiError.
    """
    fields = Fields(values)
    refuse(fields, _REFUSED)
    chat: dict[str, Any] = {name: fields.take(name) for name in _SAME}
    if not counting:
        chat["max_tokens"] = fields.require("max_tokens")
    chat["stop"] = fields.take("stop_sequences")
    chat["messages"] = _system(fields, limits) + _messages(fields, limits, counting=counting)
    if (tools := fields.take("tools")) is not None:
        listed = as_array("tools", tools, limits.tools)
        chat["tools"] = [
            _tool(fields.inside(f"tools[{index}]", tool)) for index, tool in enumerate(listed)
        ]
    chat |= _choice(fields) | _thinking(fields) | _output(fields)
    return chat, fields.ignored


def _system(fields: Fields, limits: ApiLimits) -> list[dict[str, Any]]:
    value = fields.take("system")
    if value is None:
        return []
    return [{"role": "system", "content": _text(fields, "system", value, limits)}]


def _text(fields: Fields, param: str, value: object, limits: ApiLimits) -> str:
    """A text, or blocks of text, joined as they are."""
    if isinstance(value, str):
        return as_text(param, value)
    blocks = as_array(param, value, limits.content_parts)
    texts = [fields.inside(f"{param}[{index}]", block) for index, block in enumerate(blocks)]
    return "".join(_text_of(block) for block in texts)


def _text_of(block: Fields) -> str:
    if block.require("type") != "text":
        raise unsupported(block.param("type"), "only blocks of text can be read here")
    return as_text(block.param("text"), block.require("text"))


def _messages(fields: Fields, limits: ApiLimits, *, counting: bool) -> list[dict[str, Any]]:
    given = as_array("messages", fields.require("messages"), limits.messages)
    if not given:
        raise invalid("messages", "expected at least one message")
    last = as_object(f"messages[{len(given) - 1}]", given[-1])
    if last.get("role") == "assistant" and not counting:
        raise unsupported(f"messages[{len(given) - 1}]", "an answer cannot be begun for the model")
    return [
        message
        for index, value in enumerate(given)
        for message in _message(fields.inside(f"messages[{index}]", value), limits)
    ]


def _message(fields: Fields, limits: ApiLimits) -> list[dict[str, Any]]:
    role, content = fields.require("role"), fields.require("content")
    if role not in ("user", "assistant"):
        raise invalid(fields.param("role"), "expected user or assistant")
    if isinstance(content, str):
        return [{"role": role, "content": as_text(fields.param("content"), content)}]
    blocks = as_array(fields.param("content"), content, limits.content_parts)
    spoken, calls, results = "", [], []
    for index, block in enumerate(blocks):
        read = fields.inside(fields.param(f"content[{index}]"), block)
        match read.require("type"):
            case "text":
                spoken += _text_of(read)
            case "tool_use" if role == "assistant":
                calls.append(_call(read))
            case "tool_result" if role == "user":
                results.append(_result(read, limits))
            case "thinking" | "redacted_thinking" if role == "assistant":
                for name in ("thinking", "signature", "data"):
                    read.take(name)  # templates drop thoughts of earlier turns
            case _:
                raise unsupported(read.param("type"), "this block cannot be read")
    if calls:
        return [{"role": role, "content": spoken or None, "tool_calls": calls}]
    return results + ([{"role": role, "content": spoken}] if spoken or not results else [])


def _call(block: Fields) -> dict[str, Any]:
    arguments = as_json(block.param("input"), block.require("input"))
    function = {
        "name": as_text(block.param("name"), block.require("name")),
        "arguments": json.dumps(arguments, ensure_ascii=False),
    }
    call_id = as_text(block.param("id"), block.require("id"))
    return {"id": call_id, "type": "function", "function": function}


def _result(block: Fields, limits: ApiLimits) -> dict[str, Any]:
    content = block.take("content")
    return {
        "role": "tool",
        "tool_call_id": as_text(block.param("tool_use_id"), block.require("tool_use_id")),
        "content": "" if content is None else _text(block, block.param("content"), content, limits),
    }


def _tool(tool: Fields) -> dict[str, Any]:
    if tool.take("type") not in (None, "custom"):
        raise unsupported(tool.param("type"), "only tools of your own are supported")
    function = {
        "name": tool.require("name"),
        "description": tool.take("description"),
        "parameters": tool.require("input_schema"),
    }
    return {"type": "function", "function": function}


def _choice(fields: Fields) -> dict[str, Any]:
    value = fields.take("tool_choice")
    if value is None:
        return {}
    choice = fields.inside("tool_choice", value)
    wanted = choice.require("type")
    several = not choice.boolean("disable_parallel_tool_use")
    if wanted == "tool":
        named = {"name": as_text("tool_choice.name", choice.require("name"))}
        asked: Any = {"type": "function", "function": named}
    elif isinstance(wanted, str) and wanted in _CHOICES:
        asked = _CHOICES[wanted]
    else:
        raise invalid("tool_choice.type", "expected auto, any, tool or none")
    return {"tool_choice": asked, "parallel_tool_calls": several}


def _thinking(fields: Fields) -> dict[str, Any]:
    value = fields.take("thinking")
    if value is None:
        return {}
    wanted = fields.inside("thinking", value).take("type")
    if wanted not in ("enabled", "adaptive", "disabled"):
        raise invalid(
            "thinking.type", f"expected enabled, adaptive or disabled, got {kind(wanted)}"
        )
    return {"chat_template_kwargs": {"enable_thinking": wanted != "disabled"}}


def _output(fields: Fields) -> dict[str, Any]:
    """`output_config`, of which only the effort is served."""
    value = fields.take("output_config")
    if value is None:
        return {}
    config = fields.inside("output_config", value)
    effort = config.text("effort")
    config.refuse("format", (), "not supported here: use response_format in /v1/chat/completions")
    if unknown := config.ignored:
        plain = unknown[0].removeprefix("output_config.").isidentifier()
        raise unsupported(unknown[0] if plain else "output_config", "only effort is supported")
    return {"reasoning_effort": effort}
