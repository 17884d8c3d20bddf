"""Hops over HTTP/1.1 and session streams: every call bounded in time and bytes.

A step goes by the stream of its session where the node has streams (stream_pool.py), else as a
request over a pooled keep-alive connection, which also carries everything that is not a step.

Whatever a network or a stranger can do to a call ends in HopLost with the node and the cause.
No redirect is followed, no proxy of the environment used, no answer decompressed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType

import aiohttp
from yarl import URL

from meshnet.core.protocol import codec
from meshnet.core.protocol.fields import print_object
from meshnet.core.protocol.frames import Ending
from meshnet.core.protocol.headers import LINGER
from meshnet.core.protocol.limits import Limits
from meshnet.core.protocol.messages import (
    Code,
    ForwardRequest,
    Refusal,
    Reply,
    Reserved,
    ReserveRequest,
)
from meshnet.core.protocol.moving import (
    LayerReply,
    LayerRequest,
    TakeRequest,
    decode_layer,
    decode_taken,
    encode_layer_request,
    encode_take,
)
from meshnet.core.vocabulary import (
    BadField,
    Buffer,
    HopLost,
    NodeDescription,
    NodeId,
    SessionDescription,
    SessionId,
)
from meshnet.wire.stream_chain import Chains
from meshnet.wire.stream_client import SessionStream
from meshnet.wire.stream_pool import StreamPool
from meshnet.wire.tls import MeshTls, dialled_with, told

CONNECTIONS_MAX = 1024
KEEP_ALIVE_S = 300.0
"""Shorter than the server's, so that the client is the one to close an idle connection."""
CHUNK_BYTES = 256 * 1024
JSON_HEADERS = {"Content-Type": "application/json"}
OCTETS_HEADERS = {"Content-Type": "application/octet-stream"}

Answer = tuple[int, list[tuple[str, str]], Buffer]


class AnswerTooLarge(Exception):
    """An answer over the limit; the rest of it is not read."""


