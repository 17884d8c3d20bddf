"""What a client is told when there is no answer: status, OpenAI error object, retry advice.

Invariants
    * `param` and `code` are strings or null, `message` is a string (the SDKs insist);
    * bad input is 400 and never retried; a status that SDKs retry means a retry may help;
    * 409 is never given: openai-python would retry it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from meshnet.core.generation.transcript import FailureCode
from meshnet.core.vocabulary import MeshnetError
from meshnet.gateway.sse import one_line_json
from meshnet.head import GenerationFailed

INVALID_REQUEST = "invalid_request_error"
SERVER_ERROR = "server_error"


class ApiError(MeshnetError):
    """A refusal as the client sees it."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = INVALID_REQUEST,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.type = type
        self.code = code
        self.param = param
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        return {
            "error": {
                "message": str(self),
                "type": self.type,
                "param": self.param,
                "code": self.code,
            }
        }


def error_response(error: ApiError) -> Response:
    return json_response(error.body, status=error.status, headers=error.headers)


def json_response(
    body: Mapping[str, Any], *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    return Response(
        one_line_json(body).encode(),
        status_code=status,
        headers=dict(headers or {}),
        media_type="application/json",
    )


def invalid(param: str | None, message: str, *, code: str | None = "invalid_value") -> ApiError:
    text = f"{param}: {message}" if param else message
    return ApiError(400, text, code=code, param=param)


def unsupported(param: str, message: str) -> ApiError:
    return invalid(param, message, code="unsupported_parameter")


def context_exceeded(
    *, limit: int, prompt: int, completion: int, where: str, counted: bool = True
) -> ApiError:
    """The wording agents and proxies look for (LiteLLM, Cline); `counted`: not only estimated."""
    about = "" if counted else "more than "
    return ApiError(
        400,
        f"This model's maximum context length is {limit} tokens. However, you requested "
        f"{about}{prompt + completion} tokens ({about}{prompt} in the {where}, "
        f"{completion} in the completion). "
        f"Please reduce the length of the {where} or completion.",
        code="context_length_exceeded",
        param=where,
    )


@dataclass(frozen=True, slots=True)
class _Told:
    status: int
    code: str
    type: str = SERVER_ERROR
    retry: bool | None = None
    """None leaves it to the SDK; a bool is said with x-should-retry."""
    wait: bool = False


_FAILURES: dict[FailureCode, _Told] = {
    FailureCode.OVERLOADED: _Told(503, "overloaded", retry=True, wait=True),
    FailureCode.NO_ROUTE: _Told(503, "no_route", retry=True, wait=True),
    FailureCode.UPSTREAM: _Told(502, "upstream_error"),
    FailureCode.NUMERICAL: _Told(500, "numerical_error", retry=False),
    FailureCode.TIMEOUT: _Told(504, "timeout", retry=False),
    FailureCode.TOO_LARGE: _Told(400, "context_length_exceeded", type=INVALID_REQUEST),
    FailureCode.UNAUTHORIZED: _Told(502, "upstream_error", retry=False),
}


def of_failure(failure: GenerationFailed) -> ApiError:
    """The head's failure as the client sees it."""
    told = _FAILURES[failure.code]
    headers = {}
    if told.wait:
        headers["retry-after"] = str(max(1, math.ceil(failure.retry_after_s or 1.0)))
    if told.retry is not None:
        headers["x-should-retry"] = "true" if told.retry else "false"
    return ApiError(told.status, str(failure), type=told.type, code=told.code, headers=headers)
