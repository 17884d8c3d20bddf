"""How the endpoints describe themselves in /openapi.json.

The tables name exactly the fields that `requests` reads and serves; a test compares them.
"""

from __future__ import annotations

from typing import Any

from meshnet.core.vocabulary import TOKEN_ID_MAX
from meshnet.gateway.messages import ROLES
from meshnet.gateway.requests import INTEGER_MAX
from meshnet.gateway.settings import ApiLimits

Schema = dict[str, Any]


def _number(low: float, high: float) -> Schema:
    return {"type": ["number", "null"], "minimum": low, "maximum": high}


def _integer(low: int, high: int) -> Schema:
    return {"type": ["integer", "null"], "minimum": low, "maximum": high}


_BOOLEAN: Schema = {"type": ["boolean", "null"]}
_STRING: Schema = {"type": "string"}
_TEXT_OR_NULL: Schema = {"type": ["string", "null"]}
_IDS: Schema = {"type": "array", "items": {"type": "integer", "minimum": 0}}


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
                        "name": _STRING,
                        "schema": {"type": "object"},
                        "strict": _BOOLEAN,
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
        "model": _STRING,
        "n": _integer(1, limits.choices),
        "max_completion_tokens": _integer(1, INTEGER_MAX),
        "max_tokens": _integer(1, INTEGER_MAX),
        "temperature": _number(0, 2),
        "top_p": _number(0, 1),
        "top_k": _integer(-1, TOKEN_ID_MAX),
        "min_p": _number(0, 1),
        "presence_penalty": _number(-2, 2),
        "frequency_penalty": _number(-2, 2),
        "repetition_penalty": _number(0.001, 100),
        "logit_bias": {
            "type": ["object", "null"],
            "propertyNames": {"pattern": "^[0-9]{1,10}$"},
            "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
            "maxProperties": limits.logit_bias,
        },
        "seed": _integer(-(2**63), 2**64 - 1),
        "min_tokens": _integer(0, INTEGER_MAX),
        "ignore_eos": _BOOLEAN,
        "stop": {"anyOf": [stop, stops, {"type": "null"}]},
        "stop_token_ids": {
            "type": ["array", "null"],
            "maxItems": limits.stop_token_ids,
            "items": {"type": "integer", "minimum": 0},
        },
        "response_format": _FORMAT,
        "stream": _BOOLEAN,
        "stream_options": {
            "type": ["object", "null"],
            "properties": {"include_usage": _BOOLEAN},
            "description": "Only with stream: true.",
        },
    }


def messages(limits: ApiLimits) -> Schema:
    part = {
        "type": "object",
        "required": ["type", "text"],
        "properties": {"type": {"const": "text"}, "text": _STRING},
    }
    content = {"anyOf": [_STRING, {"type": "array", "minItems": 1, "items": part}]}
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
        "properties": {"role": {"const": "tool"}, "content": content, "tool_call_id": _STRING},
    }
    message = {"anyOf": [spoken, result]}
    return {
        "type": "array",
        "minItems": 1,
        "maxItems": limits.messages,
        "items": message,
    }


_SWITCH: Schema = {"type": ["boolean", "string"]}
_TEMPLATE: Schema = {
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
                "description": _TEXT_OR_NULL,
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
            "tool_choice": {"enum": ["none", "auto", None]},
            "parallel_tool_calls": _BOOLEAN,
            "separate_reasoning": _BOOLEAN,
            "logprobs": _BOOLEAN,
            "top_logprobs": _integer(0, limits.top_logprobs)
            | {"description": "Only with logprobs: true."},
        }
        | _TEMPLATE
    )


_NONE_ONLY_WITH_ECHO: Schema = {"description": "0 only with echo: true."}


def completion_fields(limits: ApiLimits) -> Schema:
    ids = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}}
    several = {"type": "array", "minItems": 1, "maxItems": limits.prompts}
    return _shared(limits) | {
        "prompt": {"anyOf": [_STRING, several | {"items": _STRING}, ids, several | {"items": ids}]},
        "logprobs": _integer(0, limits.completion_logprobs),
        "echo": _BOOLEAN,
        "max_completion_tokens": _integer(0, INTEGER_MAX) | _NONE_ONLY_WITH_ECHO,
        "max_tokens": _integer(0, INTEGER_MAX) | _NONE_ONLY_WITH_ECHO,
    }


def chat(limits: ApiLimits) -> Schema:
    return _generation("Answer a chat.", chat_fields(limits), ["model", "messages"])


