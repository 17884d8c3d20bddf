"""Where a node listens, and how it ends."""

from __future__ import annotations

import asyncio
import socket

import pytest
from tests.wire.echoing import EchoService, post, serving, spoken

from meshnet.core.vocabulary import MeshnetError
from meshnet.wire.serving import AddressInUse, bind, serve_socket


async def nothing(scope: object, receive: object, send: object) -> None:
    """An app that is never called."""


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
async def test_beyond_loopback_without_a_token_is_refused_with_the_way_out(host):
    """Pit A95."""
    listener = bind(host, 0)

    with pytest.raises(MeshnetError, match="MESHNET_MESH_TOKEN"):
        await serve_socket(nothing, listener)

    assert listener.fileno() == -1


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.9.9.9"])
async def test_loopback_needs_no_token(host):
    assert await accepted(bind(host, 0), token=None) > 0


async def test_a_token_opens_the_node_to_others():
    assert await accepted(bind("0.0.0.0", 0), token="secret") > 0


async def accepted(listener: socket.socket, *, token: str | None) -> int:
    """Return the port that was told, once it accepts."""
    ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(
            serve_socket(nothing, listener, token=token, on_ready=ready.set_result)
        )
        port = await ready
        serving.cancel()
    return port


def test_a_port_that_is_taken_is_an_error_that_says_so():
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AddressInUse, match=f"127.0.0.1:{port}"):
            bind("127.0.0.1", port)


def test_a_host_that_does_not_exist_is_an_error_that_says_so():
    with pytest.raises(AddressInUse, match=r"no\.such\.host\.invalid"):
        bind("no.such.host.invalid", 0)


async def test_after_the_end_nobody_listens():
    async with serving(EchoService()) as url:
        assert await spoken(url, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n") is not None

    with pytest.raises(ConnectionRefusedError):
        await spoken(url, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")


async def test_a_step_that_never_ends_does_not_hold_up_the_end():
    service = EchoService(go_on=asyncio.Event())
    async with asyncio.TaskGroup() as group, serving(service) as url:
        waiting = group.create_task(spoken(url, post({}, bytes(32))))
        await service.arrived.wait()

    answer = waiting.result()
    assert answer is None or answer.status >= 500
