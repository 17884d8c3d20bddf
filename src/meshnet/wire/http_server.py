"""A node over HTTP: which request goes where, and how much of it is read.

    POST   /forward          one hop of one step
    PUT    /sessions/{id}    reserve     GET  tell     DELETE  release (a hint)
    GET    /sessions/{id}/stream         a WebSocket: stream_server.py
    GET    /sessions/{id}/layers/{n}     one layer of it, for a node that takes it over
    POST   /sessions/{id}/take           take it over from another node
    POST   /drain                        take no new sessions, or again
    POST   /link             read and dropped, to be timed
    GET    /node  /health  /ready  /metrics

Raw ASGI: a step passes here once per token and hop. Invariants
    * nothing of a body is read before its headers and its length have been accepted;
    * a body that does not arrive whole reaches no service;
    * with a token set, only /health answers without it; with none, no web page is answered, whose
      browser is on this machine, too.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from meshnet import __version__
from meshnet.core.protocol import codec
from meshnet.core.protocol.description import PEERS_MAX
from meshnet.core.protocol.fields import print_object, read_object
from meshnet.core.protocol.headers import collect, read_linger, session_id
from meshnet.core.protocol.limits import LINK_BYTES_MAX, Limits
from meshnet.core.protocol.messages import Code, Refusal, Reserved
from meshnet.core.protocol.moving import decode_layer_request, decode_take, encode_layer
from meshnet.core.protocol.refusals import JSON, refusal_of
from meshnet.core.vocabulary import Buffer, MeshnetError, TooLarge
from meshnet.wire.handing import Handing
from meshnet.wire.service import Mover, Service
from meshnet.wire.stream_peers import NOBODY, Peers, PeerStreams
from meshnet.wire.stream_server import Message, Receive, Send, StreamServer

AsgiApp = Callable[[Message, Receive, Send], Awaitable[None]]
Answer = tuple[int, dict[str, str], Sequence[Buffer]]

READ_TIMEOUT_S = 60.0
"""How long a body may take to arrive."""
JOIN_BYTES = 64 * 1024
"""Answers up to this size leave in one write."""
SESSIONS = "/sessions/"
DRAIN = "/drain"
TAKE, LAYERS = "take", "layers/"
"""What may follow a session's id."""
METHODS = {
    "/forward": ("POST",),
    "/link": ("POST",),
    "/node": ("GET",),
    "/health": ("GET",),
    "/ready": ("GET",),
    "/metrics": ("GET",),
    DRAIN: ("POST",),
}
SESSION_METHODS = ("PUT", "GET", "DELETE")
CLOSE = {"Connection": "close"}


class ClientGone(Exception):
    """The client left before its request was whole; there is nobody to answer."""


class ClientSlow(Exception):
    """The body did not arrive within READ_TIMEOUT_S."""


def node_app(
    service: Service,
    *,
    limits: Limits,
    token: str | None,
    metrics: Callable[[], bytes],
    peers: Peers = NOBODY,
    mover: Mover | None = None,
) -> AsgiApp:
    """Return the ASGI application that serves `service`; `metrics` is called per scrape.

    Steps may be handed on to `peers`, and to nobody else. Without a `mover` no session moves.
    """
    return _NodeApp(service, limits, token, metrics, peers, mover)


