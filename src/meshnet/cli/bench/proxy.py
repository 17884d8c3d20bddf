"""A TCP proxy that delays each direction: a long wire between processes of one machine.

client ──▶ [due | bytes][due | bytes] ──▶ node        and the same back; order is kept,
                                                      bandwidth is not limited
Half a close travels like bytes, after the same delay. A broken connection breaks at both ends
at once: what was under way is lost, as on a wire that was cut.

Invariant: nothing arrives earlier than `delay_s` after it was read; a delay that is changed
reorders nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Protocol

CHUNK_BYTES = 256 * 1024
UNDER_WAY_MAX = 65_536
"""Chunks in one direction; beyond it the proxy reads no more, as a wire holds only so much."""


class Sink(Protocol):
    """What a direction writes to; asyncio.StreamWriter is one."""

    def write(self, data: bytes) -> None: ...

    def write_eof(self) -> None: ...

    async def drain(self) -> None: ...


async def carry(reader: asyncio.StreamReader, sink: Sink, delay_s: Callable[[], float]) -> None:
    """Carry bytes and their end from `reader` to `sink`, each `delay_s()` after it came."""
    under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(UNDER_WAY_MAX)
    clock = asyncio.get_running_loop().time
    async with asyncio.TaskGroup() as group:
        group.create_task(_deliver(under_way, sink, clock))
        while True:
            data = await reader.read(CHUNK_BYTES)
            # A queue: where the delay shrinks, what is quicker waits for what was before it.
            await under_way.put((clock() + delay_s(), data))
            if not data:
                return


async def _deliver(
    under_way: asyncio.Queue[tuple[float, bytes]], sink: Sink, clock: Callable[[], float]
) -> None:
    while True:
        due, data = await under_way.get()
        await asyncio.sleep(max(0.0, due - clock()))
        if not data:
            sink.write_eof()
            return
        sink.write(data)
        await sink.drain()


class DelayProxy:
    """Listens on a free port of loopback and forwards to one address while it is entered."""

    def __init__(self, host: str, port: int, delay_s: float = 0.0) -> None:
        self._target = (host, port)
        self.delay_s = delay_s
        self._server: asyncio.Server | None = None
        self._connections = asyncio.TaskGroup()
        self._open: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        assert self._server is not None, "the proxy was not entered"
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def __aenter__(self) -> DelayProxy:
        await self._connections.__aenter__()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._open:
            task.cancel()
        await self._connections.__aexit__(None, None, None)
        await self._server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._connections.create_task(self._serve(reader, writer))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Run one connection to its end."""
        try:
            onward_reader, onward_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        ends = (writer, onward_writer)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._carry(reader, onward_writer))
                group.create_task(self._carry(onward_reader, writer))
        except* OSError:
            for each in ends:
                each.transport.abort()
        finally:
            for each in ends:
                each.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await carry(reader, writer, lambda: self.delay_s)
