"""Pits of failing nodes and broken connections: the tokens stay those of the unsplit model."""

from __future__ import annotations

import asyncio
import random

import pytest
from tests.head.cluster import (
    LAYERS_TOTAL,
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

from meshnet.core.generation.limits import GenerationLimits, StepTimeout
from meshnet.core.protocol.messages import Code, ForwardRequest, Mode, Refusal, Reply
from meshnet.core.vocabulary import HopLost, LayerRange, NodeId, SamplingParams
from meshnet.head import FailureCode, GenerationFailed, HeadLimits
from meshnet.node.service import NodeService
from meshnet.node.shards import NodeLimits
from meshnet.simulation.loop import run
from meshnet.simulation.machine import SimCompute
from meshnet.simulation.toy_shard import ToyShard

HOT = SamplingParams(temperature=1.0, seed=5, repetition_penalty=1.3, frequency_penalty=0.2)


def forget(cluster: Cluster, node: NodeId, sent: ForwardRequest) -> None:
    """The node loses the session, as by an eviction or a restart."""
    assert sent.session is not None
    cluster.nodes[node].release(sent.session)


REFILLED = {A: {A}, B: {A, B}, C: {A, B, C}}
"""Hops that cannot shorten their sessions are filled as well if they ran the step that failed."""


@pytest.mark.parametrize("node", [A, B, C])
def test_a_session_lost_at_any_step_of_twenty_changes_no_token_and_no_count(node: NodeId):
    """Pits A13, A80 and C13: ids, usage and what was emitted are those of a quiet run."""

    async def main(at: int):
        asked = request(tokens_max=20, sampling=HOT)
        cluster = Cluster()
        step = iter(range(1000))

        async def forget_once(hop: NodeId, sent: ForwardRequest) -> None:
            if hop == node and next(step) == at:
                forget(cluster, node, sent)

        cluster.before_forward = forget_once
        async with running(cluster) as head:
            tokens, finish = await collect(head, asked)

        assert tokens == expected(asked)
        assert (finish.prompt_tokens, finish.completion_tokens) == (len(PROMPT), 20)
        assert finish.refills == 1
        refills = [each for each in cluster.forwards[3:] if each.request.mode is Mode.PREFILL]
        assert {each.node for each in refills} == REFILLED[node]
        assert all(each.request.attempt == 2 for each in refills)

    for at in range(1, 20):
        run(lambda at=at: main(at), 0)


class LosingReplies(Cluster):
    """Computes, and then loses the answer of the steps that `lost` names."""

    def __init__(self, *lost: int) -> None:
        super().__init__()
        self.lost = set(lost)

    async def forward(self, node: NodeId, request: ForwardRequest, timeout_s: float) -> Reply:
        number = len(self.forwards)
        reply = await super().forward(node, request, timeout_s)
        if number in self.lost:
            raise HopLost(f"{node}: connection closed before the answer")
        return reply


@pytest.mark.parametrize("hop", [0, 1, 2])
@pytest.mark.parametrize("step", [0, 1, 5])
def test_a_reply_lost_after_the_node_computed_costs_a_refill_and_no_token(hop: int, step: int):
    """Pits A94 and C2: the step is not sent again as it was, for the node has moved on."""

    async def main():
        asked = request(sampling=HOT)
        cluster = LosingReplies(3 * step + hop)
        async with running(cluster) as head:
            tokens, finish = await collect(head, asked)

        assert tokens == expected(asked)
        assert finish.refills == 1
        sent = [(each.node, each.request.attempt, each.request.past_length, each.request.mode)
                for each in cluster.forwards]  # fmt: skip
        assert len(set(sent)) == len(sent), "no question was asked twice"

    run(main, 0)


@pytest.mark.parametrize("lost", [B, C])
def test_a_refill_that_fails_halfway_mixes_no_old_state_with_new(lost: NodeId):
    """Pit C4: the first node has been refilled, a later one has not, and all begin anew."""

    async def main():
        asked = request(sampling=HOT)
        cluster = Cluster()
        seen = dict.fromkeys((A, B, C), 0)

        async def fault(hop: NodeId, sent: ForwardRequest) -> None:
            seen[hop] += 1
            if hop == C and seen[C] == 4:
                forget(cluster, C, sent)
            if hop == lost and sent.attempt == 2:
                raise HopLost("connection reset")

        cluster.before_forward = fault
        async with running(cluster) as head:
            tokens, finish = await collect(head, asked)

        assert tokens == expected(asked)
        assert finish.refills == 2
        last = [each.request for each in cluster.forwards][-3:]
        assert {each.attempt for each in last} == {3}

    run(main, 0)


class Failing(Cluster):
    """Every step is answered with 500 by a given chance, computed or not."""

    def __init__(self, chance: float) -> None:
        super().__init__()
        self.chance, self.rng = chance, random.Random(1)

    async def forward(self, node: NodeId, request: ForwardRequest, timeout_s: float) -> Reply:
        if self.rng.random() < self.chance / 2:
            return Refusal(Code.INTERNAL, "oops")
        reply = await super().forward(node, request, timeout_s)
        return reply if self.rng.random() >= self.chance / 2 else Refusal(Code.INTERNAL, "oops")


def test_a_node_that_fails_one_step_in_ten_fails_hardly_any_request():
    """Pit A81: of a hundred requests 99 are right, the hundredth an error, none is wrong."""

    async def main():
        failures: list[FailureCode] = []
        cluster = Failing(0.1)
        async with running(cluster) as head:
            for number in range(100):
                asked = request((number % 30, 7), tokens_max=6)
                try:
                    tokens, _ = await collect(head, asked)
                except GenerationFailed as error:
                    failures.append(error.code)
                else:
                    assert tokens == expected(asked)
            refills = head.counters.refills.total()

        assert failures in ([], [FailureCode.UPSTREAM])
        assert 0 < refills <= 2 * 100 * 6

    run(main, 0)


def test_a_long_prompt_may_take_long_and_a_hanging_token_may_not():
    """Pit A82: a step's time is a base and a part per position, not one number for all."""

    async def main():
        prompt = tuple(number % 30 for number in range(2000))
        limits = HeadLimits(
            generation=GenerationLimits(
                prefill_chunk=4096, step=StepTimeout(base_s=2.0, per_token_s=0.01)
            )
        )
        cluster = Cluster()
        hung: list[float] = []

        async def slow(hop: NodeId, sent: ForwardRequest) -> None:
            if sent.past_length == len(prompt) + 2 and hop == B and not hung:
                hung.append(asyncio.get_running_loop().time())
                await asyncio.get_running_loop().create_future()
            await asyncio.sleep(0.005 * len(sent.tokens))

        cluster.before_forward = slow
        async with running(cluster, limits=limits) as head:
            tokens, finish = await collect(head, request(prompt, tokens_max=6))
            resumed_at = asyncio.get_running_loop().time()

        assert tokens == expected(request(prompt, tokens_max=6))
        assert finish.refills == 1, "the prefill of ten seconds a hop was in time"
        refill_s = 3 * 0.005 * (len(prompt) + 3)
        assert resumed_at - hung[0] < 2.1 + refill_s + 1.0

    run(main, 0)


def test_a_node_whose_clock_is_an_hour_off_serves_like_any_other():
    """Pits A83 and C8: no peer's clock is ever compared with another's."""

    async def main():
        cluster = Cluster()
        time = asyncio.get_running_loop().time
        for node, offset in ((A, 3600.0), (C, 86_400.0)):
            cluster.nodes[node] = NodeService(
                node=node,
                pid=1,
                shards=[ToyShard(LayerRange(0, 2) if node == A else LayerRange(4, 6),
                                 layers_total=LAYERS_TOTAL)],
                compute=SimCompute(random.Random(0), step_max_s=0.002),
                limits=NodeLimits(kv_bytes_max=2**30),
                clock=lambda offset=offset: time() + offset,
            )  # fmt: skip
        async with running(cluster) as head:
            tokens, finish = await collect(head, request())

        assert tokens == expected(request())
        assert finish.refills == 0

    run(main, 0)


def test_every_layer_runs_once_a_token_though_nodes_overlap():
    """Pit A90: the route is an exact cover; nobody runs what another runs."""

    async def main():
        spans = {A: LayerRange(0, 4), B: LayerRange(1, 5), C: LayerRange(2, 6)}
        cluster = Cluster(spans)
        async with running(cluster) as head:
            tokens, _ = await collect(head, request())

        assert tokens == expected(request())
        ran: dict[int, list[int]] = {}
        for each in cluster.forwards:
            assert each.request.layers is not None
            layers = range(each.request.layers.start, each.request.layers.stop)
            ran.setdefault(each.request.past_length, []).extend(layers)
        assert len(ran) == len(tokens)
        assert all(layers == list(range(LAYERS_TOTAL)) for layers in ran.values())

    run(main, 0)


def test_an_old_tail_is_never_answered_by_a_refill_loop():
    """Pits C10 and C11: prefill by prefill, no miss, no refill, the tokens of the model."""

    async def main():
        cluster = Cluster(old=frozenset({C}))
        async with running(cluster) as head:
            tokens, finish = await collect(head, request())
            refills = head.counters.refills.total()

        assert tokens == expected(request())
        assert (finish.refills, refills) == (0, 0)
        assert cluster.modes() == [Mode.PREFILL] * 3 * len(tokens)

    run(main, 0)


def test_a_node_that_stops_caching_midway_ends_caching_on_its_whole_route():
    """Pit C14: two nodes cache, one has found out that it cannot; no miss loop follows."""

    async def main():
        cluster = Cluster()
        step = iter(range(1000))

        async def stop_caching(hop: NodeId, sent: ForwardRequest) -> None:
            if hop == B and next(step) == 3:
                cluster._cacheless = frozenset({B})
                cluster.boot(B)

        cluster.before_forward = stop_caching
        async with running(cluster) as head:
            tokens, finish = await collect(head, request())

        assert tokens == expected(request())
        assert finish.refills == 1
        assert set(cluster.modes()[-9:]) == {Mode.STATELESS}

    run(main, 0)


def test_a_range_nobody_loaded_is_named_and_served_once_another_node_has_it():
    """Pit A108: a node that failed to load is on no route; a later one with its layers is."""

    async def main():
        spare = NodeId("spare")
        spans = {A: LayerRange(0, 2), B: LayerRange(2, 4), C: LayerRange(4, 6)}
        cluster = Cluster({**spans, spare: LayerRange(2, 4)})
        failed = cluster.nodes[B]
        assert isinstance(failed, NodeService)
        failed.ready = False
        cluster.down.add(spare)
        async with running(cluster) as head:
            assert not head.ready
            assert "2-4" in str(head.directory.route(head.model))
            cluster.boot(spare)
            started = asyncio.get_running_loop().time()
            tokens, finish = await collect(head, request())

        assert tokens == expected(request())
        assert [hop.node for hop in finish.hops] == [A, spare, C]
        assert asyncio.get_running_loop().time() - started < 5.0

    run(main, 0)


def test_streams_of_a_dead_node_go_on_over_its_replica():
    """Pit A78: eight streams, one node of two dies under them, and the head serves on."""

    async def main():
        one, two = NodeId("one"), NodeId("two")
        cluster = Cluster({one: LayerRange(0, 6), two: LayerRange(0, 6)}, sessions_max=8)
        died = asyncio.Event()

        async def die(hop: NodeId, sent: ForwardRequest) -> None:
            if hop == one and sent.past_length >= len(PROMPT) + 4:
                cluster.down.add(one)
                died.set()
            await asyncio.sleep(0.001)

        cluster.before_forward = die
        asked = [request((number, 2, 3, 4, 5), tokens_max=20) for number in range(8)]
        async with running(cluster) as head:
            async with asyncio.TaskGroup() as tasks:
                chats = [tasks.create_task(collect(head, each)) for each in asked]
            refills = [chat.result()[1].refills for chat in chats]
            after, _ = await collect(head, request())

        assert after == expected(request())
        assert died.is_set()
        assert [chat.result()[0] for chat in chats] == [expected(each) for each in asked]
        assert max(refills) == 1

    run(main, 0)


def test_a_stream_that_cannot_go_on_ends_with_one_error_in_its_time():
    """Pits A60 and A78: the tail never returns; the others free the session by themselves."""

    async def main():
        cluster = Cluster()
        cluster.hints_are_lost = True

        async def die_after_a_token(hop: NodeId, sent: ForwardRequest) -> None:
            if sent.mode is Mode.DECODE:
                cluster.down.add(C)

        cluster.before_forward = die_after_a_token
        async with running(cluster) as head:
            with pytest.raises(GenerationFailed) as failed:
                await collect(head, request(tokens_max=50, deadline_s=30.0))
            assert asyncio.get_running_loop().time() < 31.0
            assert cluster.sessions() == 3
            await asyncio.sleep(601.0)

        assert failed.value.code in (FailureCode.NO_ROUTE, FailureCode.UPSTREAM)
        assert cluster.sessions() == 0

    run(main, 0)
