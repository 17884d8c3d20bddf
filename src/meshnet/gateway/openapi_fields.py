"""The fields of requests as /openapi.json describes them.

They are exactly those that `requests` reads and serves; a test compares them.
"""

from __future__ import annotations

from typing import Any

from meshnet.core.vocabulary import TOKEN_ID_MAX
from meshnet.gateway.messages import ROLES
from meshnet.gateway.requests import INTEGER_MAX
from meshnet.gateway.settings import ApiLimits

Schema = dict[str, Any]


def number(low: float, high: float) -> Schema:
    return {"type": ["number", "null"], "minimum": low, "maximum": high}


def integer(low: int, high: int) -> Schema:
    return {"type": ["integer", "null"], "minimum": low, "maximum": high}


BOOLEAN: Schema = {"type": ["boolean", "null"]}
STRING: Schema = {"type": "string"}
TEXT_OR_NULL: Schema = {"type": ["string", "null"]}
IDS: Schema = {"type": "array", "items": {"type": "integer", "minimum": 0}}


_FORMAT: Schema = {
    "anyOf": [
        {"type": "null"},
        {
            "type": "object",
            "required": ["type"],
            "properties": {"type": {"enum": ["text", "json_object"]}},
        },
        {
            "type": "object",
            "required": ["type", "json_schema"],
            "properties": {
                "type": {"const": "json_schema"},
                "json_schema": {
                    "type": "object",
                    "required": ["name", "schema"],
                    "properties": {
                        "name": STRING,
                        "schema": {"type": "object"},
                        "strict": BOOLEAN,
                    },
                },
            },
        },
    ],
    "description": "A schema that cannot be kept is refused.",
}


def _shared(limits: ApiLimits) -> Schema:
    stop = {"type": "string", "minLength": 1, "maxLength": limits.stop_characters}
    stops = {"type": "array", "maxItems": limits.stops, "items": stop}
    return {
        "model": STRING,
        "n": integer(1, limits.choices),
        "max_completion_tokens": integer(1, INTEGER_MAX),
        "max_tokens": integer(1, INTEGER_MAX),
        "temperature": number(0, 2),
        "top_p": number(0, 1),
        "top_k": integer(-1, TOKEN_ID_MAX),
        "min_p": number(0, 1),
        "presence_penalty": number(-2, 2),
        "frequency_penalty": number(-2, 2),
        "repetition_penalty": number(0.001, 100),
        "logit_bias": {
            "type": ["object", "null"],
            "propertyNames": {"pattern": "^[0-9]{1,10}$"},
            "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
            "maxProperties": limits.logit_bias,
        },
        "seed": integer(-(2**63), 2**64 - 1),
        "min_tokens": integer(0, INTEGER_MAX),
        "ignore_eos": BOOLEAN,
        "stop": {"anyOf": [stop, stops, {"type": "null"}]},
        "stop_token_ids": {
            "type": ["array", "null"],
            "maxItems": limits.stop_token_ids,
            "items": {"type": "integer", "minimum": 0},
        },
        "response_format": _FORMAT,
        "stream": BOOLEAN,
        "stream_options": {
            "type": ["object", "null"],
            "properties": {"include_usage": BOOLEAN},
            "description": "Only with stream: true.",
        },
    }


def messages(limits: ApiLimits) -> Schema:
    part = {
        "type": "object",
        "required": ["type", "text"],
        "properties": {"type": {"const": "text"}, "text": STRING},
    }
    content = {"anyOf": [STRING, {"type": "array", "minItems": 1, "items": part}]}
    spoken = {
        "type": "object",
        "required": ["role", "content"],
        "properties": {
            "role": {"enum": [role for role in ROLES if role != "tool"]},
            "content": content,
            "name": {"type": ["string", "null"]},
        },
    }
    result = {
        "type": "object",
        "required": ["role", "content", "tool_call_id"],
        "properties": {"role": {"const": "tool"}, "content": content, "tool_call_id": STRING},
    }
    message = {"anyOf": [spoken, result]}
    return {
        "type": "array",
        "minItems": 1,
        "maxItems": limits.messages,
        "items": message,
    }


_SWITCH: Schema = {"type": ["boolean", "string"]}
TEMPLATE: Schema = {
    "reasoning_effort": {"type": ["string", "null"]},
    "chat_template_kwargs": {
        "type": ["object", "null"],
        "properties": dict.fromkeys(("enable_thinking", "reasoning_effort"), _SWITCH),
        "additionalProperties": False,
    },
}


_TOOL: Schema = {
    "type": "object",
    "required": ["type", "function"],
    "properties": {
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "required": ["name"],
            "properties": {
                "name": {"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,64}$"},
                "description": TEXT_OR_NULL,
                "parameters": {"type": ["object", "null"]},
            },
        },
    },
    "description": "Only for models whose chat template knows tools; names differ.",
}


def chat_fields(limits: ApiLimits) -> Schema:
    return (
        _shared(limits)
        | {
            "messages": messages(limits),
            "tools": {"type": ["array", "null"], "maxItems": limits.tools, "items": _TOOL},
            "tool_choice": {
                "anyOf": [
                    {"enum": ["none", "auto", "required", None]},
                    {
                        "type": "object",
                        "required": ["type", "function"],
                        "properties": {
                            "type": {"const": "function"},
                            "function": {
                                "type": "object",
                                "required": ["name"],
                                "properties": {"name": STRING},
                            },
                        },
                    },
                ]
            },
            "parallel_tool_calls": BOOLEAN,
            "separate_reasoning": BOOLEAN,
            "logprobs": BOOLEAN,
            "top_logprobs": integer(0, limits.top_logprobs)
            | {"description": "Only with logprobs: true."},
        }
        | TEMPLATE
    )


_NONE_ONLY_WITH_ECHO: Schema = {"description": "0 only with echo: true."}


def completion_fields(limits: ApiLimits) -> Schema:
    ids = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}}
    several = {"type": "array", "minItems": 1, "maxItems": limits.prompts}
    return _shared(limits) | {
        "prompt": {"anyOf": [STRING, several | {"items": STRING}, ids, several | {"items": ids}]},
        "logprobs": integer(0, limits.completion_logprobs),
        "echo": BOOLEAN,
        "max_completion_tokens": integer(0, INTEGER_MAX) | _NONE_ONLY_WITH_ECHO,
        "max_tokens": integer(0, INTEGER_MAX) | _NONE_ONLY_WITH_ECHO,
    }
