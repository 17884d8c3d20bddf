"""What a head tells of its generations, from the call to the end."""

from __future__ import annotations

import pytest
from tests.head.cluster import LAYERS, A, B, C, Cluster, collect, expected, request, running

from meshnet.core.protocol.messages import ForwardRequest
from meshnet.core.vocabulary import HopLost, NodeId
from meshnet.head import GenerationFailed
from meshnet.simulation.loop import run
from meshnet.telemetry.events import (
    Event,
    FailedOver,
    FirstToken,
    GenerationAsked,
    GenerationFinished,
    GenerationStarted,
    Recovered,
    Refilled,
)

SPARE = NodeId("b2")


def test_a_quiet_generation_is_asked_started_seen_and_finished():
    async def main():
        events: list[Event] = []
        async with running(Cluster(), record=events.append) as head:
            await collect(head, request(tokens_max=4))

        assert [type(each) for each in events] == [
            GenerationAsked,
            GenerationStarted,
            FirstToken,
            GenerationFinished,
        ]
        _, started, first, ended = events
        assert isinstance(started, GenerationStarted)
        assert isinstance(first, FirstToken)
        assert isinstance(ended, GenerationFinished)
        assert ended.queue_s == started.queue_s
        assert 0 < started.queue_s < first.ttft_s < ended.duration_s
        assert ended.steps == 3 * 4  # a prompt and three tokens, over three hops
        assert 0 < ended.waited_s < ended.duration_s

    run(main, 0)


def test_a_lost_hop_is_told_as_failover_refill_and_recovery():
    async def main():
        events: list[Event] = []
        cluster = Cluster({A: LAYERS[A], B: LAYERS[B], SPARE: LAYERS[B], C: LAYERS[C]})
        victim: list[NodeId] = []

        async def die(node: NodeId, sent: ForwardRequest) -> None:
            if node in (B, SPARE) and sent.past_length == 7 and not victim:
                victim.append(node)
                cluster.down.add(node)
                raise HopLost("reset")

        cluster.before_forward = die
        async with running(cluster, record=events.append) as head:
            tokens, _ = await collect(head, request(tokens_max=6))

        assert tokens == expected(request(tokens_max=6))
        told = [e for e in events if isinstance(e, FailedOver | Refilled | Recovered)]
        failed, refilled, recovered = told
        assert isinstance(failed, FailedOver)
        assert isinstance(refilled, Refilled)
        assert isinstance(recovered, Recovered)
        assert failed.node == victim[0]
        assert recovered.reason == refilled.reason
        assert recovered.duration_s > 0

    run(main, 0)


def test_a_generation_without_a_place_ends_without_having_started():
    async def main():
        events: list[Event] = []
        cluster = Cluster(sessions_max=1)
        async with running(cluster, record=events.append) as head:
            cluster.down.update((A, B, C))
            with pytest.raises(GenerationFailed):
                await collect(head, request(deadline_s=1.0))

        kinds = [type(each) for each in events]
        assert kinds == [GenerationAsked, GenerationFinished]
        assert isinstance(events[-1], GenerationFinished)
        assert events[-1].queue_s is None

    run(main, 0)
