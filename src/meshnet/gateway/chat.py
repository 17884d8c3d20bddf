"""POST /v1/chat/completions: what is asked, and the shapes of its answers.

    chunks: role and "" | delta.content ... | {} with finish_reason | usage, on demand

Source: openai-python's lib/streaming/_deltas.py concatenates every string of a delta, so the
role comes once; it overwrites usage and fingerprint by each chunk, so usage comes last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from meshnet.core.vocabulary import NoTemplate, TemplateError, TextTooLong
from meshnet.gateway.answering import Asker, Job, Service, Usage, envelope
from meshnet.gateway.assembly import Call, Piece, PlacedToken
from meshnet.gateway.errors import ApiError, invalid, unsupported
from meshnet.gateway.fields import read_json_object
from meshnet.gateway.logprobs import chat_logprobs
from meshnet.gateway.planning import plans, too_long
from meshnet.gateway.ports import Speech, TextModel
from meshnet.gateway.requests import ChatRequest, Delivery, read_chat
from meshnet.gateway.speaking import Parting
from meshnet.gateway.tools import Tools


def prepare_chat(service: Service, body: bytes, asker: Asker) -> Job:
    """Parse, render, tokenise and plan; blocking. Raises ApiError."""
    limits, vocab_size = service.settings.limits, service.text.vocab_size
    return chat_job(service, read_chat(read_json_object(body), limits, vocab_size), asker)


def chat_job(service: Service, asked: ChatRequest, asker: Asker) -> Job:
    """Raises ApiError."""
    text = service.text
    service.check_model(asked.model)
    choices = service.choices(asked, asker, where="messages")
    prompt = prompt_of(service, asked)
    planned = plans(prompt, text, choices)
    form = ChatForm(envelope(service, "chatcmpl"), text, asked.sampling.logprobs, asked.delivery)
    parting = _parting(service, asked, prompt)
    return Job((planned,), form, asked.delivery, asked.ignored, parting)


def prompt_of(service: Service, asked: ChatRequest) -> list[int]:
    """The ids that an answer follows. Raises ApiError."""
    text = service.text
    try:
        return rendered(text, asked.messages, asked.template_kwargs, asked.tools)
    except TextTooLong as error:
        raise too_long(error, text, asked.tokens_max, "messages") from None


def _parting(service: Service, asked: ChatRequest, prompt: list[int]) -> Parting | None:
    if asked.sampling.schema is not None:  # then all of it is the answer
        return None

    def begin() -> Speech | None:
        return service.text.speech(prompt, asked.tools.listed, thoughts=asked.thoughts)

    if begin() is None:
        return None
    return Parting(cast(Callable[[], Speech], begin), service.ambient.new_id, asked.tools.parallel)


def rendered(
    text: TextModel,
    messages: Sequence[dict[str, Any]],
    template_kwargs: Mapping[str, Any],
    tools: Tools,
) -> list[int]:
    """Prompt ids of a chat. Raises ApiError, or TextTooLong."""
    if tools.listed and not text.calls_tools:
        raise unsupported("tools", "this model's chat template shows no form of calls we can read")
    try:
        return text.render_chat(list(messages), dict(template_kwargs), tools.listed)
    except NoTemplate:
        raise ApiError(
            400,
            "This model has no chat template: use /v1/completions.",
            code="no_chat_template",
            param="messages",
        ) from None
    except TemplateError as error:
        raise invalid(
            "messages", f"the model's chat template refuses them: {error}", code="template_error"
        ) from None


@dataclass(frozen=True, slots=True)
class ChatForm:
    envelope: dict[str, Any]
    text: TextModel
    top: int | None
    delivery: Delivery

    def chunks(self, choice: int, piece: Piece, *, first: bool) -> Iterator[dict[str, Any]]:
        if first:
            yield self._chunk(choice, {"role": "assistant", "content": ""})
        deltas = [{"reasoning_content": piece.thought, "reasoning": piece.thought}]
        deltas = deltas if piece.thought else []
        if piece.text or (piece.tokens and self.top is not None and not deltas):
            deltas.append({"content": piece.text})
        for place, delta in enumerate(deltas):
            yield self._chunk(choice, delta, tokens=() if place else piece.tokens)
        for call in piece.calls:
            begun = _call(call, "") | {"index": call.index}
            yield self._chunk(choice, {"tool_calls": [begun]})
            rest = {"index": call.index, "function": {"arguments": call.call.arguments}}
            yield self._chunk(choice, {"tool_calls": [rest]})
        if piece.finish is not None:
            yield self._chunk(choice, {}, finish=_finish(piece))

    def end(self, usage: Usage) -> Iterator[dict[str, Any]]:
        if self.delivery.include_usage:
            yield self._head("chat.completion.chunk") | {"choices": []} | {"usage": usage.told()}

    def whole(self, answers: Sequence[Piece], usage: Usage) -> dict[str, Any]:
        return self._head("chat.completion") | {
            "choices": [self._choice(index, piece) for index, piece in enumerate(answers)],
            "usage": usage.told(),
        }

    def _choice(self, index: int, piece: Piece) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": piece.text, "refusal": None}
        if piece.thought:
            message |= {"reasoning_content": piece.thought, "reasoning": piece.thought}
        if piece.calls:
            message["content"] = piece.text or None
            message["tool_calls"] = [_call(call, call.call.arguments) for call in piece.calls]
        return {
            "index": index,
            "message": message,
            "logprobs": self._logprobs(piece.tokens),
            "finish_reason": _finish(piece),
        }

    def _chunk(
        self,
        choice: int,
        delta: dict[str, Any],
        *,
        tokens: Sequence[PlacedToken] = (),
        finish: str | None = None,
    ) -> dict[str, Any]:
        told = {
            "index": choice,
            "delta": delta,
            "logprobs": self._logprobs(tokens) if tokens else None,
            "finish_reason": finish,
        }
        return self._head("chat.completion.chunk") | {"choices": [told]}

    def _logprobs(self, tokens: Sequence[PlacedToken]) -> dict[str, Any] | None:
        return None if self.top is None else chat_logprobs(tokens, self.text, self.top)

    def _head(self, kind: str) -> dict[str, Any]:
        unused = {"usage": None} if self.delivery.include_usage else {}
        return {"object": kind} | self.envelope | unused


def _call(call: Call, arguments: str) -> dict[str, Any]:
    function = {"name": call.call.name, "arguments": arguments}
    return {"id": call.call_id, "type": "function", "function": function}


def _finish(piece: Piece) -> str | None:
    if piece.finish is None:
        return None
    return "tool_calls" if piece.called else piece.finish.value
