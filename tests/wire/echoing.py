"""A node that answers with what it was sent, and loopback servers, for the tests of the wire."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from meshnet.core.protocol.limits import Limits
from meshnet.core.protocol.messages import (
    ActivationReply,
    Code,
    ForwardRequest,
    Mode,
    Refusal,
    Reply,
    Reserved,
    ReserveRequest,
    TokenReply,
)
from meshnet.core.vocabulary import (
    HIDDEN,
    WIRE_VERSION,
    Activation,
    Drawn,
    DType,
    LayerRange,
    ModelId,
    NodeDescription,
    NodeId,
    SampledToken,
    SessionDescription,
    SessionId,
    TensorSpec,
)
from meshnet.wire.http_server import node_app
from meshnet.wire.service import Service
from meshnet.wire.serving import bind, serve_socket
from meshnet.wire.stream_peers import NOBODY, Peers
from meshnet.wire.tls import MeshTls

LIMITS = Limits(body_bytes=4 * 2**20, json_bytes=4096, meta_bytes=64 * 1024, positions=10_000)
NODE = NodeId("echo")
TAIL = LayerRange(8, 9)


@dataclass
class EchoService:
    """Returns every activation; layers `TAIL` answer the sum of the ids as the next token."""

    ready: bool = True
    seen: list[ForwardRequest] = field(default_factory=list)
    lengths: dict[SessionId, int] = field(default_factory=dict)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    go_on: asyncio.Event | None = None
    pins: Counter[SessionId] = field(default_factory=Counter)

    async def forward(self, request: ForwardRequest) -> Reply:
        self.seen.append(request)
        self.arrived.set()
        if self.go_on is not None:
            await self.go_on.wait()
        if request.model == "bug":
            raise ZeroDivisionError("a bug")
        length = request.past_length + max(len(request.tokens), 1)
        cached = None if request.mode is Mode.STATELESS else length
        if request.session is not None:
            self.lengths[request.session] = length
        if request.layers == TAIL:
            return TokenReply(Drawn((SampledToken(sum(request.tokens)),)), "é", cached)
        if request.activation is None:
            return Refusal(Code.NOT_FOUND, "only activations are echoed")
        return ActivationReply(request.activation, cached, compute_us=5)

    async def reserve(self, request: ReserveRequest) -> Reserved | Refusal:
        if request.tokens > 1000:
            return Refusal(Code.NO_ROOM, "room for 1000", retry_after_s=0.5)
        return Reserved(request.session, request.tokens)

    def release(
        self, session: SessionId, model: ModelId | None = None, *, linger: bool = False
    ) -> None:
        self.lengths.pop(session, None)

    def pin(self, session: SessionId) -> None:
        self.pins[session] += 1

    def unpin(self, session: SessionId) -> None:
        self.pins[session] -= 1

    def session(self, session: SessionId) -> SessionDescription | None:
        length = self.lengths.get(session)
        if length is None:
            return None
        return SessionDescription(session, LayerRange(0, 8), length, None, None, length * 4)

    def describe(self) -> NodeDescription:
        return NodeDescription(
            node=NODE,
            wire=WIRE_VERSION,
            pid=1,
            ready=self.ready,
            shards=(),
            sessions=len(self.lengths),
            sessions_max=8,
            kv_bytes=0,
            kv_bytes_max=1,
            compute_s=0.5,
            steps=len(self.seen),
        )


def activation(length: int, size: int = 8) -> Activation:
    spec = TensorSpec(HIDDEN, DType.FP32, (1, length, size))
    return Activation((spec,), bytes(index % 251 for index in range(size)) * (length * 4))


def decode(session: str = "s", past_length: int = 17) -> ForwardRequest:
    return ForwardRequest(
        Mode.DECODE,
        SessionId(session),
        past_length,
        tokens=(42,),
        activation=activation(1),
        wire=WIRE_VERSION,
    )


@asynccontextmanager
async def serving(
    service: Service,
    *,
    token: str | None = None,
    limits: Limits = LIMITS,
    peers: Peers = NOBODY,
    tls: MeshTls | None = None,
) -> AsyncIterator[str]:
    """Serve over loopback HTTP; yields the base URL."""
    app = node_app(service, limits=limits, token=token, metrics=lambda: b"steps 1\n", peers=peers)
    ports: list[int] = []
    ready = asyncio.Event()

    def announce(port: int) -> None:
        ports.append(port)
        ready.set()

    async with asyncio.TaskGroup() as group:
        task = group.create_task(
            serve_socket(
                app, bind("127.0.0.1", 0), token=token, on_ready=announce, limits=limits, tls=tls
            )
        )
        await ready.wait()
        try:
            yield f"{'http' if tls is None else 'https'}://127.0.0.1:{ports[0]}"
        finally:
            task.cancel()


Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def stranger(talk: Talk) -> AsyncIterator[str]:
    """Serve `talk` on loopback, one call a connection; yields the base URL."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await talk(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


def answering(response: bytes) -> Talk:
    """Read one request and answer these bytes."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(length_in(head))
        writer.write(response)
        await writer.drain()

    return talk


def http_answer(status: str, body: bytes = b"", **headers: str) -> bytes:
    said = {"Content-Length": str(len(body)), "Connection": "close"}
    said |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = "".join(f"{name}: {value}\r\n" for name, value in said.items())
    return f"HTTP/1.1 {status}\r\n{lines}\r\n".encode() + body


def length_in(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    return 0


@dataclass(frozen=True)
class RawAnswer:
    status: int
    headers: dict[str, str]
    body: bytes
    closed: bool


async def spoken(url: str, *pieces: bytes, end: bool = False) -> RawAnswer | None:
    """Say raw bytes to a server; None if it closes the connection without an answer."""
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        for piece in pieces:
            writer.write(piece)
        if end:
            writer.write_eof()
        return await _heard(reader)
    finally:
        writer.close()


async def _heard(reader: asyncio.StreamReader) -> RawAnswer | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionResetError):
        return None
    first, *lines = head.decode().rstrip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    closed = headers.get("connection") == "close" and await _ended(reader)
    return RawAnswer(int(first.split()[1]), headers, body, closed)


async def _ended(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read() == b""
    except ConnectionResetError:
        return True


def post(headers: dict[str, str], body: bytes, length: int | str | None = None) -> bytes:
    said = {"Content-Length": str(len(body) if length is None else length)} | headers
    lines = "".join(f"{name}: {value}\r\n" for name, value in said.items())
    return f"POST /forward HTTP/1.1\r\nHost: x\r\n{lines}\r\n".encode() + body
