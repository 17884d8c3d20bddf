"""uvicorn's WebSocket protocol with what it lacks: an end to streams that nobody uses or reads,
and to messages in endless pieces.

A step is the only thing that a peer may wait for, so a stream on which nothing comes and nothing
runs is of no use to anybody: it would only hold a place for a head that is gone. Its own pings are
off: a head on the other side of a long step, or of a long frame, is alive and cannot answer one.
"""

from __future__ import annotations

import asyncio
from asyncio.transports import BaseTransport
from collections import deque
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Any

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame
from websockets.protocol import OPEN

from meshnet.wire.whole_messages import message_in, message_out

IDLE_S = 30.0
"""How long nothing may come while nothing runs."""
WRITE_STALL_S = 60.0
"""How long a peer may take no byte of an answer."""
FRAGMENTS_MAX = 1024
SERVED = {"type": "meshnet.served"}
"""A message has been dealt with, and is not answered here."""


def unasked(frame: bytes) -> MutableMapping[str, Any]:
    """Return the message that sends a frame which answers none of this stream's.

    An empty one is not sent: it only tells that somebody is at work for the peer.
    """
    return {"type": "meshnet.unasked", "bytes": frame}


class Messages:
    """What `asyncio.Queue` does for the one task that serves a stream, in fewer calls."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._held: deque[Any] = deque()
        self._waiting: asyncio.Future[Any] | None = None

    def empty(self) -> bool:
        return not self._held

    def hand_over(self, message: Any) -> bool:
        """Give a message to the task that waits for one; False: none does."""
        waiting, self._waiting = self._waiting, None
        if waiting is None or waiting.done():
            return False
        waiting.set_result(message)
        return True

    def put_nowait(self, message: Any) -> None:
        if self._held or not self.hand_over(message):
            self._held.append(message)

    async def get(self) -> Any:
        if self._held:
            return self._held.popleft()
        self._waiting = self._loop.create_future()
        return await self._waiting


class BoundedStreamProtocol(WebSocketsSansIOProtocol):
    """Closes a stream that is idle for IDLE_S, or whose peer takes nothing for WRITE_STALL_S."""

    _heard_at = 0.0
    _running = 0
    _idle_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: BaseTransport) -> None:
        self.messages = self.queue = Messages(self.loop)  # type: ignore[assignment]
        super().connection_made(transport)
        self._heard_at = self.loop.time()
        self._idle_timer = self.loop.call_later(IDLE_S, self._watch_idleness)

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._idle_timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        self._idle_timer = self._write_timer = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._heard_at = self.loop.time()
        # Nothing may be half read: no part of a frame, and none of several frames of a message.
        if self._direct() and not self.frames and not self.conn.reader.buffer:
            message = message_in(data, masked=True, size_max=self.config.ws_max_size)
            if message is not None:
                if self.messages.hand_over({"type": "websocket.receive", "bytes": message}):
                    self._running += 1  # and reading goes on: nothing waits
                    return
                self.curr_msg_data_type, self.frames = "bytes", [message]
                self.send_receive_event_to_app()
                return
        super().data_received(data)

    def _direct(self) -> bool:
        """Whether messages may pass the parser by: between the two handshakes."""
        return self.handshake_complete and not self.close_sent and self.conn.state is OPEN

    def handle_cont(self, event: Frame) -> None:
        if len(self.frames) >= FRAGMENTS_MAX:
            self.conn.fail(1009, f"more than {FRAGMENTS_MAX} fragments")
            self.handle_parser_exception()
            return
        super().handle_cont(event)

    def send_receive_event_to_app(self) -> None:
        self._running += 1
        super().send_receive_event_to_app()

    async def send(self, message: MutableMapping[str, Any]) -> None:  # type: ignore[override]
        if message["type"] == "meshnet.served":
            self._running -= 1
            self._heard_at = self.loop.time()
            return
        if message["type"] == "meshnet.unasked":
            await self._send_unasked(message["bytes"])
            return
        if message["type"] == "websocket.send":
            await self._send_message(message["bytes"])
            self._running -= 1
            self._heard_at = self.loop.time()
            return
        await super().send(message)  # type: ignore[arg-type]
        if message["type"] == "websocket.http.response.body":
            self.handshake_complete = True  # by a refusal: uvicorn would log it as a bug

    async def _send_unasked(self, frame: bytes) -> None:
        """Whoever sends it serves another stream: that this one has ended is no error of theirs."""
        self._heard_at = self.loop.time()
        if frame and not self.close_sent:
            with suppress(ClientDisconnected, RuntimeError):  # RuntimeError: closed while waiting
                await self._send_message(frame)

    async def _send_message(self, message: bytes) -> None:
        if self.writable.is_set() and not self.disconnected and self._direct():
            self.transport.write(message_out(message, masked=False))
        else:
            await super().send({"type": "websocket.send", "bytes": message})

    def pause_writing(self) -> None:
        """Read nothing either: each ping that is read is a pong that has to wait."""
        super().pause_writing()
        if not self.transport.is_closing():
            self.transport.pause_reading()
        self._watch_writing(None)

    def resume_writing(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
        if not self.read_paused and not self.transport.is_closing():
            self.transport.resume_reading()
        super().resume_writing()

    def _watch_idleness(self) -> None:
        idle_s = 0.0 if self._running else self.loop.time() - self._heard_at
        if idle_s >= IDLE_S:
            self._idle_timer = None
            self.shutdown()
        else:
            self._idle_timer = self.loop.call_later(IDLE_S - idle_s, self._watch_idleness)

    def _watch_writing(self, unsent_before: int | None) -> None:
        unsent = self.transport.get_write_buffer_size()
        if unsent_before is not None and unsent >= unsent_before:
            self.transport.abort()  # to close it would wait for the peer
            return
        self._write_timer = self.loop.call_later(WRITE_STALL_S, self._watch_writing, unsent)
