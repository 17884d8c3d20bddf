"""Streams in the simulated cluster: what breaks costs a refill, and leaves no pin behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from unittest.mock import patch

import pytest
from tests.simulation.test_scenarios import LOOPBACK, nodes

from meshnet.core.sessions.streams import OpenStreams
from meshnet.core.vocabulary import SamplingParams
from meshnet.node.service import NodeService
from meshnet.simulation.faults import Faults
from meshnet.simulation.history import History
from meshnet.simulation.plan import ChatPlan, ClusterPlan, plan
from meshnet.simulation.streams import IDLE_S
from meshnet.simulation.world import World, simulate_plan

BREAKING = Faults(stream_breaks=0.1)
STALLS_S = 2 * IDLE_S


def streaming(seed: int, faults: Faults) -> ClusterPlan:
    """The seed's cluster with streams from every head that knows them."""
    cluster = plan(seed, faults)
    return replace(cluster, streaming_heads=frozenset(range(cluster.heads)) - cluster.legacy_heads)


def lived(seed: int, faults: Faults) -> History:
    return simulate_plan(seed, streaming(seed, faults), faults)


def test_streams_that_break_cost_refills_and_no_promise():
    histories = [lived(seed, BREAKING) for seed in range(20)]

    assert [line for each in histories for line in each.complaints] == []
    assert sum(each.refills for each in histories) > 20


def test_streams_that_hold_cost_nothing():
    """In a calm world with room for all, a step over a stream is never asked again."""
    roomy = [seed for seed in range(60) if len(plan(seed, Faults()).nodes) > len(nodes(1))][:5]

    histories = [lived(seed, Faults()) for seed in roomy]

    assert [(each.refills, each.complaints) for each in histories] == [(0, ())] * len(roomy)


def test_a_pin_that_outlives_its_stream_is_noticed():
    with patch.object(OpenStreams, "unpin", lambda self, session: None):
        complaints = [line for seed in range(3) for line in lived(seed, BREAKING).complaints]

    assert any("pinned by streams that are over" in line for line in complaints)


def stalling() -> ClusterPlan:
    """One chat whose client takes five tokens and then none for a while."""
    chat = ChatPlan("c", 0, 0.0, (1, 2, 3), 15, SamplingParams(), stalls_after=5, stalls_s=STALLS_S)
    return ClusterPlan(nodes(1), heads=1, chats=(chat,), drafts=0, streaming_heads=frozenset({0}))


def places(world: World) -> list[tuple[int, int]]:
    """Sessions held and sessions pinned by streams, node by node."""
    services = [machine.service for machine in world.machines.values()]
    return [
        (each.describe().sessions, each.pinned)
        for each in services
        if isinstance(each, NodeService)
    ]


def looked(at_s: float, look: Callable[[World], None]) -> History:
    async def watch(world: World) -> None:
        await asyncio.sleep(at_s)
        look(world)
        await asyncio.Event().wait()

    return simulate_plan(1, stalling(), LOOPBACK, watch=watch)


def test_a_session_is_pinned_while_its_stream_is_open():
    seen: list[list[tuple[int, int]]] = []

    history = looked(IDLE_S - 1.0, lambda world: seen.append(places(world)))

    assert seen == [[(1, 1)] * 3]
    assert (history.complaints, history.refills) == ((), 0)


def test_a_stream_on_which_nothing_comes_is_closed_and_the_next_step_opens_another():
    seen: list[list[tuple[int, int]]] = []

    history = looked(IDLE_S + 5.0, lambda world: seen.append(places(world)))

    assert seen == [[(1, 0)] * 3]
    assert (history.complaints, history.refills) == ((), 0)


@pytest.mark.parametrize("after_s", [0.1, 5.0])
def test_a_stream_that_breaks_leaves_its_session_unpinned_not_deleted(after_s: float):
    seen: list[list[tuple[int, int]]] = []

    def look(world: World) -> None:
        for stream in list(world.heads[0].client._streams.values()):
            stream.lose("broken")
        loop = asyncio.get_running_loop()
        loop.call_later(after_s, lambda: seen.append(places(world)))

    history = looked(4.0, look)

    assert seen == [[(1, 0)] * 3]
    assert (history.complaints, history.refills) == ((), 0)
