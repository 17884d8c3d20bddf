"""Log probabilities in the two shapes of the API; always finite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshnet.core.vocabulary import TokenLogprob
from meshnet.gateway.assembly import PlacedToken
from meshnet.gateway.ports import TextModel

FLOOR = -9999.0
"""Stands for minus infinity and below, as in vLLM: JSON has no infinities."""


def chat_logprobs(tokens: Sequence[PlacedToken], text: TextModel, top: int) -> dict[str, Any]:
    """One entry per token, each with its own bytes and its `top` best alternatives."""
    return {"content": [_entry(placed, text, top) for placed in tokens], "refusal": None}


def _entry(placed: PlacedToken, text: TextModel, top: int) -> dict[str, Any]:
    token = placed.token
    return _one(token.token_id, token.logprob, text) | {
        "top_logprobs": [
            _one(alternative.token_id, alternative.logprob, text) for alternative in token.top[:top]
        ]
    }


def _one(token_id: int, logprob: float | None, text: TextModel) -> dict[str, Any]:
    return {
        "token": text.token_text(token_id),
        "logprob": finite(logprob),
        "bytes": list(text.token_bytes(token_id)),
    }


def completion_logprobs(tokens: Sequence[PlacedToken], text: TextModel, top: int) -> dict[str, Any]:
    """Parallel lists; the alternatives include the token itself, as OpenAI's do.

    The first token of a prompt has none: null stands for it, as OpenAI's did.
    """
    return {
        "tokens": [text.token_text(placed.token.token_id) for placed in tokens],
        "token_logprobs": [
            finite(placed.token.logprob) if placed.follows else None for placed in tokens
        ],
        "top_logprobs": [
            _alternatives(placed, text, top) if placed.follows else None for placed in tokens
        ],
        "text_offset": [placed.offset for placed in tokens],
    }


def _alternatives(placed: PlacedToken, text: TextModel, top: int) -> dict[str, float]:
    token = placed.token
    own = TokenLogprob(token.token_id, finite(token.logprob))
    by_text: dict[str, float] = {}
    for alternative in (*token.top[:top], own):
        by_text.setdefault(text.token_text(alternative.token_id), finite(alternative.logprob))
    return by_text


def finite(logprob: float | None) -> float:
    """A tail that was asked and did not say counts as the floor; so does NaN."""
    if logprob is None or not logprob > FLOOR:
        return FLOOR
    return min(logprob, 0.0)
