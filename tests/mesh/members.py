"""Members and registries for tests, the latter also behind HTTP without a socket."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message

from meshnet.core.vocabulary import (
    WIRE_VERSION,
    Capacity,
    LayerRange,
    Member,
    MemberState,
    ModelId,
    NodeId,
)
from meshnet.mesh.registry.http_server import registry_app
from meshnet.mesh.registry.ports import RegistryLost
from meshnet.mesh.registry.sqlite import SqliteRegistry

MODEL = ModelId("tiny")


def member(
    number: int,
    layers: str | None = None,
    *,
    assigned: bool = True,
    state: MemberState = MemberState.JOINING,
    memory_bytes: int = 1000,
    machine: str | None = None,
    failure: str = "",
    epoch: int = 0,
) -> Member:
    """Node `number`; without `layers` it holds none."""
    return Member(
        node=NodeId(f"http://10.0.0.{number}:9001"),
        wire=WIRE_VERSION,
        state=state,
        capacity=Capacity(machine or f"machine {number}", memory_bytes, 2),
        model=None if layers is None else MODEL,
        layers=None if layers is None else LayerRange.parse(layers),
        assigned=assigned,
        failure=failure,
        epoch=epoch,
    )


def sqlite_registry(path: Path | None = None, *, born: int = 1) -> SqliteRegistry:
    """A registry of the running event loop."""
    return SqliteRegistry(path, clock=asyncio.get_running_loop().time, born=born)


class AsgiExchange:
    """Carries the calls of an HttpRegistry to an application of this process.

    `app` may be replaced, or None: nobody listens. `deaf` lets calls to paths that begin so hang.
    """

    def __init__(self, app: ASGIApp | None, token: str | None = None) -> None:
        self.app = app
        self.deaf: str | None = None
        self.calls: list[str] = []
        self._headers = [] if token is None else [(b"authorization", f"Bearer {token}".encode())]

    async def __call__(
        self, method: str, path: str, body: bytes, timeout_s: float
    ) -> tuple[int, bytes]:
        self.calls.append(f"{method} {path}")
        if self.deaf is not None and path.startswith(self.deaf):
            await asyncio.get_running_loop().create_future()
        if self.app is None:
            raise RegistryLost("connection refused")
        return await asgi_call(self.app, method, path, body, self._headers)


async def asgi_call(
    app: ASGIApp,
    method: str,
    path: str,
    body: bytes = b"",
    headers: list[tuple[bytes, bytes]] | None = None,
) -> tuple[int, bytes]:
    """One request to `app`: its status and its body."""
    parts = urlsplit(path)
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": parts.path,
        "query_string": parts.query.encode(),
        "headers": headers or [],
    }
    await app(scope, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


def served(registry: SqliteRegistry, token: str | None = None) -> AsgiExchange:
    """The way of a client to a registry that is served."""
    return AsgiExchange(registry_app(registry, token=token), token)
