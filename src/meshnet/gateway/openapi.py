"""How the endpoints describe themselves in /openapi.json."""

from __future__ import annotations

from meshnet.core.vocabulary import TOKEN_ID_MAX
from meshnet.gateway.openapi_fields import (
    BOOLEAN,
    IDS,
    STRING,
    TEMPLATE,
    TEXT_OR_NULL,
    Schema,
    chat_fields,
    completion_fields,
    integer,
    messages,
    number,
)
from meshnet.gateway.settings import ApiLimits


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
                "text/event-stream": {"schema": STRING},
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
        ("429", "a limit of the key is reached; Retry-After tells for how long"),
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
    shared = {"model": TEXT_OR_NULL, "return_token_strs": BOOLEAN}
    prompt = {"prompt": STRING, "add_special_tokens": BOOLEAN}
    chat = {"messages": messages(limits)} | TEMPLATE
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
            "tokens": IDS,
            "token_strs": {"type": ["array", "null"], "items": STRING},
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
                "message": STRING,
                "type": STRING,
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

_BLOCK: Schema = {"type": "object", "required": ["type"], "properties": {"type": STRING}}
_BLOCKS: Schema = {"anyOf": [STRING, {"type": "array", "items": _BLOCK}]}
_ASKED: Schema = {
    "model": STRING,
    "messages": {
        "type": "array",
        "minItems": 1,
        "items": {
            "type": "object",
            "required": ["role", "content"],
            "properties": {"role": {"enum": ["user", "assistant"]}, "content": _BLOCKS},
        },
    },
    "system": _BLOCKS,
    "tools": {
        "type": ["array", "null"],
        "items": {
            "type": "object",
            "required": ["name", "input_schema"],
            "properties": {
                "type": {"enum": ["custom", None]},
                "name": {"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,128}$"},
                "description": TEXT_OR_NULL,
                "input_schema": {"type": "object"},
            },
        },
    },
    "tool_choice": {
        "type": ["object", "null"],
        "required": ["type"],
        "properties": {
            "type": {"enum": ["auto", "any", "none", "tool"]},
            "name": STRING,
            "disable_parallel_tool_use": BOOLEAN,
        },
        "description": "With type tool: its name.",
    },
    "thinking": {
        "type": ["object", "null"],
        "required": ["type"],
        "properties": {"type": {"enum": ["enabled", "adaptive", "disabled"]}},
    },
}
_ANTHROPIC_ERROR: Schema = {
    "type": "object",
    "required": ["type", "error"],
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": {"type": STRING, "message": STRING},
        },
    },
}


def _as_anthropic(described: Schema) -> Schema:
    """The same with errors in Anthropic's shape."""
    told = {
        status: answer if status == "200" else _json(answer["description"], _ANTHROPIC_ERROR)
        for status, answer in described["responses"].items()
    }
    return described | {"responses": told}


MESSAGES: Schema = _as_anthropic(
    _generation(
        "Answer a chat in Anthropic's shapes.",
        _ASKED
        | {
            "max_tokens": {"type": "integer", "minimum": 1},
            "stop_sequences": {"type": ["array", "null"], "items": STRING},
            "stream": BOOLEAN,
            "temperature": number(0, 2),
            "top_p": number(0, 1),
            "top_k": integer(-1, TOKEN_ID_MAX),
        },
        ["model", "messages", "max_tokens"],
    )
)

COUNT_TOKENS: Schema = _as_anthropic(
    _posted(
        "Count the tokens of a chat in Anthropic's shapes.",
        {"type": "object", "required": ["model", "messages"], "properties": _ASKED},
        {
            "200": _json(
                "The count.",
                {
                    "type": "object",
                    "required": ["input_tokens"],
                    "properties": {"input_tokens": {"type": "integer"}},
                },
            )
        },
    )
)

DETOKENIZE: Schema = _posted(
    "Tell the text of token ids.",
    {
        "type": "object",
        "required": ["tokens"],
        "properties": {"model": TEXT_OR_NULL, "tokens": IDS},
    },
    {
        "200": _json(
            "It.",
            {"type": "object", "required": ["prompt"], "properties": {"prompt": STRING}},
        )
    },
)

_CARD: Schema = {
    "type": "object",
    "required": ["id", "object", "created", "owned_by", "max_model_len"],
    "properties": {
        "id": STRING,
        "object": {"const": "model"},
        "created": {"type": "integer"},
        "owned_by": STRING,
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
        {"name": "model", "in": "path", "required": True, "schema": STRING | {"minLength": 1}}
    ],
    "responses": {"200": _json("The model.", _CARD), "404": _json("Unknown model.", ERROR)}
    | _UNAUTHORIZED,
}

_STATUS: Schema = {"type": "object", "properties": {"status": STRING, "detail": STRING}}

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
            "content": {"text/plain": {"schema": STRING}},
        }
    }
    | _UNAUTHORIZED,
}
