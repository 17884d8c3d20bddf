"""How events and errors are put: OpenAI's way, and Anthropic's for `/v1/messages`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from meshnet.gateway import sse
from meshnet.gateway.errors import ApiError, json_response


@dataclass(frozen=True, slots=True)
class Dialect:
    frame: Callable[[Mapping[str, Any]], bytes]
    error: Callable[[ApiError], dict[str, Any]]
    keep_alive: bytes
    done: bytes
    """What a stream ends with."""

    def refusal(self, error: ApiError) -> Response:
        return json_response(self.error(error), status=error.status, headers=error.headers)


def _named_frame(body: Mapping[str, Any]) -> bytes:
    """An event by its type, which is always a word of ours."""
    return f"event: {body['type']}\n".encode("ascii") + sse.frame(body)


_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    413: "request_too_large",
    503: "overloaded_error",
}


def _anthropic_error(error: ApiError) -> dict[str, Any]:
    kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": str(error)}}


OPENAI = Dialect(sse.frame, lambda error: error.body, sse.KEEP_ALIVE, sse.DONE)
ANTHROPIC = Dialect(_named_frame, _anthropic_error, _named_frame({"type": "ping"}), b"")


def dialect_of(path: str) -> Dialect:
    """The dialect that clients of a path speak."""
    return ANTHROPIC if path.removeprefix("/v1").startswith("/messages") else OPENAI
