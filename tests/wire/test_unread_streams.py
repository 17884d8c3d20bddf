"""Peers that fill a stream and never read what comes back."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace

import pytest
from tests.wire.echoing import activation, decode, serving
from tests.wire.test_hostile_streams import OPENING, S, serves
from tests.wire.test_streams import Streaming

from meshnet.core.protocol.frames import encode_step
from meshnet.wire.stream_bounds import BoundedStreamProtocol


async def test_a_peer_that_sends_and_never_reads_is_given_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("meshnet.wire.stream_bounds.WRITE_STALL_S", 0.1)
    service = Streaming()
    large = encode_step(1, replace(decode(), activation=activation(1, 4096)))
    async with serving(service) as url:
        host, _, port = url.removeprefix("http://").partition(":")
        with socket.socket() as mute:
            mute.setblocking(False)
            mute.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**14)
            size = len(large).to_bytes(2, "big")
            masked = b"\x82\xfe" + size + bytes(4) + large
            await flooding(mute, host, int(port), masked, service)

        assert await serves(url)
    assert service.pins[S] == 0


async def flooding(
    mute: socket.socket, host: str, port: int, masked: bytes, service: Streaming
) -> None:
    """Send the same again and again until the node has had enough."""
    loop = asyncio.get_running_loop()
    await loop.sock_connect(mute, (host, port))
    await loop.sock_sendall(mute, OPENING)
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += await loop.sock_recv(mute, 1)
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        sending = group.create_task(endlessly(mute, masked))
        await service.unpinned.wait()
        sending.cancel()


async def endlessly(mute: socket.socket, masked: bytes) -> None:
    loop = asyncio.get_running_loop()
    try:
        while True:
            await loop.sock_sendall(mute, masked)
    except ConnectionError:
        return


class Gauge(BoundedStreamProtocol):
    """Remembers how much waited to be sent."""

    most = 0

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        Gauge.most = max(Gauge.most, self.transport.get_write_buffer_size())


async def test_pings_whose_pongs_nobody_reads_fill_no_memory(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("meshnet.wire.serving.BoundedStreamProtocol", Gauge)
    monkeypatch.setattr("meshnet.wire.stream_bounds.WRITE_STALL_S", 0.5)
    service = Streaming()
    pings = (b"\x89\xfd" + bytes(4) + bytes(125)) * 5000
    async with serving(service) as url:
        host, _, port = url.removeprefix("http://").partition(":")
        with socket.socket() as mute:
            mute.setblocking(False)
            mute.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**14)
            await flooding(mute, host, int(port), pings, service)

    assert 0 < Gauge.most < 2**20