class _NodeApp:
    def __init__(
        self,
        service: Service,
        limits: Limits,
        token: str | None,
        metrics: Callable[[], bytes],
        peers: Peers,
        mover: Mover | None,
    ) -> None:
        self._service, self._mover = service, mover
        self._peers = peers
        self._limits = limits
        self._authorization = None if token is None else f"Bearer {token}".encode()
        self._metrics = metrics
        handing = Handing(PeerStreams(peers, limits), time.monotonic)
        self._streams = StreamServer(service, limits, self._authorized, handing)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._streams.serve(scope, receive, send)
            return
        if scope["type"] != "http":
            raise NotImplementedError(f"no {scope['type']} at this node")
        try:
            answer = await self._answer(scope, receive)
        except ClientGone:
            return
        except ClientSlow:
            message = f"no whole body within {READ_TIMEOUT_S:g} s"
            answer = _refuse(Refusal(Code.DEADLINE, message), CLOSE)
        except TooLarge as error:
            answer = _refuse(refusal_of(error), self._after_too_large(scope))
        except MeshnetError as error:
            answer = _refuse(refusal_of(error))
        except MemoryError:
            answer = _refuse(Refusal(Code.OUT_OF_MEMORY, "out of memory in this node"))
        except Exception:
            # The process boundary: the peer gets our error form, the server logs the bug.
            await _reply(_refuse(Refusal(Code.INTERNAL, "a bug in this node; see its log")), send)
            raise
        await _reply(answer, send)

    async def _answer(self, scope: Message, receive: Receive) -> Answer:
        path, method = scope["path"], scope["method"]
        if path != "/health" and not self._authorized(scope):
            return _refuse(
                Refusal(Code.UNAUTHORIZED, "expected the mesh token as Bearer, no web page")
            )
        methods = self._methods(path)
        if methods is None:
            return _refuse(Refusal(Code.NOT_FOUND, f"no such path: {path[:200]}"))
        if method not in methods:
            return _method_not_allowed(method, methods)
        if path == "/forward":
            return await self._forward(scope, receive)
        if path == DRAIN:
            return await self._drain(scope, receive)
        if path == "/link":
            await _read_body(receive, _content_length(scope), LINK_BYTES_MAX)
            return 204, {}, []
        if path.startswith(SESSIONS):
            return await self._session(method, path.removeprefix(SESSIONS), scope, receive)
        return self._get(path)

    def _methods(self, path: str) -> Sequence[str] | None:
        """Which methods a path knows; None: there is no such path."""
        if not path.startswith(SESSIONS):
            return None if path == DRAIN and self._mover is None else METHODS.get(path)
        rest = path.removeprefix(SESSIONS).partition("/")[2]
        return self._moves(rest) or SESSION_METHODS

    def _moves(self, rest: str) -> Sequence[str]:
        """Which methods know what follows a session's id; none: it is a part of a wrong id."""
        if self._mover is None:
            return ()
        return ("POST",) if rest == TAKE else ("GET",) if rest.startswith(LAYERS) else ()

    def _after_too_large(self, scope: Message) -> dict[str, str]:
        """Drop a body a little over the limit, so that its sender lives to read the refusal;
        end the connection before one that is long or endless."""
        length = _content_length(scope)
        return {} if length is not None and length <= 2 * self._limits.body_bytes else CLOSE

    def _authorized(self, scope: Message) -> bool:
        if self._authorization is None:
            # Browsers say which page asks, also for a WebSocket; nobody else does.
            return all(name != b"origin" for name, _ in scope["headers"])
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        return len(given) == 1 and hmac.compare_digest(given[0], self._authorization)

    async def _forward(self, scope: Message, receive: Receive) -> Answer:
        length = _content_length(scope)
        head = codec.parse_head(_headers(scope), length, self._limits)
        body = await _read_body(receive, length, self._limits.body_bytes)
        return codec.encode_reply(await self._service.forward(head.finish(body)))

    async def _session(self, method: str, name: str, scope: Message, receive: Receive) -> Answer:
        own, _, rest = name.partition("/")
        if self._moves(rest):
            return await self._move(own, rest, scope, receive)
        session = session_id(name)
        if method == "DELETE":
            fields = collect(_headers(scope), self._limits)
            self._service.release(session, linger=read_linger(fields))
            return 204, {}, []
        if method == "GET":
            description = self._service.session(session)
            if description is None:
                return _refuse(Refusal(Code.NOT_FOUND, f"no session {session} here"))
            return 200, {"Content-Type": JSON}, [codec.encode_session(description)]
        body = await _read_body(receive, _content_length(scope), self._limits.json_bytes)
        granted = await self._service.reserve(codec.decode_reserve(name, body, self._limits))
        if isinstance(granted, Reserved):
            return 200, {"Content-Type": JSON}, [codec.encode_reserved(granted)]
        return _refuse(granted)

    async def _move(self, name: str, rest: str, scope: Message, receive: Receive) -> Answer:
        assert self._mover is not None, "without a mover there is no such path"
        if rest == TAKE:
            body = await _read_body(receive, _content_length(scope), self._limits.meta_bytes)
            taken = await self._mover.take(decode_take(name, body, self._limits))
            if isinstance(taken, Refusal):
                return _refuse(taken)
            return 200, {"Content-Type": JSON}, [codec.encode_session(taken)]
        layer = rest.removeprefix(LAYERS)
        asked = decode_layer_request(name, layer, _headers(scope), self._limits)
        given = await self._mover.give(asked)
        return _refuse(given) if isinstance(given, Refusal) else (200, *encode_layer(given))

    async def _drain(self, scope: Message, receive: Receive) -> Answer:
        assert self._mover is not None, "without a mover there is no such path"
        body = await _read_body(receive, _content_length(scope), self._limits.json_bytes)
        fields = read_object(body or b"{}", "drain", self._limits)
        self._mover.drain(undo=fields.has("undo") and fields.truth("undo"))
        return self._get("/node")

    def _get(self, path: str) -> Answer:
        if path == "/metrics":
            return 200, {"Content-Type": "text/plain; version=0.0.4"}, [self._metrics()]
        if path == "/node":
            peers = tuple(self._peers.urls)[:PEERS_MAX]
            described = replace(
                self._service.describe(), stream=True, chain=True, peers=peers, version=__version__
            )
            return 200, {"Content-Type": JSON}, [codec.encode_node(described)]
        if path == "/ready" and not self._service.ready:
            return _refuse(Refusal(Code.NOT_READY, "this node is still loading"))
        return 200, {"Content-Type": JSON}, [print_object({"status": "ok"})]


