"""A TCP proxy whose links break as we say: late, slow, cut, shut, half way.

source ──▶ [due | bytes] ──▶ passage ──▶ rate ──▶ target        and the same back

Connections are parted into links by who dials whom; a link has one weather, which holds for
its open connections and for those to come, until it changes.

Invariants
    * bytes of one direction keep their order, and none is lost but by a cut;
    * what a passage held back while it was shut arrives once it opens, as on a network that
      comes back: so late answers do reach those who no longer wait for them.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from types import TracebackType

CHUNK_BYTES = 256 * 1024
UNDER_WAY_MAX = 4096
"""Chunks in one direction; beyond it the proxy reads no more."""
SLICE_S = 0.05
"""How often bytes go through a narrow link."""
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER of no time: closing sends a reset."""

Dial = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


class Passage(Enum):
    """What one direction of a link does to bytes."""

    OPEN = "open"
    SHUT = "shut"
    HALF_THEN_SHUT = "half, then shut"
    """Half of the next bytes of each connection, and then nothing."""
    HALF_THEN_RESET = "half, then reset"


@dataclass(frozen=True, slots=True)
class Weather:
    """What a link does now. `there` is towards the target, `back` towards who dialled it."""

    delay_s: float = 0.0
    bytes_per_s: float | None = None
    there: Passage = Passage.OPEN
    back: Passage = Passage.OPEN

    def __post_init__(self) -> None:
        if self.delay_s < 0:
            raise ValueError(f"delay_s: expected 0 or more, got {self.delay_s}")
        if self.bytes_per_s is not None and self.bytes_per_s <= 0:
            raise ValueError(f"bytes_per_s: expected more than 0, got {self.bytes_per_s}")

    @property
    def is_open(self) -> bool:
        return self.there is self.back is Passage.OPEN


CLEAR = Weather()
# Both ways: a step of a chain is there, from a node to the next, and nothing of it comes back.
SHUT = Weather(there=Passage.SHUT, back=Passage.SHUT)
HALF_THEN_SHUT = Weather(there=Passage.HALF_THEN_SHUT, back=Passage.HALF_THEN_SHUT)
HALF_THEN_RESET = Weather(there=Passage.HALF_THEN_RESET, back=Passage.HALF_THEN_RESET)
TRICKLE = Weather(bytes_per_s=1.0)


class Way(Enum):
    THERE = "there"
    BACK = "back"


class Link:
    """The connections from one place to another, and their weather."""

    def __init__(self, source: str, target: str) -> None:
        self.source, self.target = source, target
        self.dialled = 0
        self.cuts = 0
        """Connections that we broke, by a reset or half way."""
        self._weather = CLEAR
        self._changed = asyncio.Event()
        self._open: set[_Connection] = set()

    @property
    def weather(self) -> Weather:
        return self._weather

    @property
    def connections(self) -> int:
        return len(self._open)

    def turn(self, weather: Weather) -> None:
        """Change the weather, now."""
        self._weather = weather
        self._changed.set()
        self._changed = asyncio.Event()

    def reset(self) -> None:
        """Break every open connection at both ends; others may be opened."""
        for connection in list(self._open):
            connection.reset()

    async def change(self, within_s: float | None = None) -> None:
        """Return when the weather changes, or after that time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._changed.wait()

    async def carry(self, ends: tuple[_Stream, _Stream]) -> None:
        """Carry one connection to its end; the first of `ends` is who dialled."""
        (reader, writer), (onward_reader, onward_writer) = ends
        task = asyncio.current_task()
        assert task is not None
        connection = _Connection(self, {Way.THERE: onward_writer, Way.BACK: writer}, task)
        self.dialled += 1
        self._open.add(connection)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(connection.carry(reader, Way.THERE))
                group.create_task(connection.carry(onward_reader, Way.BACK))
        except* OSError:
            await self._other_end_may_know()
            connection.break_off()
        finally:
            self._open.discard(connection)
            for each in (writer, onward_writer):
                each.close()

    async def _other_end_may_know(self) -> None:
        while not self._weather.is_open:
            await self.change()


_Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Connection:
    """One connection of a link, from end to end; `task` carries it."""

    def __init__(
        self, link: Link, writers: dict[Way, asyncio.StreamWriter], task: asyncio.Task[None]
    ) -> None:
        self._link, self._writers, self._task = link, writers, task

    def reset(self) -> None:
        self._link.cuts += 1
        self.break_off()
        self._task.cancel()

    def break_off(self) -> None:
        """Close both ends with a reset: what is under way is lost."""
        for writer in self._writers.values():
            with suppress(OSError):
                writer.get_extra_info("socket").setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, RESET
                )
            writer.transport.abort()

    async def carry(self, reader: asyncio.StreamReader, way: Way) -> None:
        """Carry one direction to its end."""
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(UNDER_WAY_MAX)
        clock = asyncio.get_running_loop().time
        async with asyncio.TaskGroup() as group:
            group.create_task(self._deliver(under_way, way))
            data = b"more"
            while data:
                data = await reader.read(CHUNK_BYTES)
                await under_way.put((clock() + self._link.weather.delay_s, data))

    async def _deliver(self, under_way: asyncio.Queue[tuple[float, bytes]], way: Way) -> None:
        clock, writer = asyncio.get_running_loop().time, self._writers[way]
        while True:
            due, data = await under_way.get()
            await asyncio.sleep(max(0.0, due - clock()))
            ended = not data
            data = await self._passed(data, way)
            if ended:
                writer.write_eof()
                return
            await self._send(data, way)

    async def _passed(self, data: bytes, way: Way) -> bytes:
        """Wait until the passage is open; return what is still to be sent of `data`."""
        while (passage := self._passage(way)) is not Passage.OPEN:
            if passage is not Passage.SHUT and len(data) > 1:
                half = len(data) // 2
                await self._write(data[:half], way)
                data = data[half:]
                if passage is Passage.HALF_THEN_RESET:
                    self.reset()
            await self._link.change()
        return data

    async def _send(self, data: bytes, way: Way) -> None:
        """Send as fast as the link is wide."""
        while data:
            rate = self._link.weather.bytes_per_s
            size = len(data) if rate is None else max(1, int(rate * SLICE_S))
            await self._write(data[:size], way)
            data = data[size:]
            if rate is not None:
                await self._link.change(within_s=size / rate)
            if data:
                data = await self._passed(data, way)

    async def _write(self, data: bytes, way: Way) -> None:
        self._writers[way].write(data)
        await self._writers[way].drain()

    def _passage(self, way: Way) -> Passage:
        weather = self._link.weather
        return weather.there if way is Way.THERE else weather.back


class FaultProxy:
    """Accepts on a listening socket and carries each connection over the link of who dialled.

    `link_of` gives the link by the address of who dialled; `dial` opens the connection onward.
    Use it as an async context manager.
    """

    def __init__(self, listener: socket.socket, link_of: Callable[[str], Link], dial: Dial) -> None:
        self._listener, self._link_of, self._dial = listener, link_of, dial
        self._server: asyncio.Server | None = None
        self._connections = asyncio.TaskGroup()
        self._open: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    async def __aenter__(self) -> FaultProxy:
        await self._connections.__aenter__()
        self._server = await asyncio.start_server(self._accept, sock=self._listener)
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
        link = self._link_of(str(writer.get_extra_info("peername")[0]))
        try:
            onward = await self._dial()
        except OSError:
            writer.transport.abort()
            return
        await link.carry(((reader, writer), onward))
