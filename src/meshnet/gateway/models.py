"""GET /v1/models: the one model served, and how much it can read."""

from __future__ import annotations

from typing import Any

from meshnet.gateway.answering import DEFAULT_MODEL, unknown_model
from meshnet.gateway.ports import TextModel


def model_card(text: TextModel, created: int) -> dict[str, Any]:
    """The size of the context under both names that clients look for (vLLM, LM Studio)."""
    return {
        "id": str(text.model),
        "object": "model",
        "created": created,
        "owned_by": "meshnet",
        "max_model_len": text.context_length,
        "context_length": text.context_length,
    }


def model_list(text: TextModel, created: int) -> dict[str, Any]:
    return {"object": "list", "data": [model_card(text, created)]}


def find_model(text: TextModel, model: str, created: int) -> dict[str, Any]:
    """Raises ApiError."""
    if model not in (DEFAULT_MODEL, text.model):
        raise unknown_model(model)
    return model_card(text, created)
