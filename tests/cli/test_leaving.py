"""A node that drains ends when nobody has a chat there, and in any case in time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from tests.node.bench import LAYERS, SESSION, Bench, BenchThread

from meshnet.cli.leaving import Leaving
from meshnet.core.vocabulary import LayerRange

DEADLINE_S = 60.0


@pytest.fixture
def node() -> Iterator[Bench]:
    thread = BenchThread(jobs_max=4)
    yield Bench(thread, LayerRange(0, LAYERS))
    assert thread.close(deadline_s=30.0)


async def turns() -> None:
    """Let everybody who can go on do so."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_node_ends_when_its_last_chat_has_left(node: Bench):
    await node.prefilled()
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(Leaving(node.service, None, deadline_s=DEADLINE_S, poll_s=0).run(stop))
        node.service.moves.drain()
        await turns()
        assert not stop.is_set()

        node.service.release(SESSION)

        await asyncio.wait_for(stop.wait(), DEADLINE_S)


async def test_a_chat_that_nobody_comes_back_for_holds_up_nothing(node: Bench):
    await node.prefilled()
    node.clock.now += 6.0
    node.service.moves.drain()
    stop = asyncio.Event()

    await Leaving(node.service, None, deadline_s=DEADLINE_S, poll_s=0).run(stop)

    assert stop.is_set()
    assert node.service.describe().sessions == 1


async def test_a_node_ends_in_time_whoever_is_still_there(node: Bench):
    await node.prefilled()
    node.service.moves.drain()
    stop = asyncio.Event()

    await Leaving(node.service, None, deadline_s=0, poll_s=0).run(stop)

    assert stop.is_set()


async def test_a_node_that_is_told_to_go_on_does(node: Bench):
    await node.prefilled()
    stop = asyncio.Event()
    leaving = Leaving(node.service, None, deadline_s=DEADLINE_S, poll_s=0)
    task = asyncio.ensure_future(leaving.run(stop))
    node.service.moves.drain()
    await turns()

    node.service.moves.drain(undo=True)
    await turns()
    node.service.release(SESSION)
    await turns()

    assert not stop.is_set()
    task.cancel()
