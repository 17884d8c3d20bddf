"""A node that takes a session over is waited for while it gives signs of life."""

from __future__ import annotations

import asyncio

from tests.core.protocol.test_moving import ORDER
from tests.head.cluster import A, Cluster

from meshnet.core.generation.moves import TakenOver, TakeOver
from meshnet.core.protocol.messages import Refusal
from meshnet.core.protocol.moving import TakeRequest
from meshnet.core.vocabulary import (
    Hop,
    HopLost,
    LayerRange,
    ModelId,
    NodeId,
    SessionDescription,
    SessionId,
)
from meshnet.head.calls import Calls
from meshnet.head.directory import Directory
from meshnet.simulation.loop import run

TAKE_S, ALIVE_S = 60.0, 5.0
TAKEN = SessionDescription(ORDER.session, LayerRange(3, 6), 3, "0" * 16, 1, 99)


class Taking(Cluster):
    """A node that takes a session over within `takes_s`, and is there until `gone_at`."""

    def __init__(self, *, takes_s: float, gone_at: float) -> None:
        super().__init__()
        self.takes_s, self.gone_at = takes_s, gone_at

    async def take(
        self, node: NodeId, request: TakeRequest, timeout_s: float
    ) -> SessionDescription | Refusal:
        await asyncio.sleep(min(self.takes_s, timeout_s))
        return TAKEN

    async def session(
        self, node: NodeId, session: SessionId, timeout_s: float
    ) -> SessionDescription | None:
        if asyncio.get_running_loop().time() < self.gone_at:
            return None
        await asyncio.sleep(timeout_s)
        raise HopLost(f"{node}: no answer within {timeout_s:g} s")


async def taken_over(*, takes_s: float, gone_at: float) -> tuple[TakenOver, float]:
    """What became of a move, and how long it took."""
    cluster = Taking(takes_s=takes_s, gone_at=gone_at)
    clock = asyncio.get_running_loop().time
    directory = Directory(cluster, list(cluster.nodes), clock=clock)
    calls = Calls(cluster, directory, model=ModelId("m"), clock=clock)
    order = (Hop(A, ORDER.layers), ORDER)
    return await calls.take_over(TakeOver((order,), TAKE_S, ALIVE_S)), clock()


def test_a_node_that_falls_silent_is_not_waited_for_any_longer():
    told, took_s = run(lambda: taken_over(takes_s=1e9, gone_at=12.0), 0)

    (lost,) = told.found
    assert isinstance(lost, HopLost)
    assert 12.0 < took_s <= 12.0 + 2 * ALIVE_S


def test_a_node_that_takes_long_is_waited_for_while_it_answers():
    told, took_s = run(lambda: taken_over(takes_s=50.0, gone_at=1e9), 0)

    assert (told, took_s) == (TakenOver((TAKEN,)), 50.0)
