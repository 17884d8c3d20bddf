"""A head, real sockets and two toy nodes: its sessions go over streams, and lose nothing by it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager

import pytest
from tests.head.cluster import collect
from tests.heads import greedy, head_over
from tests.wire.echoing import LIMITS, serving

from meshnet.core.protocol.messages import ForwardRequest, Mode, Reply
from meshnet.core.vocabulary import LayerRange, NodeId, SamplingParams, SessionId
from meshnet.node.compute import ComputeThread
from meshnet.node.service import NodeService
from meshnet.node.shards import NodeLimits
from meshnet.simulation.toy_shard import ToyShard, ToyState, oracle
from meshnet.wire.stream_server import StreamServer

CUTS = (LayerRange(0, 2), LayerRange(2, 4))
PROMPT, TOKENS = (3, 1, 4), 12


class Node(NodeService[ToyState]):
    """Counts its streams, and the steps that came by stream or by request."""

    def __init__(self, layers: LayerRange, compute: ComputeThread) -> None:
        super().__init__(
            node=NodeId(str(layers)),
            pid=1,
            shards=[ToyShard(layers, layers_total=4)],
            compute=compute,
            limits=NodeLimits(kv_bytes_max=2**20),
            clock=time.monotonic,
        )
        self.streams = 0
        self.steps: list[Mode] = []
        self.loose: list[Mode] = []
        """Steps that came while no stream of their session was open."""

    def pin(self, session: SessionId) -> None:
        super().pin(session)
        self.streams += 1

    async def forward(self, request: ForwardRequest) -> Reply:
        self.steps.append(request.mode)
        if not self.pinned:
            self.loose.append(request.mode)
        return await super().forward(request)


@asynccontextmanager
async def mesh() -> AsyncIterator[tuple[list[Node], list[str]]]:
    with ExitStack() as stack:
        nodes = []
        for layers in CUTS:
            compute = ComputeThread(name=f"toy {layers}")
            stack.callback(compute.close, deadline_s=30.0)
            nodes.append(Node(layers, compute))
        async with serving(nodes[0], limits=LIMITS) as first, serving(nodes[1]) as second:
            yield nodes, [first, second]


def expected(prompt: Sequence[int] = PROMPT) -> tuple[int, ...]:
    return oracle(tuple(prompt), SamplingParams(), TOKENS, 4)


async def test_a_sessions_steps_take_one_stream_to_each_node_and_no_request():
    async with mesh() as (nodes, urls), head_over(urls) as head:
        ids, finish = await collect(head, greedy(PROMPT, TOKENS))

    assert (tuple(ids), finish.refills) == (expected(), 0)
    assert [(node.streams, node.loose) for node in nodes] == [(1, []), (1, [])]
    assert nodes[0].steps == nodes[1].steps != []


async def test_a_generation_that_is_over_leaves_no_session_and_no_stream():
    async with mesh() as (nodes, urls):
        async with head_over(urls) as head:
            await collect(head, greedy(PROMPT, TOKENS))
        left = [(node.describe().sessions, node.pinned) for node in nodes]

    assert left == [(0, 0), (0, 0)]


async def test_sessions_side_by_side_have_streams_of_their_own():
    prompts = [(index, 1, 2) for index in range(6)]
    async with mesh() as (nodes, urls), head_over(urls) as head, asyncio.TaskGroup() as group:
        running = [group.create_task(collect(head, greedy(each, TOKENS))) for each in prompts]

    assert [tuple(task.result()[0]) for task in running] == [expected(each) for each in prompts]
    assert [node.streams for node in nodes] == [6, 6]


async def test_a_stream_that_breaks_in_the_middle_costs_one_refill_over_another(
    monkeypatch: pytest.MonkeyPatch,
):
    """The node's sixth step is run and its answer is lost with the stream."""
    async with mesh() as (nodes, urls), head_over(urls) as head:
        answer = StreamServer._answer

        async def break_once(server, message, opening):  # type: ignore[no-untyped-def]
            answered = await answer(server, message, opening)
            broken = server._service is nodes[1] and len(nodes[1].steps) == 6
            return 1011 if broken else answered

        monkeypatch.setattr(StreamServer, "_answer", break_once)
        ids, finish = await collect(head, greedy(PROMPT, TOKENS))

    assert (tuple(ids), finish.refills) == (expected(), 1)
    assert [(node.streams, node.loose) for node in nodes] == [(1, []), (2, [])]


async def test_nodes_without_streams_are_served_by_requests_beside_those_with_them(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("meshnet.wire.stream_server.STREAMS_MAX", 0)
    async with mesh() as (nodes, urls), head_over(urls) as head:
        ids, finish = await collect(head, greedy(PROMPT, TOKENS))

    assert (tuple(ids), finish.refills) == (expected(), 0)
    assert [node.streams for node in nodes] == [0, 0]
    assert all(node.loose == node.steps != [] for node in nodes)
