"""Hops over real loopback HTTP: our nodes, old nodes, strangers and silence."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace

import pytest
from tests.wire.echoing import (
    LIMITS,
    NODE,
    TAIL,
    EchoService,
    activation,
    answering,
    decode,
    http_answer,
    length_in,
    serving,
    stranger,
)

from meshnet import __version__
from meshnet.core.protocol.messages import (
    ActivationReply,
    Code,
    ForwardRequest,
    Mode,
    Refusal,
    Reserved,
    ReserveRequest,
    TokenReply,
)
from meshnet.core.vocabulary import (
    HIDDEN,
    Activation,
    Drawn,
    DType,
    HopLost,
    NodeId,
    SampledToken,
    SessionId,
    TensorSpec,
)
from meshnet.wire.http_client import HttpHopClient

S = SessionId("s")


def client(url: str, token: str | None = None) -> HttpHopClient:
    return HttpHopClient({NODE: url}, limits=LIMITS, token=token)


async def test_a_step_reaches_the_node_as_it_was_asked_and_comes_back():
    service = EchoService()
    async with serving(service) as url, client(url) as hops:
        reply = await hops.forward(NODE, decode(), timeout_s=10)

    assert service.seen == [decode()]
    assert reply == ActivationReply(activation(1), cached=18, compute_us=5)


async def test_a_large_prefill_travels_whole():
    body = activation(length=3000, size=64)
    request = ForwardRequest(
        Mode.PREFILL, S, tokens=tuple(range(3000)), activation=body, want_token=False
    )
    async with serving(EchoService()) as url, client(url) as hops:
        reply = await hops.forward(NODE, request, timeout_s=30)

    assert reply == ActivationReply(body, cached=3000, compute_us=5)


async def test_the_tail_answers_a_token():
    request = ForwardRequest(Mode.STATELESS, layers=TAIL, tokens=(1, 2, 3))
    async with serving(EchoService()) as url, client(url) as hops:
        reply = await hops.forward(NODE, request, timeout_s=10)

    assert reply == TokenReply(Drawn((SampledToken(6),)), "é", cached=None)


async def test_a_body_over_the_nodes_limit_comes_back_as_a_refusal():
    """Pit A111."""
    request = ForwardRequest(Mode.STATELESS, activation=activation(length=20_000, size=64))
    async with serving(EchoService()) as url, client(url) as hops:
        reply = await hops.forward(NODE, request, timeout_s=30)

    assert isinstance(reply, Refusal)
    assert (reply.code, "4194304 bytes" in reply.message) == (Code.TOO_LARGE, True)


async def test_sessions_are_reserved_refused_and_released():
    service = EchoService()
    async with serving(service) as url, client(url) as hops:
        granted = await hops.reserve(NODE, ReserveRequest(S, 700), timeout_s=10)
        refused = await hops.reserve(NODE, ReserveRequest(S, 1001), timeout_s=10)
        await hops.forward(NODE, decode(), timeout_s=10)
        held = dict(service.lengths)
        await hops.release(NODE, S, timeout_s=10)

    assert granted == Reserved(S, 700)
    assert refused == Refusal(Code.NO_ROOM, "room for 1000", retry_after_s=0.5)
    assert (held, service.lengths) == ({S: 18}, {})


async def test_a_node_describes_itself():
    service = EchoService()
    async with serving(service) as url, client(url) as hops:
        description = await hops.describe(NODE, timeout_s=10)

    assert description == replace(service.describe(), stream=True, chain=True, version=__version__)


async def test_the_token_opens_the_node_and_its_lack_is_a_refusal():
    async with serving(EchoService(), token="secret") as url:
        async with client(url, token="secret") as hops:
            opened = await hops.forward(NODE, decode(), timeout_s=10)
        async with client(url) as hops:
            refused = await hops.forward(NODE, decode(), timeout_s=10)
            with pytest.raises(HopLost, match="401"):
                await hops.describe(NODE, timeout_s=10)

    assert isinstance(opened, ActivationReply)
    assert isinstance(refused, Refusal)
    assert refused.code is Code.UNAUTHORIZED


async def test_one_connection_serves_all_calls():
    connections = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        while head := await reader.readuntil(b"\r\n\r\n"):
            await reader.readexactly(length_in(head))
            writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n{"text": "a"}')

    async with stranger(_until_closed(talk)) as url, client(url) as hops:
        replies = [await hops.forward(NODE, decode(), timeout_s=10) for _ in range(3)]

    assert replies == [TokenReply(None, "a", None)] * 3
    assert len(connections) == 1


def _until_closed(talk):
    async def bounded(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await talk(reader, writer)
        except asyncio.IncompleteReadError:
            return

    return bounded


async def test_an_old_middle_node_answers_bytes_without_description():
    body = bytes(range(64))
    async with stranger(answering(http_answer("200 OK", body))) as url, client(url) as hops:
        reply = await hops.forward(NODE, decode(), timeout_s=10)

    spec = TensorSpec(HIDDEN, DType.FP32, (1, 1, 16))
    assert reply == ActivationReply(Activation((spec,), body), cached=None)


async def test_an_old_node_that_cannot_reserve_grants_everything():
    answer = http_answer("501 Unsupported method ('PUT')", b"<html>", Content_Type="text/html")
    async with stranger(answering(answer)) as url, client(url) as hops:
        granted = await hops.reserve(NODE, ReserveRequest(S, 700), timeout_s=10)

    assert granted == Reserved(S, 700)


async def test_a_release_takes_any_answer():
    async with (
        stranger(answering(http_answer("405 Method Not Allowed"))) as url,
        client(url) as hops,
    ):
        await hops.release(NODE, S, timeout_s=10)


LOSING = {
    "a proxy's conflict": http_answer("409 Conflict", b'{"error": "conflict"}'),
    "a bad gateway": http_answer("502 Bad Gateway", b"<html>"),
    "a redirect": http_answer("302 Found", Location="http://127.0.0.1:1/forward"),
    "half a body": http_answer("200 OK", b"1234", Content_Length="32"),
    "half a head": b"HTTP/1.1 200 OK\r\nContent-Le",
    "nothing": b"",
    "no http": b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
    "a huge answer": http_answer("200 OK", b"", Content_Length=str(10 * 2**30)),
    "a huge header": b"HTTP/1.1 200 OK\r\nX-A: " + b"a" * 100_000 + b"\r\n\r\n",
    "an answer of another shape": http_answer(
        "200 OK", bytes(32), X_Meshnet_Shape="1,2,8", X_Meshnet_Dtype="fp16"
    ),
    "broken chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "a negative length": b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
}


@pytest.mark.parametrize("kind", list(LOSING))
async def test_an_answer_that_is_none_is_a_lost_hop_that_names_the_node(kind):
    async with stranger(answering(LOSING[kind])) as url, client(url) as hops:
        with pytest.raises(HopLost, match=r"^echo: "):
            await hops.forward(NODE, decode(), timeout_s=10)


async def test_an_answer_that_announces_more_than_the_limit_is_not_read():
    answer = http_answer("200 OK", b"", Content_Length=str(10 * 2**30))
    async with stranger(answering(answer)) as url, client(url) as hops:
        with pytest.raises(HopLost, match="over the limit"):
            await hops.forward(NODE, decode(), timeout_s=10)


async def test_a_redirect_is_not_followed_even_to_a_node():
    service = EchoService()
    async with serving(service) as target:
        moved = http_answer("307 Temporary Redirect", Location=f"{target}/forward")
        async with stranger(answering(moved)) as url, client(url) as hops:
            with pytest.raises(HopLost, match="307"):
                await hops.forward(NODE, decode(), timeout_s=10)

    assert service.seen == []


async def test_an_endless_answer_is_cut_at_the_limit():
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        try:
            while True:
                writer.write(b"100000\r\n" + bytes(2**20) + b"\r\n")
                await writer.drain()
        except ConnectionError:
            return

    async with stranger(talk) as url, client(url) as hops:
        with pytest.raises(HopLost, match=r"^echo: .*limit"):
            await hops.forward(NODE, decode(), timeout_s=30)


async def test_silence_is_a_lost_hop_when_the_time_is_over():
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with stranger(_draining(talk)) as url, client(url) as hops:
        with pytest.raises(HopLost, match=r"echo: no answer within 0\.05 s"):
            await hops.forward(NODE, decode(), timeout_s=0.05)


def _draining(talk):
    async def drained(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await talk(reader, writer)
        except ConnectionResetError:
            return

    return drained


async def test_a_node_that_is_not_there_is_a_lost_hop():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

    async with client(f"http://127.0.0.1:{port}") as hops:
        for call in (
            hops.forward(NODE, decode(), timeout_s=10),
            hops.reserve(NODE, ReserveRequest(S, 1), timeout_s=10),
            hops.release(NODE, S, timeout_s=10),
            hops.describe(NODE, timeout_s=10),
        ):
            with pytest.raises(HopLost, match=r"^echo: "):
                await call


async def test_a_node_without_address_or_with_a_broken_one_is_a_lost_hop():
    async with client("not a url") as hops:
        with pytest.raises(HopLost, match="no address"):
            await hops.forward(NodeId("other"), decode(), timeout_s=10)
        with pytest.raises(HopLost, match=r"^echo: "):
            await hops.forward(NODE, decode(), timeout_s=10)


async def test_a_closed_client_calls_nobody():
    hops = client("http://127.0.0.1:9")
    await hops.aclose()

    with pytest.raises(HopLost, match="closed"):
        await hops.forward(NODE, decode(), timeout_s=10)


async def test_closing_ends_a_call_that_is_out():
    service = EchoService(go_on=asyncio.Event())
    assert service.go_on is not None

    async def call(hops: HttpHopClient) -> str:
        with pytest.raises(HopLost) as lost:
            await hops.forward(NODE, decode(), timeout_s=30)
        return str(lost.value)

    async with serving(service) as url, asyncio.TaskGroup() as group:
        hops = client(url)
        waiting = group.create_task(call(hops))
        await service.arrived.wait()
        await hops.aclose()
        service.go_on.set()

    assert waiting.result().startswith("echo: ")


async def test_proxies_of_the_environment_are_not_used(monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")

    async with serving(EchoService()) as url, client(url) as hops:
        reply = await hops.forward(NODE, decode(), timeout_s=10)

    assert isinstance(reply, ActivationReply)


async def test_cancelling_a_call_is_not_a_lost_hop():
    service = EchoService(go_on=asyncio.Event())
    async with serving(service) as url, client(url) as hops:
        async with asyncio.TaskGroup() as group:
            call = group.create_task(hops.forward(NODE, decode(), timeout_s=30))
            await service.arrived.wait()
            call.cancel()
        assert service.go_on is not None
        service.go_on.set()

    assert call.cancelled()
