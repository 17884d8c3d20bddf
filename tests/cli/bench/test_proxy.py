"""The long wire: when bytes arrive under a clock of our own, and that all do over real sockets."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from meshnet.cli.bench.proxy import DelayProxy, carry
from meshnet.simulation.loop import VirtualLoop


@dataclass
class Far:
    """The far end of a wire: what arrived there, and when."""

    arrived: list[tuple[float, bytes]] = field(default_factory=list)

    def write(self, data: bytes) -> None:
        self.arrived.append((asyncio.get_running_loop().time(), data))

    def write_eof(self) -> None:
        self.write(b"")

    async def drain(self) -> None:
        pass


def carried(
    sent: list[tuple[float, bytes]], delays: dict[float, float]
) -> list[tuple[float, bytes]]:
    """Send bytes at given times; `delays` tells from when on a delay holds."""
    far = Far()

    async def play() -> None:
        reader, loop = asyncio.StreamReader(), asyncio.get_running_loop()

        def delay_s() -> float:
            return next(value for at, value in sorted(delays.items())[::-1] if at <= loop.time())

        async with asyncio.TaskGroup() as group:
            group.create_task(carry(reader, far, delay_s))
            for at, data in sent:
                await asyncio.sleep(at - loop.time())
                reader.feed_data(data) if data else reader.feed_eof()

    loop = VirtualLoop()
    try:
        loop.run_until_complete(play())
    finally:
        loop.close()
    return [(round(at, 6), data) for at, data in far.arrived]


def test_everything_arrives_one_delay_later_the_end_too():
    sent = [(1.0, b"a"), (1.01, b"b"), (3.0, b"")]

    assert carried(sent, {0.0: 0.05}) == [(1.05, b"a"), (1.06, b"b"), (3.05, b"")]


def test_without_delay_everything_arrives_at_once():
    assert carried([(1.0, b"a"), (2.0, b"")], {0.0: 0.0}) == [(1.0, b"a"), (2.0, b"")]


def test_a_long_wire_holds_many_messages():
    """The delay bounds no rate: a hundred chunks in a millisecond come out in a millisecond."""
    sent = [(1.0 + index / 1e5, bytes([index])) for index in range(100)]

    arrived = carried([*sent, (2.0, b"")], {0.0: 10.0})

    assert arrived[:-1] == [(round(at + 10.0, 6), data) for at, data in sent]


def test_a_delay_that_shrinks_lets_nothing_overtake():
    sent = [(1.0, b"slow"), (2.0, b"fast"), (9.0, b"")]

    assert carried(sent, {0.0: 5.0, 1.5: 0.1}) == [(6.0, b"slow"), (6.0, b"fast"), (9.1, b"")]


@given(
    st.lists(st.tuples(st.floats(0.001, 1.0), st.binary(min_size=1, max_size=9)), max_size=12),
    st.floats(0.0, 2.0),
)
def test_bytes_keep_their_order_and_none_is_early(gaps: list[tuple[float, bytes]], delay_s: float):
    times = [sum(gap for gap, _ in gaps[: index + 1]) for index in range(len(gaps))]
    sent = list(zip(times, (data for _, data in gaps), strict=True))

    arrived = carried([*sent, (100.0, b"")], {0.0: delay_s})

    assert b"".join(data for _, data in arrived) == b"".join(data for _, data in sent)
    due = {round(at + delay_s, 6) for at, _ in [*sent, (100.0, b"")]}
    assert all(any(abs(at - each) < 1e-5 for each in due) for at, _ in arrived)


@asynccontextmanager
async def echo(chunks: list[bytes]) -> AsyncIterator[int]:
    """A server that answers with what it got, reversed, once the client has sent its end."""
    done = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        chunks.append(await reader.read())
        writer.write(chunks[-1][::-1])
        writer.close()
        await writer.wait_closed()
        done.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
        await done.wait()


async def test_megabytes_pass_both_ways_and_a_half_close_is_one():
    """The answer comes after the client's end: a proxy that closed both ways would lose it."""
    sent, got = random.Random(0).randbytes(3_000_000), list[bytes]()

    async with echo(got) as port, DelayProxy("127.0.0.1", port, delay_s=0.001) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(sent)
        writer.write_eof()
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()

    assert got == [sent]
    assert answer == sent[::-1]


async def test_a_target_that_is_not_there_breaks_the_connection():
    async with DelayProxy("127.0.0.1", 1) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        try:
            told = await reader.read()
        except ConnectionError:
            told = b""
        writer.close()

    assert told == b""


async def test_a_proxy_ends_with_connections_still_open():
    """A node that is asked to stop does not wait for its clients."""
    reached = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.set()
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        async with DelayProxy("127.0.0.1", port) as proxy:
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            await reached.wait()
        with_end = await reader.read()
        writer.close()

    assert with_end == b""
