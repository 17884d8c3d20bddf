"""Generations over real node services: right tokens whatever happens to the nodes."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest
from tests.head.cluster import (
    PROMPT,
    A,
    B,
    C,
    Cluster,
    collect,
    expected,
    request,
    running,
)

from meshnet.core.generation.limits import AdmissionLimits, GenerationLimits
from meshnet.core.generation.transcript import FinishReason, RefillReason
from meshnet.core.protocol.messages import ForwardRequest, Mode
from meshnet.core.vocabulary import HopLost, LayerRange, NodeId, SamplingParams
from meshnet.head import (
    FailureCode,
    GenerationFailed,
    HeadLimits,
    TokenEvent,
)
from meshnet.node.service import NodeService
from meshnet.simulation.loop import run
from meshnet.telemetry.events import Event, GenerationFinished


def test_three_nodes_generate_what_the_unsplit_model_does():
    async def main():
        cluster = Cluster()
        async with running(cluster) as head:
            tokens, finish = await collect(head, request())

        assert tokens == expected(request())
        assert finish.reason is FinishReason.LENGTH
        assert (finish.prompt_tokens, finish.completion_tokens) == (len(PROMPT), 8)
        assert (finish.prefills, finish.refills) == (1, 0)
        assert cluster.modes() == [Mode.PREFILL] * 3 + [Mode.DECODE] * 3 * 7
        assert len({asked.request.session for asked in cluster.forwards}) == 1

    run(main, 0)


def test_a_stop_id_ends_the_answer_and_is_its_last_token():
    async def main():
        stop = expected(request())[3]
        asked = request(stop_ids=(stop,))
        async with running(Cluster()) as head:
            tokens, finish = await collect(head, asked)

        assert tokens == expected(asked)
        assert tokens[-1] == stop
        assert finish.reason is FinishReason.STOP

    run(main, 0)


def test_the_finish_tells_what_each_hop_did():
    async def main():
        async with running(Cluster()) as head:
            _, finish = await collect(head, request(tokens_max=4))

        assert [(hop.node, hop.steps) for hop in finish.hops] == [(A, 4), (B, 4), (C, 4)]
        assert [hop.layers for hop in finish.hops] == [
            LayerRange(0, 2),
            LayerRange(2, 4),
            LayerRange(4, 6),
        ]
        rows = len(PROMPT) + 3
        assert [hop.bytes_in for hop in finish.hops] == [8 * rows, 8 * rows, 0]
        assert finish.ttft_s is not None
        assert 0.0 < finish.ttft_s < finish.duration_s

    run(main, 0)


def test_chunks_draw_the_same_tokens_as_one_prefill():
    async def main():
        asked = request(tuple(range(20)))
        limits = HeadLimits(generation=GenerationLimits(prefill_chunk=7))
        cluster = Cluster()
        async with running(cluster, limits=limits) as head:
            tokens, _ = await collect(head, asked)

        assert tokens == expected(asked)
        first_hop = [len(each.request.tokens) for each in cluster.forwards if each.node == A]
        assert first_hop[:4] == [7, 7, 6, 1]

    run(main, 0)


@pytest.mark.parametrize("node", [A, B, C])
@pytest.mark.parametrize("at", [1, 4, 7])
def test_a_forgotten_session_costs_one_refill_under_the_same_id(node: NodeId, at: int):
    """Pit A80."""

    async def main():
        asked = request(sampling=SamplingParams(temperature=1.0, seed=5, repetition_penalty=1.3))
        cluster = Cluster()
        step = iter(range(1000))

        async def forget_once(hop: NodeId, sent: ForwardRequest) -> None:
            if hop == node and next(step) == at:
                service = cluster.nodes[node]
                assert sent.session is not None
                assert isinstance(service, NodeService)
                service.release(sent.session)

        cluster.before_forward = forget_once
        async with running(cluster) as head:
            tokens, finish = await collect(head, asked)
            refills = head.counters.refills

        assert tokens == expected(asked)
        assert finish.refills == 1
        assert refills == {RefillReason.MISS: 1}
        assert len({each.request.session for each in cluster.forwards}) == 1

    run(main, 0)


@pytest.mark.parametrize("node", [A, B, C])
def test_a_node_that_dies_and_restarts_interrupts_nothing(node: NodeId):
    async def main():
        cluster = Cluster()
        step = iter(range(1000))

        async def die_once(hop: NodeId, sent: ForwardRequest) -> None:
            if hop == node and next(step) == 3:
                cluster.down.add(node)
                asyncio.get_running_loop().call_later(4.0, cluster.boot, node)
                raise HopLost("connection reset")

        cluster.before_forward = die_once
        async with running(cluster) as head:
            tokens, finish = await collect(head, request())

        assert tokens == expected(request())
        assert finish.refills == 1
        assert 4.0 < finish.duration_s < 6.0

    run(main, 0)


def test_a_spare_node_takes_over_from_a_dead_one():
    async def main():
        spare = NodeId("spare")
        layers = {A: LayerRange(0, 3), B: LayerRange(3, 6), spare: LayerRange(2, 6)}
        cluster = Cluster(layers)
        step = iter(range(1000))

        async def die(hop: NodeId, sent: ForwardRequest) -> None:
            if hop == B and next(step) == 3:
                cluster.down.add(B)
            if hop == B and B in cluster.down:
                raise HopLost("connection refused")

        cluster.before_forward = die
        async with running(cluster) as head:
            tokens, finish = await collect(head, request())

        assert tokens == expected(request())
        assert [hop.node for hop in finish.hops] == [A, B, spare]

    run(main, 0)


def test_an_old_middle_node_costs_prefills_and_no_wrong_token():
    async def main():
        cluster = Cluster(old=frozenset({B}))
        async with running(cluster) as head:
            tokens, _ = await collect(head, request())

        assert tokens == expected(request())
        assert set(cluster.modes()) == {Mode.PREFILL}

    run(main, 0)


def test_an_old_tail_costs_prefills_and_no_wrong_token():
    """Pit C10."""

    async def main():
        cluster = Cluster(old=frozenset({C}))
        async with running(cluster) as head:
            tokens, finish = await collect(head, request())

        assert tokens == expected(request())
        assert finish.prefills == len(tokens)

    run(main, 0)


def test_a_node_that_cannot_cache_makes_the_route_stateless():
    """Pit A71."""

    async def main():
        cluster = Cluster(cacheless=frozenset({B}))
        async with running(cluster) as head:
            tokens, _ = await collect(head, request())
            counters = head.counters

        assert tokens == expected(request())
        assert set(cluster.modes()) == {Mode.STATELESS}
        assert cluster.reserves == []
        assert (counters.holds, counters.releases) == (0, 0)

    run(main, 0)


def test_a_hop_that_hangs_ends_with_the_requests_deadline():
    async def main():
        cluster = Cluster()

        async def hang(hop: NodeId, sent: ForwardRequest) -> None:
            if hop == B:
                await asyncio.get_running_loop().create_future()

        cluster.before_forward = hang
        async with running(cluster) as head:
            with pytest.raises(GenerationFailed) as failed:
                await collect(head, request(deadline_s=3.0))
            at = asyncio.get_running_loop().time()

        assert failed.value.code is FailureCode.TIMEOUT
        assert at == pytest.approx(3.0, abs=0.01)
        assert cluster.in_flight == 0

    run(main, 0)


def test_a_missing_layer_range_is_named_when_no_route_comes_up():
    async def main():
        cluster = Cluster({A: LayerRange(0, 2), C: LayerRange(4, 6)})
        limits = HeadLimits(admission=AdmissionLimits(route_wait_s=2.0))
        async with running(cluster, limits=limits) as head:
            assert not head.ready
            with pytest.raises(GenerationFailed) as failed:
                await collect(head, request())

        assert failed.value.code is FailureCode.NO_ROUTE
        assert "2-4" in str(failed.value)

    run(main, 0)


def test_a_node_that_comes_up_in_time_serves_a_request_that_came_too_early():
    async def main():
        cluster = Cluster()
        cluster.down.add(B)
        asyncio.get_running_loop().call_later(3.0, cluster.boot, B)
        async with running(cluster) as head:
            tokens, finish = await collect(head, request())

        assert tokens == expected(request())
        assert finish.ttft_s is not None
        assert finish.ttft_s > 3.0

    run(main, 0)


def test_a_slow_consumer_slows_its_generation_and_loses_nothing():
    async def main():
        asked = request(tokens_max=3)
        seen: list[int] = []
        cluster = Cluster()
        async with running(cluster) as head, aclosing(head.generate(asked)) as items:
            async for item in items:
                if isinstance(item, TokenEvent):
                    seen.append(item.token.token_id)
                await asyncio.sleep(60.0)

        assert tuple(seen) == expected(asked)
        assert len(cluster.forwards) == 3 * 3

    run(main, 0)


def test_telemetry_hears_of_start_first_token_and_end():
    async def main():
        cluster = Cluster()
        told: list[Event] = []
        async with running(cluster, record=told.append) as head:
            await collect(head, request(tokens_max=3))

        kinds = [type(event).__name__ for event in told]
        assert kinds == [
            "GenerationAsked",
            "GenerationStarted",
            "FirstToken",
            "GenerationFinished",
        ]
        last = told[-1]
        assert isinstance(last, GenerationFinished)
        assert (last.outcome, last.tokens, last.refills, last.session) == ("length", 3, 0, "h-0")

    run(main, 0)


def test_an_error_in_the_heads_context_reaches_the_caller_as_itself():
    async def main():
        cluster = Cluster(cacheless=frozenset({B}))
        cluster.before_forward = refuse
        with pytest.raises(GenerationFailed):
            async with running(cluster) as head, head.directory:
                await collect(head, request(deadline_s=1.0))

    async def refuse(hop: NodeId, sent: ForwardRequest) -> None:
        raise HopLost("connection refused")

    run(main, 0)
