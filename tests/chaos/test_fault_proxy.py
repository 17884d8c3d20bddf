"""Each weather does to bytes what its name says: else a storm would try nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.chaos.fault_proxy import CLEAR, FaultProxy, Link, Passage, Weather
from tests.chaos.network import dial, listening

HOST = "127.0.0.1"
DEADLINE_S = 30.0
SENT = b"0123456789"

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Target:
    """What listens behind the proxy; hands over each connection."""

    def __init__(self) -> None:
        self.accepted: asyncio.Queue[Ends] = asyncio.Queue()

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self.accepted.put((reader, writer))


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Link, Ends, Ends]]:
    """A link, the end that dialled and the end that was dialled, with a proxy between them."""
    target = Target()
    server = await asyncio.start_server(target.take, HOST, 0)
    port = server.sockets[0].getsockname()[1]
    link = Link("source", "target")
    try:
        async with asyncio.timeout(DEADLINE_S):
            proxy = FaultProxy(listening(HOST, 0), lambda _: link, lambda: dial(HOST, port, None))
            async with proxy:
                near = await asyncio.open_connection(HOST, proxy.port)
                far = await target.accepted.get()
                yield link, near, far
                for _, writer in (near, far):
                    writer.close()
    finally:
        server.close()


async def silent(reader: asyncio.StreamReader) -> bool:
    """Nothing has come, after everything that was ready to happen has happened."""
    try:
        async with asyncio.timeout(0.2):
            return not await reader.read(1)
    except TimeoutError:
        return True


async def test_clear_weather_carries_bytes_both_ways_and_each_end_by_itself():
    async with connected() as (link, near, far):
        near[1].write(SENT)
        near[1].write_eof()
        there = await far[0].read()
        far[1].write(SENT[::-1])
        far[1].write_eof()
        back = await near[0].read()

    assert (there, back) == (SENT, SENT[::-1])
    assert (link.dialled, link.cuts, link.connections) == (1, 0, 0)


@pytest.mark.parametrize("way", ["there", "back"])
async def test_a_shut_passage_holds_bytes_back_and_lets_them_arrive_when_it_opens(way: str):
    async with connected() as (link, near, far):
        sender, receiver = (near, far) if way == "there" else (far, near)
        link.turn(Weather(**{way: Passage.SHUT}))
        sender[1].write(SENT)
        receiver[1].write(SENT)

        assert await sender[0].readexactly(len(SENT)) == SENT  # the other direction is open
        assert await silent(receiver[0])

        link.turn(CLEAR)
        assert await receiver[0].readexactly(len(SENT)) == SENT


async def test_half_a_message_comes_before_a_reset():
    async with connected() as (link, near, far):
        link.turn(Weather(back=Passage.HALF_THEN_RESET))
        far[1].write(SENT)

        half = await near[0].readexactly(len(SENT) // 2)
        with pytest.raises(ConnectionResetError):
            await near[0].read()

    assert half == SENT[: len(SENT) // 2]
    assert link.cuts == 1


async def test_half_a_message_comes_before_silence_and_the_rest_after_it():
    async with connected() as (link, near, far):
        link.turn(Weather(back=Passage.HALF_THEN_SHUT))
        far[1].write(SENT)

        half = await near[0].readexactly(len(SENT) // 2)
        assert await silent(near[0])
        link.turn(CLEAR)
        rest = await near[0].readexactly(len(SENT) - len(half))

    assert half + rest == SENT


async def test_a_reset_breaks_both_ends_of_every_connection_and_new_ones_may_come():
    async with connected() as (link, near, far):
        near[1].write(SENT)
        await far[0].readexactly(len(SENT))

        link.reset()

        with pytest.raises(ConnectionResetError):
            await near[0].read()
        with pytest.raises(ConnectionResetError):
            await far[0].read()
    assert (link.cuts, link.connections) == (1, 0)


async def test_a_narrow_link_lets_one_byte_through_and_the_rest_once_it_is_wide():
    async with connected() as (link, near, far):
        link.turn(Weather(bytes_per_s=0.001))
        near[1].write(SENT)

        first = await far[0].read(len(SENT))
        assert await silent(far[0])
        link.turn(CLEAR)
        rest = await far[0].readexactly(len(SENT) - 1)

    assert first + rest == SENT
    assert len(first) == 1


async def test_a_delay_holds_every_byte_for_so_long():
    clock = asyncio.get_running_loop().time
    async with connected() as (link, near, far):
        link.turn(Weather(delay_s=0.15))
        sent_at = clock()
        near[1].write(SENT)

        await far[0].readexactly(len(SENT))

        assert clock() - sent_at >= 0.15


async def test_a_partition_hides_from_one_end_that_the_other_is_gone():
    async with connected() as (link, near, far):
        link.turn(Weather(there=Passage.SHUT, back=Passage.SHUT))
        near[1].transport.abort()

        assert await silent(far[0])
        link.turn(CLEAR)

        assert await far[0].read() == b""


async def test_a_target_that_is_not_there_breaks_the_connection():
    link = Link("source", "nobody")
    gone = listening(HOST, 0)
    port = gone.getsockname()[1]
    gone.close()
    async with (
        asyncio.timeout(DEADLINE_S),
        FaultProxy(listening(HOST, 0), lambda _: link, lambda: dial(HOST, port, None)) as proxy,
    ):
        reader, writer = await asyncio.open_connection(HOST, proxy.port)
        end = await reader.read()
        writer.close()

    assert end == b""
    assert link.dialled == 0
