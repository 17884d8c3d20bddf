"""Runs an ASGI app on a socket inside asyncio: bound, announced, ended when cancelled.

Invariants
    * nothing beyond loopback is listened on without a token or mutual TLS;
    * the port is announced only once connections are accepted;
    * cancelled, it stops accepting at once and is over within about two seconds.
"""

from __future__ import annotations

import asyncio
import importlib.util
import ipaddress
import socket
from collections.abc import Callable
from typing import Any

import uvicorn

from meshnet.core.protocol.frames import message_bytes_max
from meshnet.core.protocol.limits import Limits
from meshnet.core.vocabulary import MeshnetError
from meshnet.wire.stream_bounds import BoundedStreamProtocol
from meshnet.wire.tls import MeshTls

KEEP_ALIVE_S = 3600
"""Longer than any pause between two tokens; the client closes idle connections first."""
GRACE_S = 1
CONNECTIONS_MAX = 1024
BACKLOG = 512


class AddressInUse(MeshnetError):
    """The address cannot be listened on."""


def bind(host: str, port: int) -> socket.socket:
    """Listen on `host`; port 0 takes a free one. Raises AddressInUse."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns Nagle's algorithm off only where it is told that this is TCP.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise AddressInUse(
            f"cannot listen on {host}:{port}: {error.strerror}. Choose another --port."
        ) from None
    return listener


def _refuse_strangers(address: str, *, locked: bool) -> None:
    if not locked and not ipaddress.ip_address(address.partition("%")[0]).is_loopback:
        raise MeshnetError(
            f"{address} can be reached from other machines, and neither a token nor TLS is set: "
            "set MESHNET_MESH_TOKEN to one secret on all nodes and heads, or MESHNET_TLS_DIR, "
            "or listen on 127.0.0.1"
        )


async def serve_socket(
    app: Any,
    listener: socket.socket,
    *,
    token: str | None = None,
    tls: MeshTls | None = None,
    on_ready: Callable[[int], None] | None = None,
    limits: Limits | None = None,
) -> None:
    """Serve until cancelled, then close the socket; `on_ready` gets its port once it accepts.

    `limits` bound the frames of streams as they do the app's requests. `token` must be the one
    `app` asks for. With `tls` only who has a certificate of the mesh connects. Raises
    MeshnetError if others could reach the node without either.
    """
    with listener:
        address = listener.getsockname()
        _refuse_strangers(str(address[0]), locked=token is not None or tls is not None)
        config = _config(app, limits or Limits(), tls)
        config.load()
        server = TlsServer(config, tls)
        server.lifespan = config.lifespan_class(config)
        await server.startup(sockets=[listener])
        try:
            if on_ready is not None:
                on_ready(address[1])
            await server.main_loop()
        finally:
            await server.shutdown(sockets=[listener])
            await _end(server.server_state.tasks)


class TlsServer(uvicorn.Server):
    """Closes what is open once certificates are revoked: whoever is still believed comes again."""

    def __init__(self, config: uvicorn.Config, tls: MeshTls | None) -> None:
        super().__init__(config)
        self._tls = tls
        self._revocations = 0 if tls is None else tls.revocations

    async def on_tick(self, counter: int) -> bool:
        if self._tls is not None and (now := self._tls.revocations) != self._revocations:
            self._revocations = now
            for connection in list(self.server_state.connections):
                connection.transport.abort()
        return await super().on_tick(counter)


async def _end(tasks: set[asyncio.Task[None]]) -> None:
    """Wait for the requests that the shutdown has just cancelled."""
    if tasks:
        await asyncio.wait(tasks, timeout=GRACE_S)


def _config(app: Any, limits: Limits, tls: MeshTls | None) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=http_protocol(),
        ws=BoundedStreamProtocol,
        ws_max_size=message_bytes_max(limits),
        ws_ping_interval=None,
        ws_per_message_deflate=False,
        lifespan="off",
        log_config=None,
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        limit_concurrency=CONNECTIONS_MAX,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACE_S,
        h11_max_incomplete_event_size=64 * 1024,
        ssl_context_factory=None if tls is None else lambda config, default: tls.server(),
    )


def http_protocol(refusal: Callable[[str], bytes] | None = None) -> Any:
    """The bounded parser: httptools where it is installed, a third of the time of pure Python.

    `refusal` makes the body for what is no HTTP at all; absent: a node's.
    """
    if importlib.util.find_spec("httptools") is None:
        return "h11"
    from meshnet.wire.http_strangers import NodeHttpProtocol, TolerantHttpProtocol

    if refusal is None:
        return NodeHttpProtocol
    return type("GatewayProtocol", (TolerantHttpProtocol,), {"refusal": staticmethod(refusal)})
