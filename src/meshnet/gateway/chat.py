"""POST /v1/chat/completions: what is asked, and the shapes of its answers.

    chunks: role and "" | delta.content ... | {} with finish_reason | usage, on demand

Source: openai-python's lib/streaming/_deltas.py concatenates every string of a delta, so the
role comes once; it overwrites usage and fingerprint by each chunk, so usage comes last.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from meshnet.core.generation.transcript import FinishReason
from meshnet.core.vocabulary import NoTemplate, TemplateError, TextTooLong
from meshnet.gateway.answering import Asker, Job, Service, envelope
from meshnet.gateway.assembly import Piece, PlacedToken
from meshnet.gateway.errors import ApiError, invalid
from meshnet.gateway.fields import read_json_object
from meshnet.gateway.logprobs import chat_logprobs
from meshnet.gateway.planning import plans, too_long
from meshnet.gateway.ports import TextModel
from meshnet.gateway.requests import read_chat


def prepare_chat(service: Service, body: bytes, asker: Asker) -> Job:
    """Parse, render, tokenise and plan; blocking. Raises ApiError."""
    text = service.text
    asked = read_chat(read_json_object(body), service.settings.limits, text.vocab_size)
    service.check_model(asked.model)
    choices = service.choices(asked, asker, where="messages")
    try:
        prompt = rendered(text, asked.messages, asked.template_kwargs)
    except TextTooLong as error:
        raise too_long(error, text, choices) from None
    planned = plans(prompt, text, choices)
    form = ChatForm(envelope(service, "chatcmpl"), text, asked.sampling.logprobs)
    return Job((planned,), form, asked.delivery, asked.ignored)


def rendered(
    text: TextModel, messages: Sequence[dict[str, Any]], template_kwargs: Mapping[str, Any]
) -> list[int]:
    """Prompt ids of a chat. Raises ApiError, or TextTooLong."""
    try:
        return text.render_chat(list(messages), dict(template_kwargs))
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

    def chunks(self, choice: int, piece: Piece, *, first: bool) -> Iterator[dict[str, Any]]:
        if first:
            yield self._chunk(choice, {"role": "assistant", "content": ""})
        if piece.text or (piece.tokens and self.top is not None):
            yield self._chunk(choice, {"content": piece.text}, tokens=piece.tokens)
        if piece.finish is not None:
            yield self._chunk(choice, {}, finish=piece.finish)

    def usage_chunk(self) -> dict[str, Any]:
        return self._head("chat.completion.chunk") | {"choices": []}

    def whole(self, answers: Sequence[Piece]) -> dict[str, Any]:
        return self._head("chat.completion") | {
            "choices": [self._choice(index, piece) for index, piece in enumerate(answers)]
        }

    def _choice(self, index: int, piece: Piece) -> dict[str, Any]:
        return {
            "index": index,
            "message": {"role": "assistant", "content": piece.text, "refusal": None},
            "logprobs": self._logprobs(piece.tokens),
            "finish_reason": _name(piece.finish),
        }

    def _chunk(
        self,
        choice: int,
        delta: dict[str, Any],
        *,
        tokens: Sequence[PlacedToken] = (),
        finish: FinishReason | None = None,
    ) -> dict[str, Any]:
        told = {
            "index": choice,
            "delta": delta,
            "logprobs": self._logprobs(tokens) if tokens else None,
            "finish_reason": _name(finish),
        }
        return self._head("chat.completion.chunk") | {"choices": [told]}

    def _logprobs(self, tokens: Sequence[PlacedToken]) -> dict[str, Any] | None:
        return None if self.top is None else chat_logprobs(tokens, self.text, self.top)

    def _head(self, kind: str) -> dict[str, Any]:
        return {"object": kind} | self.envelope


def _name(finish: FinishReason | None) -> str | None:
    return None if finish is None else finish.value
