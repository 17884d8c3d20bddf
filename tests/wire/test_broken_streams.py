"""A head's streams to nodes that break, lie or fall silent: every step ends, the next goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from tests.wire.echoing import LIMITS, NODE, EchoService, activation, decode, http_answer, stranger
from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from meshnet.core.protocol.codec import encode_node
from meshnet.core.protocol.frames import SUBPROTOCOL
from meshnet.core.protocol.frames_replies import encode_answer
from meshnet.core.protocol.messages import ActivationReply, Code, Refusal
from meshnet.core.vocabulary import HopLost, SessionId
from meshnet.wire.http_client import HttpHopClient

ANSWER = ActivationReply(activation(1), cached=18)
DESCRIPTION = encode_node(replace(EchoService().describe(), stream=True))

Answering = Callable[[ServerProtocol, bytes], bytes | None]
"""Given the connection and a step's frame: raw bytes to send, or None to close the socket."""


class Lying:
    """A node that says it has streams; what it does on them a test says."""

    def __init__(
        self, answer: Answering, *, subprotocol: str = SUBPROTOCOL, handshake: bytes | None = None
    ) -> None:
        self._answer, self._subprotocol, self._handshake = answer, subprotocol, handshake
        self.handshakes = self.posts = self.deletes = 0

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        conn = ServerProtocol(subprotocols=[Subprotocol(self._subprotocol)])
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"GET /node"):
            writer.write(http_answer("200 OK", DESCRIPTION, Content_Type="application/json"))
            await writer.drain()
            return
        if head.startswith(b"POST"):
            self.posts += 1
            writer.write(http_answer("503 Nothing Here", b""))
            await writer.drain()
            return
        if head.startswith(b"DELETE"):
            self.deletes += 1
            writer.write(http_answer("204 No Content"))
            await writer.drain()
            return
        self.handshakes += 1
        await self._stream(conn, head, reader, writer)

    async def _stream(
        self,
        conn: ServerProtocol,
        data: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        while data:
            conn.receive_data(data)
            for event in conn.events_received():
                if isinstance(event, Request):
                    conn.send_response(conn.accept(event))
                elif isinstance(event, Frame) and event.opcode is Opcode.BINARY:
                    said = self._answer(conn, bytes(event.data))
                    if said is None:
                        return
                    writer.write(said)
            out = b"".join(conn.data_to_send())
            writer.write(out if self._handshake is None else self._handshake)
            await writer.drain()
            data = await reader.read(2**16)


@asynccontextmanager
async def towards(node: Lying) -> AsyncIterator[HttpHopClient]:
    async with stranger(node.talk) as url, HttpHopClient({NODE: url}, limits=LIMITS) as hops:
        await hops.describe(NODE, timeout_s=10)
        yield hops


def sent(frame: Frame) -> bytes:
    return frame.serialize(mask=False)


def answered(number: int) -> bytes:
    return sent(Frame(Opcode.BINARY, encode_answer(number, ANSWER)))


def closed(code: int) -> bytes:
    return sent(Frame(Opcode.CLOSE, code.to_bytes(2, "big")))


BROKEN: dict[str, Answering] = {
    "a closed socket": lambda conn, frame: None,
    "half a frame": lambda conn, frame: (conn.send_eof(), answered(1)[:30])[1],
    "garbage in a frame": lambda conn, frame: sent(Frame(Opcode.BINARY, b"\xff" * 90)),
    "a short frame": lambda conn, frame: sent(Frame(Opcode.BINARY, b"\x03")),
    "an answer to another step": lambda conn, frame: answered(77),
    "the answer twice": lambda conn, frame: answered(77) * 2,
    "text": lambda conn, frame: sent(Frame(Opcode.TEXT, b"hello")),
    "a fragment": lambda conn, frame: sent(Frame(Opcode.BINARY, b"\x03" * 90, fin=False)),
    "a masked frame": lambda conn, frame: Frame(Opcode.BINARY, b"x").serialize(mask=True),
    "no WebSocket": lambda conn, frame: b"\xff" * 64,
    "a close": lambda conn, frame: closed(1012),
    "a frame that is too long": lambda conn, frame: b"\x82\x7f" + (2**40).to_bytes(8, "big"),
}


@pytest.mark.parametrize("answer", BROKEN.values(), ids=BROKEN.keys())
async def test_a_stream_that_breaks_loses_the_step_and_the_next_opens_another(answer: Answering):
    node = Lying(answer)
    async with towards(node) as hops:
        for _ in range(2):
            with pytest.raises(HopLost, match="echo"):
                await hops.forward(NODE, decode(), timeout_s=1)

            assert len(hops._streams) == 0
    assert (node.handshakes, node.posts) == (2, 0)


async def test_a_ping_before_the_answer_is_answered():
    pongs = []

    def answer(conn: ServerProtocol, frame: bytes) -> bytes:
        conn.send_ping(b"still here")
        pongs.append(frame)
        return answered(len(pongs))

    async with towards(Lying(answer)) as hops:
        first = await hops.forward(NODE, decode(), timeout_s=10)
        second = await hops.forward(NODE, decode(), timeout_s=10)

    assert (first, second) == (ANSWER, ANSWER)


async def test_a_close_for_size_is_a_refusal_that_names_it():
    async with towards(Lying(lambda conn, frame: closed(1009))) as hops:
        reply = await hops.forward(NODE, decode(), timeout_s=10)

    assert isinstance(reply, Refusal)
    assert reply.code is Code.TOO_LARGE


REFUSED = {
    "not found": http_answer("404 Not Found", b"{}"),
    "unauthorized": http_answer("401 Unauthorized", b"{}"),
    "elsewhere": http_answer("302 Found", b"", Location="http://127.0.0.1:1/"),
    "no status": b"garbage\r\n\r\n",
    "no accept": b"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
}


@pytest.mark.parametrize("handshake", REFUSED.values(), ids=REFUSED.keys())
async def test_where_no_stream_can_be_opened_the_step_goes_by_post(handshake: bytes):
    node = Lying(lambda conn, frame: None, handshake=handshake)
    async with towards(node) as hops:
        reply = await hops.forward(NODE, decode(), timeout_s=10)

    assert isinstance(reply, Refusal)
    assert (reply.code, node.handshakes, node.posts) == (Code.NOT_READY, 1, 1)


async def test_a_node_that_refused_a_stream_is_left_in_peace_for_a_while():
    node = Lying(lambda conn, frame: None, handshake=http_answer("404 Not Found", b"{}"))
    async with towards(node) as hops:
        for _ in range(3):
            await hops.forward(NODE, decode(), timeout_s=10)

    assert (node.handshakes, node.posts) == (1, 3)


async def test_another_layout_of_frames_is_no_stream():
    node = Lying(lambda conn, frame: None, subprotocol="meshnet.999")
    async with towards(node) as hops:
        await hops.forward(NODE, decode(), timeout_s=10)

    assert node.posts == 1


async def test_a_handshake_that_is_never_answered_costs_its_time_and_no_more():
    node = Lying(lambda conn, frame: None, handshake=b"")
    async with towards(node) as hops:
        with pytest.raises(HopLost, match="no stream within"):
            await hops.forward(NODE, decode(), timeout_s=0.2)

        assert len(hops._streams) == 0


async def test_a_node_that_is_gone_is_a_lost_hop():
    async with stranger(Lying(lambda conn, frame: None).talk) as url:
        hops = HttpHopClient({NODE: url}, limits=LIMITS)
        await hops.describe(NODE, timeout_s=10)
    async with hops:
        with pytest.raises(HopLost, match="echo"):
            await hops.forward(NODE, decode(), timeout_s=10)


async def test_a_release_that_the_node_did_not_read_goes_by_request():
    frames = []

    def answer(conn: ServerProtocol, frame: bytes) -> bytes | None:
        frames.append(frame)
        return answered(1) if len(frames) == 1 else None

    node = Lying(answer)
    async with towards(node) as hops:
        await hops.forward(NODE, decode(), timeout_s=10)
        await hops.release(NODE, SessionId("s"), timeout_s=10)

    assert (len(frames), node.deletes) == (2, 1)
