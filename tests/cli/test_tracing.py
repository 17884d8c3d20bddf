"""Who is told of the steps of traced requests, and that others pass untouched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from meshnet.cli.passing_client import PassingClient
from meshnet.cli.settings import Settings, SettingsError
from meshnet.cli.tracing import TracedClient, spans_of
from meshnet.core.protocol.messages import Code, ForwardRequest, Mode, Refusal, Reply, TokenReply
from meshnet.core.vocabulary import HopLost, NodeId, SessionId, TraceContext
from meshnet.telemetry.events import Event, StepAsked

NODE, OTHER = NodeId("http://n:1"), NodeId("http://n:2")
TRACE = TraceContext("a" * 32, "b" * 16, True)
STEP = ForwardRequest(Mode.DECODE, SessionId("s"), 7, tokens=(1, 2), trace="r", traceparent=TRACE)
ANSWER = TokenReply(None, "", 9)


class Nodes(PassingClient):
    """Answers each step with what it was given."""

    def __init__(self, answer: Reply | HopLost) -> None:
        self.answer = answer

    async def forward(self, node: NodeId, request: ForwardRequest, timeout_s: float) -> Reply:
        if isinstance(self.answer, HopLost):
            raise self.answer
        return self.answer

    async def chain(
        self, nodes: Sequence[NodeId], request: ForwardRequest, timeout_s: float
    ) -> tuple[NodeId | None, Reply | HopLost]:
        return nodes[-1], self.answer


def client(answer: Reply | HopLost) -> tuple[TracedClient, list[Event]]:
    events: list[Event] = []
    times = iter((1.0, 3.5))
    return TracedClient(Nodes(answer), events.append, lambda: next(times)), events


def told(*nodes: NodeId, ok: bool) -> StepAsked:
    return StepAsked("decode", nodes, 2, 2.5, ok, "s", "r", TRACE)


async def test_a_traced_step_is_told_with_its_time_and_its_end():
    traced, events = client(ANSWER)
    assert await traced.forward(NODE, STEP, 1.0) == ANSWER
    assert events == [told(NODE, ok=True)]

    traced, events = client(ANSWER)
    assert await traced.chain([NODE, OTHER], STEP, 1.0) == (OTHER, ANSWER)
    assert events == [told(NODE, OTHER, ok=True)]


async def test_a_step_that_failed_is_told_as_failed():
    refused, events = client(Refusal(Code.CACHE_MISS, "gone"))
    await refused.forward(NODE, STEP, 1.0)
    assert events == [told(NODE, ok=False)]

    lost, events = client(HopLost("reset"))
    with pytest.raises(HopLost):
        await lost.forward(NODE, STEP, 1.0)
    assert events == [told(NODE, ok=False)]


@pytest.mark.parametrize("trace", [None, replace(TRACE, sampled=False)])
async def test_a_step_that_is_not_sampled_takes_no_time_of_day(trace: TraceContext | None):
    traced, events = client(ANSWER)
    step = replace(STEP, traceparent=trace)

    assert await traced.forward(NODE, step, 1.0) == ANSWER
    assert await traced.chain([NODE], step, 1.0) == (NODE, ANSWER)
    assert events == []


def test_without_a_collector_there_are_no_spans():
    assert spans_of(Settings(), role="node") is None


def test_a_collector_that_is_no_url_is_refused_with_an_example():
    with pytest.raises(SettingsError, match="trace_endpoint: expected a URL"):
        spans_of(Settings(trace_endpoint="localhost"), role="node")
