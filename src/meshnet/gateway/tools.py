"""The tools of a chat: checked, and handed to the template as they are."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from meshnet.gateway.errors import invalid, unsupported
from meshnet.gateway.fields import Fields, as_array, as_object, as_text
from meshnet.gateway.settings import ApiLimits

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)


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
    listed = tuple(_tool(f"tools[{index}]", tool) for index, tool in enumerate(tools))
    names = [tool["function"]["name"] for tool in listed]
    if len(set(names)) < len(names):
        raise invalid("tools", "expected names that differ")
    parallel = fields.take("parallel_tool_calls") is None or fields.boolean("parallel_tool_calls")
    choice = fields.take("tool_choice")
    if choice == "none":
        return Tools()
    if choice is None or choice == "auto":
        return Tools(listed, parallel)
    return Tools(listed, parallel, _required(choice, listed))


def _required(choice: object, listed: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
    if not listed:
        raise invalid("tool_choice", "expected tools with it")
    if choice == "required":
        return listed
    if not isinstance(choice, dict):
        raise invalid("tool_choice", "expected none, auto, required, or the name of a function")
    fields = Fields(choice, prefix="tool_choice.")
    if fields.require("type") != "function":
        raise unsupported("tool_choice.type", "only function is supported")
    param = "tool_choice.function"
    function = Fields(as_object(param, fields.require("function")), prefix=f"{param}.")
    name = as_text(f"{param}.name", function.require("name"))
    named = tuple(tool for tool in listed if tool["function"]["name"] == name)
    if not named:
        raise invalid(f"{param}.name", "expected the name of one of the tools")
    return named


def _tool(param: str, value: object) -> dict[str, Any]:
    fields = Fields(as_object(param, value), prefix=f"{param}.")
    if fields.require("type") != "function":
        raise unsupported(f"{param}.type", "only tools of type function are supported")
    values = as_object(f"{param}.function", fields.require("function"))
    function = Fields(values, prefix=f"{param}.function.")
    name = as_text(function.param("name"), function.require("name"))
    if _NAME.fullmatch(name) is None:
        raise invalid(function.param("name"), "expected 1 to 64 of A-Z a-z 0-9 _ . -")
    told: dict[str, Any] = {"name": name, "description": function.text("description") or ""}
    parameters = function.take("parameters")
    if parameters is None:
        parameters = {"type": "object", "properties": {}, "additionalProperties": False}
    told["parameters"] = as_object(function.param("parameters"), parameters)
    return {"type": "function", "function": told}
