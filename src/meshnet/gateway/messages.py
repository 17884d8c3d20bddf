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
from meshnet.gateway.fields import Fields, as_array, as_json, as_object, as_text, kind
from meshnet.gateway.settings import ApiLimits

ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_TEXT_PARTS = {"text": "text", "refusal": "refusal"}


def read_messages(value: object, limits: ApiLimits) -> tuple[dict[str, Any], ...]:
    """Check a chat and return it as the template takes it. Raises ApiError."""
    messages = as_array("messages", value, limits.messages)
    if not messages:
        raise invalid("messages", "expected at least one message")
    return tuple(
        _message(f"messages[{index}]", as_object(f"messages[{index}]", message), limits)
        for index, message in enumerate(messages)
    )


def _message(param: str, values: dict[str, Any], limits: ApiLimits) -> dict[str, Any]:
    fields = Fields(values, prefix=f"{param}.")
    role = fields.require("role")
    if not isinstance(role, str) or role not in ROLES:
        raise invalid(f"{param}.role", f"expected one of {', '.join(ROLES)}")
    message: dict[str, Any] = {"role": ROLES[role]}
    calls = fields.take("tool_calls") if role == "assistant" else None
    content = fields.take("content")
    if content is None and not calls:
        raise invalid(
            f"{param}.content", "this field is required", code="missing_required_parameter"
        )
    message["content"] = "" if content is None else _content(f"{param}.content", content, limits)
    if calls:
        message["tool_calls"] = _tool_calls(f"{param}.tool_calls", calls, limits)
    if (name := fields.text("name")) is not None:
        message["name"] = name
    if role == "tool":
        message["tool_call_id"] = as_text(f"{param}.tool_call_id", fields.require("tool_call_id"))
    if fields.take("function_call") is not None:
        raise unsupported(f"{param}.function_call", "use tool_calls instead")
    return message


def _content(param: str, content: object, limits: ApiLimits) -> str:
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
    return "".join(_part(f"{param}[{index}]", part) for index, part in enumerate(parts))


def _part(param: str, part: object) -> str:
    fields = Fields(as_object(param, part), prefix=f"{param}.")
    part_type = as_text(f"{param}.type", fields.require("type"))
    if part_type not in _TEXT_PARTS:
        raise unsupported(param, "only parts of type text can be read: this model is text-only")
    name = _TEXT_PARTS[part_type]
    return as_text(f"{param}.{name}", fields.require(name))


def _tool_calls(param: str, value: object, limits: ApiLimits) -> list[dict[str, Any]]:
    calls = as_array(param, value, limits.messages)
    return [
        _tool_call(f"{param}[{index}]", as_object(f"{param}[{index}]", call))
        for index, call in enumerate(calls)
    ]


def _tool_call(param: str, values: dict[str, Any]) -> dict[str, Any]:
    fields = Fields(values, prefix=f"{param}.")
    function_values = as_object(f"{param}.function", fields.require("function"))
    function = Fields(function_values, prefix=f"{param}.function.")
    name = as_text(function.param("name"), function.require("name"))
    arguments = as_text(function.param("arguments"), function.require("arguments"))
    call_id = as_text(f"{param}.id", fields.require("id"))
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
