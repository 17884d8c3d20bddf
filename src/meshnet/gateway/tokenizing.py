"""POST /tokenize and /detokenize: the ids of a prompt or a chat, and their text again.

Shapes are vLLM's, so what counts tokens there counts them here.
"""

from __future__ import annotations

from typing import Any

from meshnet.core.vocabulary import TextTooLong
from meshnet.gateway.answering import Service
from meshnet.gateway.chat import rendered
from meshnet.gateway.errors import context_exceeded
from meshnet.gateway.fields import Fields, as_text, read_json_object
from meshnet.gateway.messages import read_messages
from meshnet.gateway.refused import Table, refuse
from meshnet.gateway.requests import prompt_ids, read_template_kwargs
from meshnet.gateway.tools import read_tools

_REFUSED_FOR_CHATS: Table = {
    "add_special_tokens": ((False,), "only together with prompt"),
    "add_generation_prompt": ((True,), "must be true: an answer would follow"),
    "continue_final_message": ((False,), "not supported by this server"),
    "chat_template": ((), "not supported by this server: the model's own template is used"),
    "prompt": ((), "expected either prompt or messages, got both"),
}


def tokenize(service: Service, body: bytes) -> dict[str, Any]:
    """Blocking. Raises ApiError."""
    fields = Fields(read_json_object(body))
    _check_model(service, fields)
    strings = fields.boolean("return_token_strs")
    messages = fields.take("messages")
    where = "prompt" if messages is None else "messages"
    try:
        ids = _prompt(service, fields) if messages is None else _chat(service, fields)
    except TextTooLong as error:
        raise context_exceeded(
            limit=service.text.context_length,
            prompt=error.tokens_at_least,
            completion=0,
            where=where,
            counted=False,
        ) from None
    return {
        "count": len(ids),
        "max_model_len": service.text.context_length,
        "tokens": ids,
        "token_strs": [service.text.token_text(token_id) for token_id in ids] if strings else None,
    }


def _prompt(service: Service, fields: Fields) -> list[int]:
    text = as_text("prompt", fields.require("prompt"))
    special = fields.take("add_special_tokens") is None or fields.boolean("add_special_tokens")
    return service.text.encode(text, special=special)


def _chat(service: Service, fields: Fields) -> list[int]:
    refuse(fields, _REFUSED_FOR_CHATS)
    limits = service.settings.limits
    kwargs = read_template_kwargs(fields)
    tools = read_tools(fields, limits)
    return rendered(service.text, read_messages(fields, limits), kwargs, tools)


def detokenize(service: Service, body: bytes) -> dict[str, Any]:
    """The text of ids, that of special ones included. Blocking. Raises ApiError."""
    fields = Fields(read_json_object(body))
    _check_model(service, fields)
    tokens = fields.require("tokens")
    ids = prompt_ids("tokens", tokens, service.text.vocab_size) if tokens != [] else ()
    return {"prompt": service.text.decode(ids, skip_special=False)}


def _check_model(service: Service, fields: Fields) -> None:
    """One model is served, so its name may be left out."""
    if (model := fields.text("model")) is not None:
        service.check_model(model)
