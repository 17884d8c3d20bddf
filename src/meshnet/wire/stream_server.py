"""The session streams of a node: WebSockets on which one session's steps come in order.

    GET /sessions/{id}/stream    then frames (core.protocol.frames), one answer to each step

    opening ──refused: HTTP status and our JSON
       └──accepted──▶ steps, one after the other ──release──▶ the session is forgotten
                        └──the stream ends otherwise──▶ the session is unpinned, not forgotten

Order is the queue: a step is looked at when the one before it has ended, so a step that builds on
it finds what it needs, and one that builds on a step that failed is a miss like any other. Steps
that wait are in the socket: the peer is held back, not buffered.

Invariants
    * a session is pinned exactly while a stream of it is open;
    * whatever frames come, the node answers or closes, and lives;
    * a step that began runs to its end, whether or not somebody still waits for it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from meshnet.core.protocol.chains import is_chained
from meshnet.core.protocol.frames import SUBPROTOCOL, Ending, decode_step, number_of
from meshnet.core.protocol.frames_replies import encode_answer
from meshnet.core.protocol.limits import Limits
from meshnet.core.protocol.messages import Code, Refusal
from meshnet.core.protocol.opening import Opening
from meshnet.core.protocol.refusals import encode_refusal, refusal_of
from meshnet.core.vocabulary import BadField, MeshnetError
from meshnet.wire.handing import Handing
from meshnet.wire.service import Service
from meshnet.wire.stream_bounds import SERVED, unasked

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

STREAMS_MAX = 512
"""Of a node. Half of its connections: requests must find one beside them."""
RETRY_AFTER_S = 5.0
PATH = ("/sessions/", "/stream")
DONE, NOT_UNDERSTOOD, UNREADABLE = 1000, 1003, 1007


class StreamServer:
    """Serves the streams of `service`; `authorized` judges a handshake as it does a request."""

    def __init__(
        self,
        service: Service,
        limits: Limits,
        authorized: Callable[[Message], bool],
        handing: Handing,
    ) -> None:
        self._handing = handing
        self._service = service
        self._limits = limits
        self._authorized = authorized
        self.open = 0

    async def serve(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one stream to its end."""
        await receive()  # "websocket.connect"
        opening = self._opening(scope)
        if isinstance(opening, Refusal):
            await _turn_away(opening, send)
            return
        self.open += 1
        self._service.pin(opening.session)

        async def tell(frame: bytes) -> None:
            await send(unasked(frame))

        try:
            await send({"type": "websocket.accept", "subprotocol": SUBPROTOCOL})
            if not opening.onward:
                self._handing.head_came(opening.session, tell)
            await self._handing.prepare(opening)
            await self._steps(opening, receive, send)
        finally:
            self._handing.head_left(opening.session, tell)
            self._service.unpin(opening.session)
            self.open -= 1

    def _opening(self, scope: Message) -> Opening | Refusal:
        if not self._authorized(scope):
            return Refusal(Code.UNAUTHORIZED, "expected the mesh token as Bearer")
        path: str = scope["path"]
        begin, end = PATH
        if not path.startswith(begin) or not path.endswith(end):
            return Refusal(Code.NOT_FOUND, f"no stream at {path[:200]}")
        if SUBPROTOCOL not in scope["subprotocols"]:
            return Refusal(Code.BAD_REQUEST, f"expected the subprotocol {SUBPROTOCOL}")
        if not self._service.ready:
            return Refusal(Code.NOT_READY, "this node is not ready yet", RETRY_AFTER_S)
        if self.open >= STREAMS_MAX:
            return Refusal(Code.NO_ROOM, f"{self.open} streams are open here", RETRY_AFTER_S)
        headers = (
            (name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]
        )
        try:
            return Opening.parse(path.removeprefix(begin).removesuffix(end), headers, self._limits)
        except BadField as error:
            return refusal_of(error)

    async def _steps(self, opening: Opening, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "websocket.disconnect":
                return
            answer = await self._answer(message, opening)
            del message  # a frame may be large, and the next one long in coming
            if answer is None:
                await send(SERVED)
                continue
            if isinstance(answer, int):
                await send({"type": "websocket.close", "code": answer})
                return
            await send({"type": "websocket.send", "bytes": answer})

    async def _answer(self, message: Message, opening: Opening) -> bytes | int | None:
        """Return the answer to a frame, or with which code to close; None: the head has it."""
        frame: bytes | None = message.get("bytes")
        if frame is None:
            return NOT_UNDERSTOOD
        try:
            number = number_of(frame)
        except BadField:
            return UNREADABLE
        try:
            step = decode_step(frame, opening, self._limits)
            if isinstance(step, Ending):
                self._service.release(opening.session, linger=step is Ending.LINGERS)
                return DONE
            if is_chained(number):
                await self._handing.serve(number, step, self._service.forward)
                return None
            if opening.onward or step.route:
                raise BadField("frame.number", "the highest bit, in a step to hand on", number)
            return encode_answer(number, await self._service.forward(step))
        except MeshnetError as error:
            return encode_answer(number, refusal_of(error))


async def _turn_away(refusal: Refusal, send: Send) -> None:
    status, fields, body = encode_refusal(refusal)
    headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in fields.items()]
    await send({"type": "websocket.http.response.start", "status": status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": body})
