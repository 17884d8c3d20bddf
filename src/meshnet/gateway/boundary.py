"""The outermost layer: one request id, tidy paths, safe headers, and no bug without a 500.

Invariants
    * every response names its request: the client's id where it is plain, else one of ours;
    * an exception that nobody expected ends one request, is told once, and shows no detail.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from meshnet.core.vocabulary import TraceContext
from meshnet.gateway.answering import CLIENT_GONE, REQUEST_ID, TRACE
from meshnet.gateway.errors import SERVER_ERROR, ApiError, error_response
from meshnet.gateway.ports import Ambient
from meshnet.telemetry.events import Event, Fault, GatewayAnswered

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}", re.ASCII)
_SLASHES = re.compile(r"/{2,}")
_PATH_SHOWN = 200


def request_id(asked: str, ambient: Ambient) -> str:
    """The client's own id if it is harmless in headers and logs, else a new one."""
    return asked if _REQUEST_ID.fullmatch(asked) else f"req-{ambient.new_id()}"


def tidy(path: str) -> str:
    """Base URLs end with a slash or not; clients join them as they please."""
    return _SLASHES.sub("/", path).rstrip("/") or "/"


def trace_of(traceparent: str, ambient: Ambient, ratio: float | None) -> TraceContext | None:
    """Return a span under the client's, else, of that part of the requests, of a trace of ours."""
    if (given := TraceContext.parse(traceparent)) is not None:
        return given.child(_span_id(ambient))
    if ratio is None:
        return None
    sampled = ambient.new_seed() < ratio * 2**64
    return TraceContext(_span_id(ambient) + _span_id(ambient), _span_id(ambient), sampled)


def _span_id(ambient: Ambient) -> str:
    return f"{ambient.new_seed() or 1:016x}"


class Boundary:
    def __init__(
        self,
        app: ASGIApp,
        ambient: Ambient,
        record: Callable[[Event], None],
        trace_ratio: float | None = None,
    ) -> None:
        self._app = app
        self._ambient = ambient
        self._record = record
        self._trace_ratio = trace_ratio

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started_at = self._ambient.clock()
        headers = Headers(scope=scope)
        request = request_id(headers.get("x-request-id", ""), self._ambient)
        # Probes and scrapes come for ever: only who asks for a trace of them gets one.
        ratio = self._trace_ratio if scope["method"] == "POST" else None
        trace = trace_of(headers.get("traceparent", ""), self._ambient, ratio)
        answering = _Answering(send, request)
        scope = {**scope, "path": tidy(scope["path"]), REQUEST_ID: request, TRACE: trace}
        try:
            await self._app(scope, receive, answering.send)
        except Exception as error:  # Process boundary: one request fails, and it is told.
            self._record(Fault("gateway", type(error).__name__, traceback.format_exc()))
            if answering.status is not None:
                raise
            await error_response(_internal())(scope, receive, answering.send)
        finally:
            self._record(
                GatewayAnswered(
                    method=scope["method"],
                    path=scope["path"][:_PATH_SHOWN],
                    status=answering.status or CLIENT_GONE,
                    duration_s=self._ambient.clock() - started_at,
                    request=request,
                    trace=trace,
                )
            )


def _internal() -> ApiError:
    return ApiError(500, "The server failed; the failure is logged.", type=SERVER_ERROR)


class _Answering:
    """Adds headers to a response on its way, and remembers its status."""

    def __init__(self, send: Send, request: str) -> None:
        self._send = send
        self._request = request
        self.status: int | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["x-request-id"] = self._request
            headers["x-content-type-options"] = "nosniff"
            headers.setdefault("cache-control", "no-store")
        await self._send(message)
