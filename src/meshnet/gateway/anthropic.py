"""POST /v1/messages and /v1/messages/count_tokens: chats in Anthropic's shapes.

    message_start | content_block_start, content_block_delta ..., content_block_stop |
    ... | message_delta with stop_reason and usage | message_stop

Source: Anthropic's description of its streaming messages, and its client's accumulation.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from meshnet.core.generation.transcript import FinishReason
from meshnet.gateway.answering import Asker, Job, Service, Usage
from meshnet.gateway.anthropic_requests import chat_of
from meshnet.gateway.assembly import Call, Piece
from meshnet.gateway.chat import chat_job, prompt_of
from meshnet.gateway.dialects import ANTHROPIC
from meshnet.gateway.fields import read_json_object
from meshnet.gateway.requests import ChatRequest, read_chat

_TOOL_NAME_CHARACTERS = 128
"""Anthropic allows twice what OpenAI does."""


def prepare_messages(service: Service, body: bytes, asker: Asker) -> Job:
    """Parse, render, tokenise and plan; blocking. Raises ApiError."""
    job = chat_job(service, _read(service, body, counting=False), asker)
    ((plan,),) = job.plans
    envelope = {
        "id": f"msg_{service.ambient.new_id()}",
        "type": "message",
        "role": "assistant",
        "model": str(service.text.model),
    }
    return replace(job, form=MessagesForm(envelope, plan.prompt_tokens), dialect=ANTHROPIC)


def count_tokens(service: Service, body: bytes) -> dict[str, Any]:
    """Blocking. Raises ApiError."""
    asked = _read(service, body, counting=True)
    service.check_model(asked.model)
    return {"input_tokens": len(prompt_of(service, asked))}


def _read(service: Service, body: bytes, *, counting: bool) -> ChatRequest:
    limits = replace(service.settings.limits, tool_name_characters=_TOOL_NAME_CHARACTERS)
    chat, ignored = chat_of(read_json_object(body), limits, counting=counting)
    return replace(read_chat(chat, limits, service.text.vocab_size), ignored=ignored)


@dataclass(slots=True)
class MessagesForm:
    envelope: dict[str, Any]
    prompt_tokens: int
    _open: str = ""
    """Type of the block that is being told."""
    _index: int = -1
    _last: Piece | None = field(default=None)

    def chunks(self, choice: int, piece: Piece, *, first: bool) -> Iterator[dict[str, Any]]:
        if first:
            begun: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None}
            usage = {"input_tokens": self.prompt_tokens, "output_tokens": 0}
            yield {"type": "message_start", "message": self.envelope | begun | {"usage": usage}}
        if piece.thought:
            yield from self._begun("thinking", {"thinking": "", "signature": ""})
            yield self._delta({"type": "thinking_delta", "thinking": piece.thought})
        if piece.text:
            yield from self._begun("text", {"text": ""})
            yield self._delta({"type": "text_delta", "text": piece.text})
        for call in piece.calls:
            yield from self._ended()
            yield from self._begun("tool_use", _tool_use(call) | {"input": {}})
            yield self._delta({"type": "input_json_delta", "partial_json": call.call.arguments})
            yield from self._ended()
        self._last = piece

    def end(self, usage: Usage) -> Iterator[dict[str, Any]]:
        yield from self._ended()
        assert self._last is not None, "an answer has a last piece"
        yield {"type": "message_delta", "delta": _stopped(self._last), "usage": _usage(usage)}
        yield {"type": "message_stop"}

    def whole(self, answers: Sequence[Piece], usage: Usage) -> dict[str, Any]:
        (piece,) = answers
        content: list[dict[str, Any]] = []
        if piece.thought:
            content.append({"type": "thinking", "thinking": piece.thought, "signature": ""})
        if piece.text:
            content.append({"type": "text", "text": piece.text})
        for call in piece.calls:
            arguments = json.loads(call.call.arguments)
            content.append({"type": "tool_use"} | _tool_use(call) | {"input": arguments})
        return self.envelope | {"content": content} | _stopped(piece) | {"usage": _usage(usage)}

    def _begun(self, kind: str, block: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if self._open == kind:
            return
        yield from self._ended()
        self._open, self._index = kind, self._index + 1
        yield {
            "type": "content_block_start",
            "index": self._index,
            "content_block": {"type": kind} | block,
        }

    def _delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}

    def _ended(self) -> Iterator[dict[str, Any]]:
        if self._open:
            self._open = ""
            yield {"type": "content_block_stop", "index": self._index}


def _tool_use(call: Call) -> dict[str, Any]:
    return {"id": call.call_id, "name": call.call.name}


def _stopped(piece: Piece) -> dict[str, Any]:
    if piece.called:
        reason = "tool_use"
    elif piece.stop is not None:
        reason = "stop_sequence"
    else:
        reason = "max_tokens" if piece.finish is FinishReason.LENGTH else "end_turn"
    return {"stop_reason": reason, "stop_sequence": piece.stop if not piece.called else None}


def _usage(usage: Usage) -> dict[str, Any]:
    """Tokens that the nodes still held are counted apart, as Anthropic does."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.completion_tokens,
    }
