"""POST /v1/completions: what is asked, and the shapes of its answers.

Several prompts are served one after the other, each as the choice of its index: a batch takes
one place on the nodes, never many.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from meshnet.core.vocabulary import TextTooLong
from meshnet.gateway.answering import Asker, Job, Service, Usage, envelope
from meshnet.gateway.assembly import Piece, PlacedToken
from meshnet.gateway.fields import read_json_object
from meshnet.gateway.logprobs import completion_logprobs
from meshnet.gateway.planning import Choices, plans, too_long
from meshnet.gateway.ports import TextModel
from meshnet.gateway.requests import Delivery, Prompt, read_completion


def prepare_completion(service: Service, body: bytes, asker: Asker) -> Job:
    """Parse, tokenise and plan every prompt; blocking. Raises ApiError."""
    text = service.text
    asked = read_completion(read_json_object(body), service.settings.limits, text.vocab_size)
    service.check_model(asked.model)
    choices = service.choices(asked, asker, where="prompt")
    planned = tuple(plans(_ids(text, prompt, choices), text, choices) for prompt in asked.prompts)
    form = CompletionForm(envelope(service, "cmpl"), text, asked.sampling.logprobs, asked.delivery)
    return Job(planned, form, asked.delivery, asked.ignored)


def _ids(text: TextModel, prompt: Prompt, choices: Choices) -> list[int]:
    if not isinstance(prompt, str):
        return list(prompt)
    try:
        return text.encode(prompt, special=True)
    except TextTooLong as error:
        raise too_long(error, text, choices.tokens_max, choices.where) from None


@dataclass(frozen=True, slots=True)
class CompletionForm:
    envelope: dict[str, Any]
    text: TextModel
    top: int | None
    delivery: Delivery

    def chunks(self, choice: int, piece: Piece, *, first: bool) -> Iterator[dict[str, Any]]:
        if piece.text or piece.tokens:
            yield self._body([self._choice(choice, piece.text, piece.tokens, None)])
        if piece.finish is not None:
            yield self._body([self._choice(choice, "", (), piece.finish.value)])

    def end(self, usage: Usage) -> Iterator[dict[str, Any]]:
        if self.delivery.include_usage:
            yield self._body([]) | {"usage": usage.told()}

    def whole(self, answers: Sequence[Piece], usage: Usage) -> dict[str, Any]:
        choices = [
            self._choice(index, piece.text, piece.tokens, piece.finish and piece.finish.value)
            for index, piece in enumerate(answers)
        ]
        return self._body(choices) | {"usage": usage.told()}

    def _choice(
        self, index: int, text: str, tokens: Sequence[PlacedToken], finish: str | None
    ) -> dict[str, Any]:
        logprobs = None
        if self.top is not None:
            logprobs = completion_logprobs(tokens, self.text, self.top)
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}

    def _body(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        unused = {"usage": None} if self.delivery.include_usage else {}
        return {"object": "text_completion"} | self.envelope | {"choices": choices} | unused
