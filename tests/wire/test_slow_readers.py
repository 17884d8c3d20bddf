"""Peers that ask and do not read the answer."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.wire.echoing import EchoService
from tests.wire.skipping import skipping

from meshnet.core.protocol.limits import Limits
from meshnet.wire.http_bounds import BoundedHttpProtocol
from meshnet.wire.http_server import node_app
from meshnet.wire.serving import bind, serve_socket

BODY_BYTES = 16 * 2**20
"""More than loopback sockets hold."""
PART_BYTES = 5 * 2**20
STALL_S = 60.0


class Watched(BoundedHttpProtocol):
    """Tells when a connection is over."""

    over: asyncio.Event
    serving: Watched

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        Watched.serving = self

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.over.set()


@pytest.fixture
def over(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    Watched.over = asyncio.Event()
    monkeypatch.setattr("meshnet.wire.serving.http_protocol", lambda: Watched)
    return Watched.over


@asynccontextmanager
async def asked() -> AsyncIterator[socket.socket]:
    """A connection that has sent a step and gets an answer as large as its body."""
    limits = Limits(body_bytes=BODY_BYTES)
    app = node_app(EchoService(), limits=limits, token=None, metrics=lambda: b"")
    ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    head = (
        "POST /forward HTTP/1.1\r\nHost: x\r\nX-Meshnet-Dtype: fp32\r\n"
        f"X-Meshnet-Shape: 1,{BODY_BYTES // 32},8\r\nContent-Length: {BODY_BYTES}\r\n\r\n"
    )
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(
            serve_socket(app, bind("127.0.0.1", 0), on_ready=ready.set_result)
        )
        loop = asyncio.get_running_loop()
        with socket.socket() as peer:
            peer.setblocking(False)
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)
            await loop.sock_connect(peer, ("127.0.0.1", await ready))
            await loop.sock_sendall(peer, head.encode() + bytes(BODY_BYTES))
            yield peer
        serving.cancel()


async def test_an_answer_that_nobody_reads_is_given_up(over, monkeypatch):
    monkeypatch.setattr("meshnet.wire.http_bounds.WRITE_STALL_S", 0.05)

    async with asked(), asyncio.timeout(20):
        await over.wait()


async def test_an_answer_that_is_read_slowly_arrives_whole(over, monkeypatch):
    """Whenever it is looked at, the peer has taken more than sockets hold since the last look."""
    monkeypatch.setattr("meshnet.wire.http_bounds.WRITE_STALL_S", STALL_S)
    loop, skip, looks = asyncio.get_running_loop(), skipping(), 0

    async with asked() as peer:
        received = 0
        while received < BODY_BYTES:
            part = await loop.sock_recv(peer, 2**16)
            assert part, "closed before the end"
            if received // PART_BYTES < (received + len(part)) // PART_BYTES:
                looks += Watched.serving._write_timer is not None
                skip(STALL_S)
            received += len(part)

    assert looks >= 2
