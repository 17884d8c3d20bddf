"""uvicorn's HTTP protocol with what it lacks: an end to headers that are too long or too slow,
and to answers that nobody reads.

httptools collects a header line without limit, uvicorn starts no clock before the first
request is whole, and waits for ever for a peer to take its answer: one peer could take all memory
or all sockets of a node.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES_MAX = 64 * 1024
HEAD_TIMEOUT_S = 30.0
WRITE_STALL_S = 60.0
"""How long a peer may take no byte of an answer."""
_TOO_LONG = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-length: 0\r\nconnection: close\r\n\r\n"
)


class BoundedHttpProtocol(HttpToolsProtocol):
    """Closes a connection whose request head passes HEAD_BYTES_MAX or HEAD_TIMEOUT_S, and one
    whose peer takes nothing for WRITE_STALL_S."""

    _in_head = True
    _began = False
    _head_bytes = 0
    _head_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_clock()
        self._stop_write_clock()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_writing(None)

    def resume_writing(self) -> None:
        self._stop_write_clock()
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._in_head or self.transport.is_closing():
            return
        if self._began:
            self._began = False  # `data` may hold the end of another body: not counted
        else:
            self._head_bytes += len(data)
        if self._head_bytes > HEAD_BYTES_MAX:
            self.transport.write(_TOO_LONG)
            self.transport.close()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self.transport.close)

    def on_message_begin(self) -> None:
        self._in_head = True
        self._began = True
        self._head_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop_clock()
        super().on_headers_complete()

    def _watch_writing(self, unsent_before: int | None) -> None:
        unsent = self.transport.get_write_buffer_size()
        if unsent_before is not None and unsent >= unsent_before:
            self.transport.abort()  # to close it would wait for the peer
            return
        self._write_timer = self.loop.call_later(WRITE_STALL_S, self._watch_writing, unsent)

    def _stop_write_clock(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _stop_clock(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
