"""The messages of a chat: checked, and brought into the one form chat templates read.

developer           -> system
parts of text       -> one string, joined as they are
tool_calls          -> arguments as an object where they are one, else as the text they are
image, audio, file  -> refused, naming the part
"""

from __future__ import annotations

import json
from typing import Any

from meshnet.gateway.errors import invalid, unsupported
from meshnet.gateway.fields import Fields, as_array, as_json, as_text, kind
from meshnet.gateway.settings import ApiLimits

ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_TEXT_PARTS = {"text": "text", "refusal": "refusal"}


def read_messages(fields: Fields, limits: ApiLimits) -> tuple[dict[str, Any], ...]:
    """Check a chat and return it as the template takes it. Raises ApiError."""
    messages = as_array("messages", fields.require("messages"), limits.messages)
    if not messages:
        raise invalid("messages", "expected at least one message")
    return tuple(
        _message(fields.inside(f"messages[{index}]", message), limits)
        for index, message in enumerate(messages)
    )


def _message(fields: Fields, limits: ApiLimits) -> dict[str, Any]:
    role = fields.require("role")
    if not isinstance(role, str) or role not in ROLES:
        raise invalid(fields.param("role"), f"expected one of {', '.join(ROLES)}")
    message: dict[str, Any] = {"role": ROLES[role]}
    calls = fields.take("tool_calls") if role == "assistant" else None
    content = fields.take("content")
    if content is None and not calls:
        fields.require("content")
    message["content"] = "" if content is None else _content(fields, content, limits)
    if calls:
        message["tool_calls"] = _tool_calls(fields, calls, limits)
    if (name := fields.text("name")) is not None:
        message["name"] = name
    if role == "tool":
        call_id = fields.require("tool_call_id")
        message["tool_call_id"] = as_text(fields.param("tool_call_id"), call_id)
    if fields.take("function_call") is not None:
        raise unsupported(fields.param("function_call"), "use tool_calls instead")
    return message


def _content(fields: Fields, content: object, limits: ApiLimits) -> str:
    param = fields.param("content")
    if isinstance(content, str):
        return as_text(param, content)
    if not isinstance(content, list):
        raise invalid(
            param,
            f"expected a string or an array of parts, got {kind(content)}",
            code="invalid_type",
        )
    parts = as_array(param, content, limits.content_parts)
    if not parts:
        raise invalid(param, "expected at least one part")
    return "".join(_part(fields, f"{param}[{index}]", part) for index, part in enumerate(parts))


def _part(message: Fields, param: str, part: object) -> str:
    fields = message.inside(param, part)
    part_type = as_text(f"{param}.type", fields.require("type"))
    if part_type not in _TEXT_PARTS:
        raise unsupported(param, "only parts of type text can be read: this model is text-only")
    name = _TEXT_PARTS[part_type]
    return as_text(f"{param}.{name}", fields.require(name))


def _tool_calls(message: Fields, value: object, limits: ApiLimits) -> list[dict[str, Any]]:
    param = message.param("tool_calls")
    calls = as_array(param, value, limits.messages)
    return [
        _tool_call(message.inside(f"{param}[{index}]", call)) for index, call in enumerate(calls)
    ]


def _tool_call(fields: Fields) -> dict[str, Any]:
    fields.take("type")  # function, or nothing: there is no other
    function = fields.inside(fields.param("function"), fields.require("function"))
    name = as_text(function.param("name"), function.require("name"))
    arguments = as_text(function.param("arguments"), function.require("arguments"))
    call_id = as_text(fields.param("id"), fields.require("id"))
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": _arguments(function.param("arguments"), arguments)},
    }


def _arguments(param: str, text: str) -> Any:
    """Templates print an object; a text that is none stays as the model once wrote it."""
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return as_json(param, parsed) if isinstance(parsed, dict) else text