class HttpHopClient:
    """The head's way to its nodes. Opens on the first call; `aclose` closes every connection."""

    def __init__(
        self,
        urls: Mapping[NodeId, str],
        *,
        limits: Limits,
        token: str | None = None,
        tls: MeshTls | None = None,
    ) -> None:
        """`urls` maps node ids to base URLs and is read at every call, so it may grow."""
        self._urls = urls
        self._limits, self._tls = limits, tls
        self._authorization = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._streams = StreamPool(urls, self._authorization, limits, tls=tls)
        self._chains = Chains(self._streams)
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    async def __aenter__(self) -> HttpHopClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close all connections; calls still out end in HopLost, and so does every later one."""
        self._closed = True
        self._streams.close()
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def forward(self, node: NodeId, request: ForwardRequest, timeout_s: float) -> Reply:
        """Raises HopLost."""
        stream = self._streams.held(node, request)
        if stream is None and self._streams.wanted(node, request):
            loop = asyncio.get_running_loop()
            began = loop.time()
            stream = await self._opened(node, request, timeout_s)
            timeout_s -= loop.time() - began
        if stream is None:
            return await self._post(node, request, timeout_s)
        try:
            reply = await stream.ask(request, timeout_s)
        except HopLost as lost:
            raise HopLost(f"{node}: {lost}") from None
        if isinstance(reply, Refusal) and reply.code is Code.NO_ROOM:
            # Who waits for room keeps none elsewhere: two that wait for each other would for ever.
            self._streams.drop(stream.opening.session)
        return reply

    async def chain(
        self, nodes: Sequence[NodeId], request: ForwardRequest, timeout_s: float
    ) -> tuple[NodeId | None, Reply | HopLost]:
        """Send a step that nodes hand on. Raises nothing."""
        return await self._chains.ask(nodes, request, timeout_s)

    async def _opened(
        self, node: NodeId, request: ForwardRequest, timeout_s: float
    ) -> SessionStream | None:
        try:
            async with asyncio.timeout(timeout_s):
                return await self._streams.opened(node, request)
        except TimeoutError:
            raise HopLost(f"{node}: no stream within {timeout_s:g} s") from None

    async def _post(self, node: NodeId, request: ForwardRequest, timeout_s: float) -> Reply:
        headers, parts = codec.encode_request(request)
        answer = await self._call(
            "POST", node, "/forward", headers | OCTETS_HEADERS, parts, timeout_s
        )
        try:
            return codec.decode_reply(*answer, request, self._limits)
        except HopLost as error:
            raise HopLost(f"{node}: {error}") from None

    async def reserve(
        self, node: NodeId, request: ReserveRequest, timeout_s: float
    ) -> Reserved | Refusal:
        """A node that does not know reservations grants them. Raises HopLost."""
        parts: list[Buffer] = [codec.encode_reserve(request)]
        path = f"/sessions/{request.session}"
        answer = await self._call("PUT", node, path, JSON_HEADERS, parts, timeout_s)
        try:
            return codec.decode_reserve_reply(*answer, request, self._limits)
        except HopLost as error:
            raise HopLost(f"{node}: {error}") from None

    async def session(
        self, node: NodeId, session: SessionId, timeout_s: float
    ) -> SessionDescription | None:
        """Ask what a node holds of a session. Raises HopLost."""
        path = f"/sessions/{session}"
        status, _, body = await self._call("GET", node, path, {}, [], timeout_s)
        if status == 404:
            return None
        if status != 200:
            raise HopLost(f"{node}: HTTP {status} for a session: {bytes(body[:200])!r}")
        try:
            return codec.decode_session(body, self._limits)
        except BadField as error:
            raise HopLost(f"{node}: unreadable description of a session: {error}") from None

    async def release(
        self, node: NodeId, session: SessionId, timeout_s: float, *, linger: bool = False
    ) -> None:
        """Hint that the session is over; any answer will do. Raises HopLost."""
        try:
            async with asyncio.timeout(timeout_s):
                ending = Ending.LINGERS if linger else Ending.RELEASED
                if await self._streams.release(node, session, ending):
                    return
        except (TimeoutError, HopLost):
            pass  # the stream is over now: say it by a request
        fields = {LINGER: "1"} if linger else {}
        await self._call("DELETE", node, f"/sessions/{session}", fields, [], timeout_s)

    async def take(
        self, node: NodeId, request: TakeRequest, timeout_s: float
    ) -> SessionDescription | Refusal:
        """Tell `node` to take a session over, and wait until it has. Raises HopLost."""
        path = f"/sessions/{request.session}/take"
        answer = await self._call(
            "POST", node, path, JSON_HEADERS, [encode_take(request)], timeout_s
        )
        try:
            return decode_taken(*answer, self._limits)
        except HopLost as error:
            raise HopLost(f"{node}: {error}") from None

    async def layer(
        self, node: NodeId, request: LayerRequest, timeout_s: float, *, bytes_max: int
    ) -> LayerReply | Refusal:
        """Fetch one layer of a session, of at most `bytes_max` bytes. Raises HopLost."""
        path = f"/sessions/{request.session}/layers/{request.layer}"
        limit = min(bytes_max + self._limits.json_bytes, self._limits.body_bytes)
        answer = await self._call(
            "GET", node, path, encode_layer_request(request), [], timeout_s, limit=limit
        )
        try:
            return decode_layer(*answer, self._limits)
        except HopLost as error:
            raise HopLost(f"{node}: {error}") from None

    async def drain(self, node: NodeId, timeout_s: float, *, undo: bool = False) -> NodeDescription:
        """Ask `node` to take no new sessions, or again. Raises HopLost."""
        parts: list[Buffer] = [print_object({"undo": undo})]
        status, _, body = await self._call("POST", node, "/drain", JSON_HEADERS, parts, timeout_s)
        return self._described(node, status, body)

    async def describe(self, node: NodeId, timeout_s: float) -> NodeDescription:
        """Raises HopLost, also if the node will not tell."""
        status, _, body = await self._call("GET", node, "/node", {}, [], timeout_s)
        description = self._described(node, status, body)
        self._streams.learn(node, description)
        return description

    def _described(self, node: NodeId, status: int, body: Buffer) -> NodeDescription:
        if status != 200:
            raise HopLost(f"{node}: HTTP {status} for its description: {bytes(body[:200])!r}")
        try:
            return codec.decode_node(body, self._limits)
        except BadField as error:
            raise HopLost(f"{node}: unreadable description: {error}") from None

    async def _call(
        self,
        method: str,
        node: NodeId,
        path: str,
        headers: dict[str, str],
        parts: Sequence[Buffer],
        timeout_s: float,
        *,
        limit: int | None = None,
    ) -> Answer:
        base = self._urls.get(node)
        if base is None:
            raise HopLost(f"{node}: no address known")
        if self._closed:
            raise HopLost(f"{node}: this client is closed")
        try:
            async with asyncio.timeout(timeout_s):
                url = URL(base.rstrip("/") + path)
                return await self._exchange(
                    method, url, headers, parts, limit or self._limits.body_bytes
                )
        except TimeoutError:
            raise HopLost(f"{node}: no answer within {timeout_s:g} s") from None
        except (aiohttp.ClientError, AnswerTooLarge, OSError, ValueError) as error:
            raise HopLost(f"{node}: {told(error, self._tls)}") from None

    async def _exchange(
        self,
        method: str,
        url: URL,
        headers: dict[str, str],
        parts: Sequence[Buffer],
        limit: int,
    ) -> Answer:
        length = sum(map(len, parts))
        if parts:
            headers = headers | {"Content-Length": str(length)}
        data = b"".join(parts) if length <= CHUNK_BYTES else _chunks(parts)
        async with self._open().request(
            method,
            url,
            headers=headers,
            data=data if parts else None,
            allow_redirects=False,
            ssl=dialled_with(self._tls, url),
        ) as response:
            body = await self._read(response, limit)
            return response.status, list(response.headers.items()), body

    async def _read(self, response: aiohttp.ClientResponse, limit: int) -> Buffer:
        length = response.content_length
        if length is not None:
            if length > limit:
                response.close()
                raise AnswerTooLarge(f"an answer of {length} bytes is over the limit of {limit}")
            return await response.read()
        body = bytearray()
        async for chunk in response.content.iter_any():
            body += chunk
            if len(body) > limit:
                response.close()
                raise AnswerTooLarge(f"an answer without length is over the limit of {limit} bytes")
        return body

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=CONNECTIONS_MAX, keepalive_timeout=KEEP_ALIVE_S)
            self._session = aiohttp.ClientSession(
                connector=connector,
                timeout=aiohttp.ClientTimeout(total=None),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trust_env=False,
                headers=self._authorization,
                skip_auto_headers=("User-Agent", "Accept-Encoding"),
            )
        return self._session


async def _chunks(parts: Sequence[Buffer]) -> AsyncIterator[Buffer]:
    """Cut large parts without copying, so that the event loop breathes between the writes."""
    for part in parts:
        view = memoryview(part)
        for start in range(0, len(view), CHUNK_BYTES):
            yield view[start : start + CHUNK_BYTES]