def completions(limits: ApiLimits) -> Schema:
    return _generation("Continue a text.", completion_fields(limits), ["model", "prompt"])


def _generation(summary: str, fields: Schema, required: list[str]) -> Schema:
    body = {"type": "object", "required": required, "properties": fields}
    answers = {
        "200": {
            "description": "The answer, or its events with `stream: true`.",
            "content": {
                "application/json": {"schema": {"type": "object"}},
                "text/event-stream": {"schema": _STRING},
            },
        }
    }
    failures = _refusals(
        ("500", "numerical error"),
        ("502", "a node failed"),
        ("503", "no room, or no route"),
        ("504", "out of time"),
    )
    return _posted(summary, body, answers | failures)


def _posted(summary: str, body: Schema, responses: Schema) -> Schema:
    refusals = _refusals(
        ("400", "a field is wrong, unsupported, or too long for the context"),
        ("404", "unknown model"),
        ("408", "body too slow"),
        ("413", "body too large"),
        ("415", "a body that is not JSON"),
    )
    return {
        "summary": summary,
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": body}},
        },
        "responses": responses | refusals | _UNAUTHORIZED,
    }


def _refusals(*reasons: tuple[str, str]) -> Schema:
    return {status: _json(f"Refused: {why}.", ERROR) for status, why in reasons}


def tokenize(limits: ApiLimits) -> Schema:
    shared = {"model": _TEXT_OR_NULL, "return_token_strs": _BOOLEAN}
    prompt = {"prompt": _STRING, "add_special_tokens": _BOOLEAN}
    chat = {"messages": messages(limits)} | _TEMPLATE
    body = {
        "anyOf": [
            {"type": "object", "required": ["prompt"], "properties": shared | prompt},
            {"type": "object", "required": ["messages"], "properties": shared | chat},
        ]
    }
    told = {
        "type": "object",
        "required": ["count", "max_model_len", "tokens", "token_strs"],
        "properties": {
            "count": {"type": "integer"},
            "max_model_len": {"type": "integer"},
            "tokens": _IDS,
            "token_strs": {"type": ["array", "null"], "items": _STRING},
        },
    }
    return _posted("Tell the token ids of a text or a chat.", body, {"200": _json("Them.", told)})


ERROR: Schema = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": _STRING,
                "type": _STRING,
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}


def _json(description: str, schema: Schema) -> Schema:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


_UNAUTHORIZED: Schema = {
    "401": _json("No key, or a wrong one.", ERROR),
    "403": _json("No key is configured, and the request names another machine.", ERROR),
}

DETOKENIZE: Schema = _posted(
    "Tell the text of token ids.",
    {
        "type": "object",
        "required": ["tokens"],
        "properties": {"model": _TEXT_OR_NULL, "tokens": _IDS},
    },
    {
        "200": _json(
            "It.",
            {"type": "object", "required": ["prompt"], "properties": {"prompt": _STRING}},
        )
    },
)

_CARD: Schema = {
    "type": "object",
    "required": ["id", "object", "created", "owned_by", "max_model_len"],
    "properties": {
        "id": _STRING,
        "object": {"const": "model"},
        "created": {"type": "integer"},
        "owned_by": _STRING,
        "max_model_len": {"type": "integer"},
        "context_length": {"type": "integer"},
    },
}

MODELS: Schema = {
    "summary": "List the served model.",
    "responses": {
        "200": _json(
            "The list.",
            {"type": "object", "properties": {"data": {"type": "array", "items": _CARD}}},
        )
    }
    | _UNAUTHORIZED,
}

MODEL: Schema = {
    "summary": "Describe the served model.",
    "parameters": [
        {"name": "model", "in": "path", "required": True, "schema": _STRING | {"minLength": 1}}
    ],
    "responses": {"200": _json("The model.", _CARD), "404": _json("Unknown model.", ERROR)}
    | _UNAUTHORIZED,
}

_STATUS: Schema = {"type": "object", "properties": {"status": _STRING, "detail": _STRING}}

HEALTH: Schema = {
    "summary": "Tell that the process lives.",
    "responses": {"200": _json("It lives.", _STATUS)},
}

READY: Schema = {
    "summary": "Tell whether every layer is served.",
    "responses": {
        "200": _json("A chat would be answered.", _STATUS),
        "503": _json("What is missing.", _STATUS),
    },
}

METRICS: Schema = {
    "summary": "Measurements for Prometheus.",
    "responses": {
        "200": {
            "description": "Text exposition format.",
            "content": {"text/plain": {"schema": _STRING}},
        }
    }
    | _UNAUTHORIZED,
}
