"""The socket: whom it lets in, and how it ends."""

from __future__ import annotations

import asyncio
import socket

import httpx2
import pytest
from tests.gateway.api import Gateway
from tests.wire.echoing import spoken

from meshnet.gateway.loopback import host_of, is_loopback
from meshnet.gateway.server import Exposed, serve_gateway
from meshnet.gateway.settings import GatewaySettings
from meshnet.wire.serving import AddressInUse


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "example.org", ""])
async def test_others_are_not_let_in_without_a_key(host: str):
    """Pit A100."""
    gateway = Gateway()

    with pytest.raises(Exposed, match="API key"):
        await serve_gateway(gateway.app, gateway.settings, host=host, port=0, started=print)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_is_known_by_its_names(host: str):
    assert is_loopback(host)


@pytest.mark.parametrize(
    ("header", "host"),
    [("a:1", "a"), ("a", "a"), ("[::1]:1", "::1"), ("[::1]", "::1"), ("", ""), ("[", "")],
)
def test_a_host_header_is_taken_apart(header: str, host: str):
    assert host_of(header) == host


async def test_with_a_key_every_address_may_be_served():
    gateway = Gateway(settings=GatewaySettings(api_keys=("key",)))
    url: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async with asyncio.TaskGroup() as tasks:
        server = tasks.create_task(
            serve_gateway(
                gateway.app, gateway.settings, host="0.0.0.0", port=0, started=url.set_result
            )
        )
        told = await url
        server.cancel()

    assert told.startswith("http://0.0.0.0:")


async def test_a_taken_port_is_a_clear_error():
    gateway = Gateway()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        with pytest.raises(AddressInUse, match=str(port)):
            await serve_gateway(
                gateway.app, gateway.settings, host="127.0.0.1", port=port, started=print
            )


async def test_cancelling_ends_in_cancelled_and_closes_the_socket():
    gateway = Gateway()
    url: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async with httpx2.AsyncClient() as client:
        async with asyncio.TaskGroup() as tasks:
            serving = tasks.create_task(
                serve_gateway(
                    gateway.app, gateway.settings, host="127.0.0.1", port=0, started=url.set_result
                )
            )
            before = await client.get(f"{await url}/health")
            serving.cancel()

        assert before.status_code == 200
        assert serving.cancelled()
        with pytest.raises(httpx2.ConnectError):
            await client.get(f"{url.result()}/health")


async def test_a_request_head_without_end_is_cut_off():
    """httptools would collect one header line until memory ends."""
    gateway = Gateway()
    async with gateway.served() as url:
        answer = await spoken(url, b"GET /health HTTP/1.1\r\nX-A: ", *[b"a" * 1024] * 300)
        after = await spoken(url, b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")

    assert answer is None or (answer.status, answer.closed) == (431, True)
    assert after is not None
    assert after.status == 200
