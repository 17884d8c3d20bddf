"""A head's end of one session stream: steps out, answers in, told apart by their numbers.

    connecting ──101──▶ open ──release──▶ over
         └─anything else─▶ refused   └─closed, broken, late, cancelled──▶ lost

A protocol of asyncio over the WebSocket rules of `websockets`: an answer is read in the callback
that received it, so a step costs its caller one wake-up. Nothing is awaited to send: what is out is
bounded by the steps in flight.

Invariants
    * a step ends in its own answer or in HopLost, in time;
    * after a step that nobody waits for any more the stream is over: its answer would come where
      the next one is expected by the node's order;
    * a stream that is over holds no socket.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import cast

from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import OPEN
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from meshnet.core.protocol.chains import CHAINED, is_chained
from meshnet.core.protocol.frames import (
    SUBPROTOCOL,
    Ending,
    encode_release,
    encode_step,
    frame_bytes_max,
    number_of,
)
from meshnet.core.protocol.frames_replies import decode_answer
from meshnet.core.protocol.limits import STEPS_OUT_MAX, Limits
from meshnet.core.protocol.messages import Code, ForwardRequest, Refusal, Reply
from meshnet.core.protocol.opening import Opening
from meshnet.core.vocabulary import BadField, HopLost
from meshnet.wire.whole_messages import message_in, message_out

_DONE, _TOO_BIG = 1000, 1009


class StreamRefused(Exception):
    """The other side answered the handshake with something else than a stream."""


class SessionStream(asyncio.Protocol):
    """One stream. `ended` is called once, when no more can be sent on it."""

    def __init__(
        self,
        url: str,
        opening: Opening,
        authorization: dict[str, str],
        limits: Limits,
        ended: Callable[[SessionStream], None],
    ) -> None:
        self.opening = opening
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._headers = opening.headers() | authorization
        self._limits, self._ended = limits, ended
        self._frame_bytes_max = frame_bytes_max(limits)
        self._conn = ClientProtocol(
            parse_uri(url),
            subprotocols=[Subprotocol(SUBPROTOCOL)],
            max_size=self._frame_bytes_max,
        )
        self._transport: asyncio.Transport | None = None
        self._asked: dict[int, tuple[ForwardRequest, asyncio.Future[Reply]]] = {}
        self._queue: deque[asyncio.Future[None]] = deque()
        self._out = self._number = self._asks = 0
        self._waits: dict[int, tuple[float, float]] = {}
        """Until when each caller waits, and how long that is in all."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._close_code: int | None = None

    @property
    def alive(self) -> bool:
        return not self._over.done()

    async def ask(self, request: ForwardRequest, timeout_s: float) -> Reply:
        """Send a step that belongs to this stream and wait for its answer. Raises HopLost."""
        until = self._loop.time() + timeout_s
        self._asks = key = self._asks + 1
        self._waits[key] = (until, timeout_s)
        if self._timer is None or until < self._timer_at:
            self._look_at(until)
        try:
            if self._out < STEPS_OUT_MAX:
                self._out += 1
            else:
                await self._place()
            try:
                return await self._answer(request)
            finally:
                self._free_place()
        finally:
            del self._waits[key]

    async def _answer(self, request: ForwardRequest) -> Reply:
        self._number = number = (self._number + 1) % CHAINED
        frame = encode_step(number, request)
        if len(frame) > self._frame_bytes_max:
            return Refusal(Code.TOO_LARGE, f"a step of {len(frame)} bytes is over this end's limit")
        answer: asyncio.Future[Reply] = self._loop.create_future()
        self._asked[number] = (request, answer)
        try:
            self._send(frame)
            return await answer
        finally:
            if self._asked.pop(number, None) is not None:
                self.lose("a step before was given up")
            elif not answer.cancelled():
                answer.exception()  # it may have come while its caller was being cancelled

    async def _place(self) -> None:
        """Wait until a step before has ended, which hands its place over: nobody overtakes."""
        turn = self._loop.create_future()
        self._queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._free_place()
            raise

    def _free_place(self) -> None:
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._out -= 1

    def _look_at(self, when: float) -> None:
        """Look at `when` whether somebody waits too long. Most waits end long before any look."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = when
        self._timer = self._loop.call_at(when, self._look)

    def _look(self) -> None:
        self._timer = None
        if not self._waits or not self.alive:
            return
        until, timeout_s = min(self._waits.values())
        if until <= self._loop.time():
            self.lose(f"no answer within {timeout_s:g} s")
        else:
            self._look_at(until)

    def expect(self, number: int, request: ForwardRequest) -> asyncio.Future[Reply]:
        """Wait for an answer to a chained step, whoever sends it on this stream. Raises HopLost."""
        if not self.alive:
            raise HopLost("the stream is over")
        answer: asyncio.Future[Reply] = self._loop.create_future()
        self._asked[number] = (request, answer)
        return answer

    def forget(self, number: int) -> None:
        """Wait no longer: an answer that comes nevertheless is dropped."""
        _, answer = self._asked.pop(number, (None, None))
        if answer is not None:
            answer.cancel()

    def pass_on(self, number: int, request: ForwardRequest) -> None:
        """Send a chained step; its answer may come on another stream. Raises HopLost."""
        frame = encode_step(number, request)
        if len(frame) > self._frame_bytes_max:
            raise HopLost(f"a step of {len(frame)} bytes is over this end's limit")
        self._send(frame)

    async def release(self, ending: Ending = Ending.RELEASED) -> None:
        """Say that the session is over and wait until the node has read it. Raises HopLost."""
        self._send(encode_release(ending))
        try:
            await asyncio.shield(self._over)
        finally:
            self.lose("the session is over")
        if self._close_code != _DONE:
            raise HopLost("the stream broke before the node had read the release")

    def lose(self, why: str) -> None:
        """End the stream at once; whoever waits gets HopLost. Ending it twice is harmless."""
        if not self._over.done():
            self._end(HopLost(why))

    # --- what the transport calls -------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._over.done():
            self._transport.abort()
            return
        request = self._conn.connect()
        request.headers.update(self._headers)
        self._conn.send_request(request)
        self._flush()

    def data_received(self, data: bytes) -> None:
        if self._over.done():
            return
        if self._conn.state is OPEN and not self._conn.reader.buffer:
            message = message_in(data, masked=False, size_max=self._frame_bytes_max)
            if message is not None:  # no other message can be half read: it would have been an end
                self._answered(message)
                return
        self._conn.receive_data(data)
        self._flush()
        for event in self._conn.events_received():
            if self._over.done():
                return
            if isinstance(event, Frame):
                self._received(event)
            elif isinstance(event, Response):
                self._handshaken(event)
        if self._conn.parser_exc is not None or self._conn.handshake_exc is not None:
            self.lose(f"unreadable: {self._conn.parser_exc or self._conn.handshake_exc}")

    def eof_received(self) -> None:
        self.lose("closed by the node")

    def connection_lost(self, error: Exception | None) -> None:
        self.lose("closed by the node" if error is None else f"{type(error).__name__}: {error}")

    # ------------------------------------------------------------------------------------------

    def _handshaken(self, response: Response) -> None:
        if self._conn.handshake_exc is None and self._conn.subprotocol == SUBPROTOCOL:
            self.ready.set_result(None)
            return
        self.ready.set_exception(StreamRefused(f"HTTP {response.status_code}"))
        self.lose("no stream")

    def _received(self, frame: Frame) -> None:
        if frame.opcode is Opcode.BINARY and frame.fin:
            self._answered(cast(bytes, frame.data))
        elif frame.opcode is Opcode.CLOSE:
            self._closed()
        elif frame.opcode not in (Opcode.PING, Opcode.PONG):
            self.lose("something else than an answer")

    def _answered(self, frame: bytes) -> None:
        try:
            number = number_of(frame)
            asked = self._asked.pop(number, None)
            if asked is None and is_chained(number):
                return  # of a step that was given up
            if asked is None:
                raise HopLost("an answer to nothing that was asked")
            request, answer = asked
            try:
                reply = decode_answer(frame, request, self._limits)
            except HopLost as error:
                answer.set_exception(error)
                raise
        except (BadField, HopLost) as error:
            self.lose(str(error))
            return
        if not answer.done():
            answer.set_result(reply)

    def _closed(self) -> None:
        received = self._conn.close_rcvd
        code, reason = (1005, "") if received is None else (received.code, received.reason)
        self._close_code = code
        if code == _TOO_BIG:
            refusal = Refusal(Code.TOO_LARGE, f"the step is over the node's limit: {reason}")
            for _, answer in self._take_asked():
                answer.set_result(refusal)
        self.lose(f"closed by the node with code {code} {reason}")

    def _send(self, frame: bytes) -> None:
        if self._conn.state is not OPEN or self._transport is None:
            raise HopLost("the stream is over")
        self._transport.write(message_out(frame, masked=True))

    def _flush(self) -> None:
        parts = self._conn.data_to_send()
        if parts and self._transport is not None:
            self._transport.write(parts[0] if len(parts) == 1 else b"".join(parts))

    def _end(self, lost: HopLost) -> None:
        self._over.set_result(None)
        if not self.ready.done():
            self.ready.set_exception(lost)
            self.ready.exception()  # it may be that nobody waits for it
        for _, answer in self._take_asked():
            answer.set_exception(HopLost(str(lost)))
            answer.exception()  # of a chained step, somebody else may have answered
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()
        self._ended(self)

    def _take_asked(self) -> list[tuple[ForwardRequest, asyncio.Future[Reply]]]:
        asked, self._asked = self._asked, {}
        return [(request, answer) for request, answer in asked.values() if not answer.done()]
