"""A node's streams and peers that say too much, too little, the wrong thing, or never read.

The peer is aiohttp's WebSocket client: another implementation than either end of ours.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import WSMsgType
from tests.core.protocol.test_frames import mutated
from tests.wire.echoing import LIMITS, EchoService, decode, serving
from tests.wire.skipping import skipping
from tests.wire.test_streams import ANSWER, Streaming

from meshnet.core.protocol.frames import (
    SUBPROTOCOL,
    encode_release,
    encode_step,
    frame_bytes_max,
    number_of,
)
from meshnet.core.protocol.frames_replies import decode_answer
from meshnet.core.protocol.messages import Code, Refusal
from meshnet.core.vocabulary import SessionId

S, IDLE_S = SessionId("s"), 5.0
STEP = encode_step(7, decode())


@asynccontextmanager
async def peer(
    url: str, path: str = "/sessions/s/stream", **options: Any
) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    options = {"protocols": (SUBPROTOCOL,), "autoping": False, "headers": {}} | options
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(url + path, **options) as stream,
    ):
        yield stream


async def received(stream: aiohttp.ClientWebSocketResponse) -> aiohttp.WSMessage:
    async with asyncio.timeout(20):
        return await stream.receive()


async def serves(url: str) -> bool:
    """Whether the node still answers a step, on a stream of its own."""
    async with peer(url, "/sessions/other/stream") as stream:
        await stream.send_bytes(STEP)
        answer = await received(stream)
        return decode_answer(answer.data, decode("other"), LIMITS) == ANSWER


async def test_another_implementation_can_speak_with_a_node():
    async with serving(EchoService()) as url, peer(url) as stream:
        await stream.send_bytes(STEP)
        message = await received(stream)

    assert stream.protocol == SUBPROTOCOL
    assert (number_of(message.data), decode_answer(message.data, decode(), LIMITS)) == (7, ANSWER)


async def test_nothing_is_compressed():
    async with serving(EchoService()) as url, peer(url, compress=15) as stream:
        assert stream.compress == 0


HANDSHAKES = {
    "no token": ({}, "/sessions/s/stream", (SUBPROTOCOL,), 401),
    "a wrong token": ({"Authorization": "Bearer x"}, "/sessions/s/stream", (SUBPROTOCOL,), 401),
    "another path": ({"Authorization": "Bearer secret"}, "/forward", (SUBPROTOCOL,), 404),
    "no layout": ({"Authorization": "Bearer secret"}, "/sessions/s/stream", (), 400),
    "another layout": ({"Authorization": "Bearer secret"}, "/sessions/s/stream", ("x",), 400),
    "no session": ({"Authorization": "Bearer secret"}, "/sessions//stream", (SUBPROTOCOL,), 400),
    "a bad field": (
        {"Authorization": "Bearer secret", "X-Meshnet-Wire": "-1"},
        "/sessions/s/stream",
        (SUBPROTOCOL,),
        400,
    ),
}


@pytest.mark.parametrize(
    ("headers", "path", "protocols", "status"), HANDSHAKES.values(), ids=HANDSHAKES.keys()
)
async def test_a_handshake_that_is_wrong_is_answered_with_its_status(
    headers: dict[str, str],
    path: str,
    protocols: tuple[str, ...],
    status: int,
    caplog: pytest.LogCaptureFixture,
):
    service = Streaming()
    async with serving(service, token="secret") as url:
        with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
            async with peer(url, path, headers=headers, protocols=protocols):
                pass

    assert (caught.value.status, service.pins.total()) == (status, 0)
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_a_node_that_is_not_ready_opens_no_stream():
    async with serving(EchoService(ready=False)) as url:
        with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
            async with peer(url):
                pass

    assert caught.value.status == 503


async def test_more_streams_than_a_node_has_are_turned_away_and_requests_still_served(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("meshnet.wire.stream_server.STREAMS_MAX", 3)
    service = Streaming()
    statuses = []
    async with serving(service) as url, aiohttp.ClientSession() as session:
        streams = [
            await session.ws_connect(f"{url}/sessions/s{index}/stream", protocols=[SUBPROTOCOL])
            for index in range(3)
        ]
        for _ in range(20):
            with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
                await session.ws_connect(f"{url}/sessions/t/stream", protocols=[SUBPROTOCOL])
            statuses.append(caught.value.status)
        async with session.get(f"{url}/ready") as response:
            ready = response.status
        service.unpinned.clear()
        await streams[0].close()
        async with asyncio.timeout(20):
            await service.unpinned.wait()

        assert await serves(url)
    assert (set(statuses), ready) == ({429}, 200)


CLOSES = {
    "text": ("text", 1003),
    "a frame without a number": (b"\x01\x02", 1007),
}


@pytest.mark.parametrize(("said", "code"), CLOSES.values(), ids=CLOSES.keys())
async def test_what_no_step_can_be_read_from_ends_the_stream(said: str | bytes, code: int):
    service = Streaming()
    async with serving(service) as url:
        async with peer(url) as stream:
            if isinstance(said, str):
                await stream.send_str(said)
            else:
                await stream.send_bytes(said)
            message = await received(stream)

        assert (message.type, message.data) == (WSMsgType.CLOSE, code)
        assert await serves(url)
    assert service.pins[S] == 0


async def test_a_step_that_cannot_be_read_is_refused_by_its_number_and_the_stream_goes_on():
    broken = STEP[:40] + b"\xff" * 8 + STEP[48:]
    async with serving(EchoService()) as url, peer(url) as stream:
        await stream.send_bytes(broken)
        refusal = await received(stream)
        await stream.send_bytes(STEP)
        answer = await received(stream)

    read = decode_answer(refusal.data, decode(), LIMITS)
    assert isinstance(read, Refusal)
    assert (number_of(refusal.data), read.code) == (7, Code.BAD_REQUEST)
    assert decode_answer(answer.data, decode(), LIMITS) == ANSWER


async def test_a_frame_a_little_over_the_limit_is_refused_and_the_stream_goes_on():
    long = STEP + bytes(frame_bytes_max(LIMITS))
    async with serving(EchoService()) as url, peer(url) as stream:
        await stream.send_bytes(long)
        refusal = decode_answer((await received(stream)).data, decode(), LIMITS)
        await stream.send_bytes(STEP)
        answer = decode_answer((await received(stream)).data, decode(), LIMITS)

    assert isinstance(refusal, Refusal)
    assert (refusal.code, answer) == (Code.TOO_LARGE, ANSWER)


async def test_a_frame_far_over_the_limit_ends_the_stream_before_it_is_read():
    async with serving(EchoService()) as url:
        async with raw_stream(url) as (reader, writer):
            writer.write(b"\x82\xff" + (2**40).to_bytes(8, "big") + bytes(4))

            assert await close_code(reader) == 1009
        assert await serves(url)


async def test_hundreds_of_hostile_frames_leave_the_node_healthy():
    rng = random.Random(5)
    ends = {WSMsgType.CLOSE, WSMsgType.CLOSED, WSMsgType.CLOSING, WSMsgType.ERROR}
    service = Streaming()
    sent = 0
    async with serving(service) as url:
        while sent < 400:
            async with peer(url) as stream:
                message_type = WSMsgType.BINARY
                while sent < 400 and message_type not in ends:
                    await stream.send_bytes(mutated(STEP, rng))
                    sent += 1
                    message_type = (await received(stream)).type

        assert await serves(url)
    assert service.pins.total() == 0


OPENING = (
    b"GET /sessions/s/stream HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\n"
    b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    b"Sec-WebSocket-Protocol: meshnet.1\r\n\r\n"
)


@asynccontextmanager
async def raw_stream(url: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(OPENING)
    await reader.readuntil(b"\r\n\r\n")
    try:
        yield reader, writer
    finally:
        writer.close()


async def close_code(reader: asyncio.StreamReader) -> int:
    """Return what a short close frame says, the last thing that the node says."""
    async with asyncio.timeout(20):
        said = await reader.read()
    assert said[:2] == b"\x88" + bytes([len(said) - 2])
    return int.from_bytes(said[2:4], "big")


async def test_endless_pieces_of_one_message_end_the_stream():
    async with serving(EchoService()) as url:
        async with raw_stream(url) as (reader, writer):
            writer.write(b"\x02\x80\0\0\0\0" + b"\x00\x80\0\0\0\0" * 2000)

            assert await close_code(reader) == 1009
        assert await serves(url)


async def test_a_ping_is_answered_while_a_step_runs():
    service = Streaming(go_on=asyncio.Event())
    async with serving(service) as url, peer(url) as stream:
        await stream.send_bytes(STEP)
        async with asyncio.timeout(20):
            await service.arrived.wait()
        await stream.ping(b"there?")
        pong = await received(stream)
        assert service.go_on is not None
        service.go_on.set()
        answer = await received(stream)

    assert (pong.type, bytes(pong.data)) == (WSMsgType.PONG, b"there?")
    assert decode_answer(answer.data, decode(), LIMITS) == ANSWER


async def test_a_stream_that_nobody_uses_is_closed_and_its_session_unpinned(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("meshnet.wire.stream_bounds.IDLE_S", IDLE_S)
    service, skip = Streaming(), skipping()
    async with serving(service) as url, peer(url) as stream:
        await stream.send_bytes(STEP)
        answer = await received(stream)
        skip(IDLE_S)
        end = await received(stream)
        async with asyncio.timeout(20):
            await service.unpinned.wait()

    assert (answer.type, end.type) == (WSMsgType.BINARY, WSMsgType.CLOSE)
    assert (service.pins[S], service.lengths) == (0, {S: 18})


async def test_a_stream_whose_step_runs_is_in_use_however_long_it_takes(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("meshnet.wire.stream_bounds.IDLE_S", IDLE_S)
    service, skip = Streaming(go_on=asyncio.Event()), skipping()
    async with serving(service) as url, peer(url) as stream:
        await stream.send_bytes(STEP)
        async with asyncio.timeout(20):
            await service.arrived.wait()
        ends = []
        for _ in range(2):  # each of them idle for the time, one after the other
            async with peer(url, "/sessions/t/stream") as idle:
                skip(IDLE_S)
                ends.append((await received(idle)).type)
        assert service.go_on is not None
        service.go_on.set()
        answer = await received(stream)

    assert ends == [WSMsgType.CLOSE] * 2
    assert decode_answer(answer.data, decode(), LIMITS) == ANSWER


async def test_a_peer_that_goes_with_a_step_running_unpins_its_session():
    service = Streaming(go_on=asyncio.Event())
    async with serving(service) as url:
        async with peer(url) as stream:
            await stream.send_bytes(STEP)
            async with asyncio.timeout(20):
                await service.arrived.wait()
            pinned = service.pins[S]
        assert service.go_on is not None
        service.go_on.set()
        async with asyncio.timeout(20):
            await service.unpinned.wait()

    assert (pinned, service.pins[S]) == (1, 0)
    assert service.lengths == {S: 18}


async def test_a_release_frame_is_the_end_of_the_session_and_of_the_stream():
    service = Streaming()
    async with serving(service) as url, peer(url) as stream:
        await stream.send_bytes(STEP)
        await received(stream)
        await stream.send_bytes(encode_release())
        end = await received(stream)

    assert (end.type, end.data, service.lengths) == (WSMsgType.CLOSE, 1000, {})
