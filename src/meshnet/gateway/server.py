"""The gateway's socket: loopback unless the API is locked, and an orderly end.

Invariants
    * an address that others can reach is never served without an API key;
    * cancelling `serve_gateway` stops listening, gives running answers `drain_s`, then cancels
      them; nothing of it is left when the call ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Generator

import uvicorn
from starlette.types import ASGIApp

from meshnet.core.vocabulary import MeshnetError
from meshnet.gateway.errors import ApiError, error_response
from meshnet.gateway.loopback import is_loopback
from meshnet.gateway.settings import GatewaySettings
from meshnet.wire.serving import TlsServer, bind, http_protocol
from meshnet.wire.tls import MeshTls

KEEP_CONNECTION_S = 75


class Exposed(MeshnetError):
    """Raised instead of opening the API to others without a key."""


async def serve_gateway(
    app: ASGIApp,
    settings: GatewaySettings,
    *,
    host: str,
    port: int,
    started: Callable[[str], None],
    drain_s: float = 5.0,
    tls: MeshTls | None = None,
) -> None:
    """Serve until cancelled; `started` gets the URL once connections are accepted.

    With `tls` by HTTPS: a peer may show a certificate of the mesh, and the scope tells if it did.

    Port 0 takes a free one. Raises Exposed or AddressInUse before anything is served.
    """
    if not is_loopback(host) and not settings.locked:
        raise Exposed(
            f"refusing to listen on {host} without an API key: others could use this API. "
            "Configure a key, or listen on 127.0.0.1."
        )
    with contextlib.closing(bind(host, port)) as listener:
        shown = f"[{host}]" if ":" in host else host
        server = _Server(
            _config(app, drain_s, tls),
            lambda: started(
                f"http{'' if tls is None else 's'}://{shown}:{listener.getsockname()[1]}"
            ),
            tls,
        )
        await server.serve([listener])
    if server.was_cancelled:
        raise asyncio.CancelledError


def _config(app: ASGIApp, drain_s: float, tls: MeshTls | None) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=http_protocol(_not_http),
        log_config=None,
        log_level="error",
        access_log=False,
        ws="none",
        lifespan="off",
        server_header=False,
        timeout_keep_alive=KEEP_CONNECTION_S,
        timeout_graceful_shutdown=max(1, round(drain_s)),
        ssl_context_factory=None
        if tls is None
        else lambda config, default: tls.server(everybody=True),
    )


def _not_http(message: str) -> bytes:
    return bytes(error_response(ApiError(400, message)).body)


class _Server(TlsServer):
    """uvicorn without its signal handlers; a cancellation becomes its orderly shutdown."""

    def __init__(
        self, config: uvicorn.Config, started: Callable[[], None], tls: MeshTls | None
    ) -> None:
        super().__init__(config, tls)
        self._tell_started = started
        self.was_cancelled = False

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self._tell_started()

    async def main_loop(self) -> None:
        try:
            await super().main_loop()
        except asyncio.CancelledError:
            self.was_cancelled = True
