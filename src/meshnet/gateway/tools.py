"""The tools of a chat: checked, and handed to the template as they are."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from meshnet.gateway.errors import invalid, unsupported
from meshnet.gateway.fields import Fields, as_array, as_json, as_text
from meshnet.gateway.settings import ApiLimits

_NAME = re.compile(r"[A-Za-z0-9_.-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Tools:
    """What the model may call; `listed` is empty where it may call nothing."""

    listed: tuple[dict[str, Any], ...] = ()
    parallel: bool = True
    """Whether an answer may hold several calls."""
    required: tuple[dict[str, Any], ...] = ()
    """Those of which one has to be called; empty: none has to."""


def read_tools(fields: Fields, limits: ApiLimits) -> Tools:
    """Raises ApiError."""
    value = fields.take("tools")
    tools = [] if value is None else as_array("tools", value, limits.tools)
    listed = tuple(
        _tool(fields, f"tools[{index}]", tool, limits) for index, tool in enumerate(tools)
    )
    names = [tool["function"]["name"] for tool in listed]
    if len(set(names)) < len(names):
        raise invalid("tools", "expected names that differ")
    parallel = fields.take("parallel_tool_calls") is None or fields.boolean("parallel_tool_calls")
    choice = fields.take("tool_choice")
    if choice == "none":
        return Tools()
    if choice is None or choice == "auto":
        return Tools(listed, parallel)
    return Tools(listed, parallel, _required(fields, choice, listed))


def _required(
    within: Fields, choice: object, listed: tuple[dict[str, Any], ...]
) -> tuple[dict[str, Any], ...]:
    if not listed:
        raise invalid("tool_choice", "expected tools with it")
    if choice == "required":
        return _callable(listed, listed)
    if not isinstance(choice, dict):
        raise invalid("tool_choice", "expected none, auto, required, or the name of a function")
    fields = within.inside("tool_choice", choice)
    if fields.require("type") != "function":
        raise unsupported("tool_choice.type", "only function is supported")
    param = "tool_choice.function"
    function = fields.inside(param, fields.require("function"))
    name = as_text(f"{param}.name", function.require("name"))
    named = tuple(tool for tool in listed if tool["function"]["name"] == name)
    if not named:
        raise invalid(f"{param}.name", "expected the name of one of the tools")
    return _callable(named, listed)


def _callable(
    required: tuple[dict[str, Any], ...], listed: tuple[dict[str, Any], ...]
) -> tuple[dict[str, Any], ...]:
    """Those required, each of which takes an object: arguments are nothing else."""
    names = {tool["function"]["name"] for tool in required}
    for index, tool in enumerate(listed):
        kind = tool["function"]["parameters"].get("type", "object")
        if tool["function"]["name"] in names and kind != "object":
            raise invalid(f"tools[{index}].function.parameters.type", "expected object")
    return required


def _tool(within: Fields, param: str, value: object, limits: ApiLimits) -> dict[str, Any]:
    fields = within.inside(param, value)
    if fields.require("type") != "function":
        raise unsupported(f"{param}.type", "only tools of type function are supported")
    function = fields.inside(f"{param}.function", fields.require("function"))
    name = as_text(function.param("name"), function.require("name"))
    most = limits.tool_name_characters
    if len(name) > most or _NAME.fullmatch(name) is None:
        raise invalid(function.param("name"), f"expected 1 to {most} of A-Z a-z 0-9 _ . -")
    told: dict[str, Any] = {"name": name, "description": function.text("description") or ""}
    parameters = function.take("parameters")
    if parameters is None:
        parameters = {"type": "object", "properties": {}, "additionalProperties": False}
    told["parameters"] = as_json(function.param("parameters"), parameters)
    return {"type": "function", "function": told}
