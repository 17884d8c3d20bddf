"""Runs an ASGI app on a socket inside asyncio: bound, announced, ended when cancelled.

Invariants
    * nothing beyond loopback is listened on without a token;
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

from meshnet.core.vocabulary import MeshnetError

KEEP_ALIVE_S = 3600
"""Longer than any pause between two tokens; the client closes idle connections first."""
GRACE_S = 1
CONNECTIONS_MAX = 1024
BACKLOG = 512


def bind(host: str, port: int, *, token: str | None) -> socket.socket:
    """Return a listening socket; port 0 takes a free one.

    Raises MeshnetError if the address is taken, or is open to others without a token.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise MeshnetError(f"cannot listen on {host!r}: {error}") from None
    family, _, _, _, address = found[0]
    _refuse_strangers(str(address[0]), host, token)
    try:
        return socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        raise MeshnetError(f"cannot listen on {host}:{port}: {error.strerror}") from None


def _refuse_strangers(address: str, host: str, token: str | None) -> None:
    if token is None and not ipaddress.ip_address(address.partition("%")[0]).is_loopback:
        raise MeshnetError(
            f"{host} can be reached from other machines and no token is set: "
            "set MESHNET_MESH_TOKEN to one secret on all nodes and heads, or listen on 127.0.0.1"
        )


async def serve_node(
    app: Any,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = None,
    on_ready: Callable[[int], None] | None = None,
) -> None:
    """Serve until cancelled; `on_ready` gets the bound port once connections are accepted.

    `token` must be the one `app` asks for. Raises MeshnetError if it cannot or must not listen.
    """
    await serve_socket(app, bind(host, port, token=token), token=token, on_ready=on_ready)


async def serve_socket(
    app: Any,
    listener: socket.socket,
    *,
    token: str | None = None,
    on_ready: Callable[[int], None] | None = None,
) -> None:
    """Serve on a socket that is already bound, and close it. Raises MeshnetError like `bind`."""
    with listener:
        address = listener.getsockname()
        _refuse_strangers(str(address[0]), str(address[0]), token)
        config = _config(app)
        config.load()
        server = uvicorn.Server(config)
        server.lifespan = config.lifespan_class(config)
        await server.startup(sockets=[listener])
        try:
            if on_ready is not None:
                on_ready(address[1])
            await server.main_loop()
        finally:
            await server.shutdown(sockets=[listener])
            await _end(server.server_state.tasks)


async def _end(tasks: set[asyncio.Task[None]]) -> None:
    """Wait for the requests that the shutdown has just cancelled."""
    if tasks:
        await asyncio.wait(tasks, timeout=GRACE_S)


def _config(app: Any) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=http_protocol(),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        limit_concurrency=CONNECTIONS_MAX,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACE_S,
        h11_max_incomplete_event_size=64 * 1024,
    )


def http_protocol() -> Any:
    """The bounded parser: httptools where it is installed, a third of the time of pure Python."""
    if importlib.util.find_spec("httptools") is None:
        return "h11"
    from meshnet.wire.http_bounds import BoundedHttpProtocol

    return BoundedHttpProtocol