def _refuse(refusal: Refusal, more: dict[str, str] | None = None) -> Answer:
    status, headers, body = codec.encode_refusal(refusal)
    return status, headers | (more or {}), [body]


def _method_not_allowed(method: str, methods: Sequence[str]) -> Answer:
    values = {
        "error": "method_not_allowed",
        "message": f"expected {', '.join(methods)}, got {method}",
    }
    return 405, {"Content-Type": JSON, "Allow": ", ".join(methods)}, [print_object(values)]


def _headers(scope: Message) -> list[tuple[str, str]]:
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]


def _content_length(scope: Message) -> int | None:
    """Return the body's length, None if it comes in chunks. The HTTP parser has checked both."""
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value)
        if name == b"transfer-encoding":
            return None
    return 0


async def _read_body(receive: Receive, length: int | None, limit: int) -> bytearray:
    """Return the whole body, writable. Raises TooLarge, ClientGone, ClientSlow."""
    if length is not None and length > limit:
        raise TooLarge("body", f"at most {limit} bytes", length)
    body = bytearray()
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            more = length != 0
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                body += message.get("body", b"")
                if len(body) > limit:
                    raise TooLarge("body", f"at most {limit} bytes", f"over {limit} bytes")
                more = message.get("more_body", False)
    except TimeoutError:
        raise ClientSlow from None
    return body


async def _reply(answer: Answer, send: Send) -> None:
    status, fields, parts = answer
    length = sum(map(len, parts))
    headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in fields.items()]
    if status != 204:
        headers.append((b"content-length", b"%d" % length))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    if length <= JOIN_BYTES:
        parts = [b"".join(parts)]
    for part in parts[:-1]:
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": parts[-1], "more_body": False})
