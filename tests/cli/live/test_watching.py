"""What the feed is told of steps and nodes."""

from __future__ import annotations

import asyncio
import types
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from meshnet.cli.composition import Composition
from meshnet.cli.live.endpoint import Live
from meshnet.cli.live.feed import Feed
from meshnet.cli.live.mesh import MeshWatch
from meshnet.cli.live.steps import SessionNumbers, WatchedClient
from meshnet.cli.live.wording import happening_of
from meshnet.cli.passing_client import PassingClient
from meshnet.core.protocol.messages import ForwardRequest, Mode, Reply, TokenReply
from meshnet.core.vocabulary import (
    Drawn,
    HopLost,
    ModelId,
    NodeDescription,
    NodeId,
    SampledToken,
    SessionId,
)
from meshnet.gateway.ports import Readiness
from meshnet.head import Directory
from meshnet.head.counters import HeadCounters
from meshnet.telemetry.events import (
    ChildDied,
    GatewayAnswered,
    GenerationFinished,
    GenerationStarted,
    MemberSeen,
    Refilled,
    ShardAway,
)
from meshnet.telemetry.pace import Pace
from meshnet.wire.in_process import InProcessHopClient

NODE = NodeId("http://10.0.0.2:9001")
TOLD = NodeDescription(NODE, 1, 7, True, (), 1, 8, 10, 100, 0.5, 10)
STEP = ForwardRequest(Mode.DECODE, SessionId("a-secret"), 5, tokens=(1,))
REPLY = TokenReply(Drawn((SampledToken(3),)), "x", 6, compute_us=2500)


class Nodes(PassingClient):
    """Nodes that answer what the test says; None: they are lost."""

    def __init__(self) -> None:
        super().__init__(InProcessHopClient({}))
        self.description: NodeDescription | None = TOLD
        self.reply: Reply | None = REPLY

    async def forward(self, node: NodeId, request: ForwardRequest, timeout_s: float) -> Reply:
        if self.reply is None:
            raise HopLost("gone")
        return self.reply

    async def chain(self, nodes: Any, request: ForwardRequest, timeout_s: float) -> Any:
        return nodes[-1], self.reply or HopLost("gone")

    async def describe(self, node: NodeId, timeout_s: float) -> NodeDescription:
        if self.description is None:
            raise HopLost("gone")
        return self.description


async def told(client: WatchedClient, feed: Feed, *, chained: bool) -> list[Any]:
    async with aclosing(feed.follow()) as followed, asyncio.timeout(30):
        await anext(followed)
        if chained:
            await client.chain([NodeId("a"), NODE], STEP, 1.0)
        else:
            await client.forward(NODE, STEP, 1.0)
        return list((await anext(followed))["steps"])


@pytest.mark.parametrize("chained", [False, True])
async def test_a_step_is_told_with_its_hops_and_times_and_without_its_secret(chained: bool):
    """Whoever knows a session's id could extend it, so nobody who watches does."""
    feed = Feed(lambda: 0.0)
    times = iter([1.0, 1.02])
    client = WatchedClient(Nodes(), feed, SessionNumbers(), lambda: next(times))

    (step,) = await told(client, feed, chained=chained)

    assert step["nodes"] == (["a", NODE] if chained else [NODE])
    assert (step["ms"], step["compute_ms"], step["tokens"]) == (20.0, 2.5, 1)
    assert (step["positions"], step["ok"], step["answer"]) == (1, True, 1)
    assert "a-secret" not in str(step)


async def test_a_step_that_was_lost_is_told_as_such_and_stays_lost():
    feed, nodes = Feed(lambda: 0.0), Nodes()
    nodes.reply = None
    client = WatchedClient(nodes, feed, SessionNumbers(), lambda: 0.0)

    (step,) = await told(client, feed, chained=True)

    assert (step["ok"], step["compute_ms"]) == (False, None)
    async with aclosing(feed.follow()) as followed:
        await anext(followed)
        with pytest.raises(HopLost):
            await client.forward(NODE, STEP, 1.0)


def watch(nodes: Nodes, feed: Feed, clock: Any) -> MeshWatch:
    directory = Directory(nodes, [NODE], clock=clock)
    parts: dict[str, Any] = dict.fromkeys(("text", "drain"))
    head = types.SimpleNamespace(counters=HeadCounters(), waiting=0)
    links = types.SimpleNamespace(links=())
    composition = Composition(
        **parts,
        model=ModelId("m"),
        client=nodes,
        directory=directory,
        head=head,  # type: ignore[arg-type]
        names={NODE: "node-1"},
        links=links,  # type: ignore[arg-type]
    )
    return MeshWatch(composition, lambda: Readiness(True), Pace(), feed, clock)


async def test_a_node_that_falls_silent_stays_in_the_picture_and_watching_moves_no_route():
    times = iter(range(100))
    nodes, feed = Nodes(), Feed(lambda: 0.0)
    watching = watch(nodes, feed, lambda: float(next(times)))

    await watching.look()
    nodes.description = replace(TOLD, steps=20, compute_s=0.6)
    (lane,) = (await watching.look())["nodes"]
    assert (lane["step_ms"], lane["kv_bytes"]) == (10.0, 10)

    nodes.description = None
    (lane,) = (await watching.look())["nodes"]
    assert (lane["state"], lane["kv_bytes"]) == ("silent", 10)
    nodes.description = TOLD
    await watching.look()

    async with aclosing(feed.follow()) as followed:
        happenings = (await anext(followed))["happenings"]
    assert [each["text"] for each in happenings] == [
        "node-1 does not answer",
        "node-1 answers again",
    ]


def test_what_happened_is_told_in_words():
    numbers = SessionNumbers()
    events = [
        GenerationStarted("s", None, 3, 51),
        Refilled("lost", "s", 2, positions=60, partial=True),
        GenerationFinished("stop", 20, 1, 2.04, "s"),
        GenerationFinished("cancelled", 1, 0, 2.0, "t"),
        ChildDied("node-2", 7, -9, 0.2),
        ShardAway("node-3", "http://c:9001", "its machine died"),
        MemberSeen("http://b:9001", "left"),
    ]

    assert [getattr(happening_of(event, numbers), "text", None) for event in events] == [
        "Answer 1 begins: 51 tokens of prompt, 3 hops",
        "Answer 1 recovers (lost): 60 positions again, by the hops that lost it",
        "Answer 1 is done: 20 tokens in 2.0 s, 1 recovery",
        "Answer 2 stopped after 1 token",
        "node-2 died (signal 9); starts again in 0.2 s",
        "node-3 is away: its machine died",
        "b:9001 left",
    ]


def test_requests_and_steps_are_no_happenings():
    live = Live(lambda: 0.0)

    live.record(GatewayAnswered("GET", "/mesh", 200, 0.1, "r"))

    assert not live.feed.followed
    assert happening_of(GatewayAnswered("GET", "/", 200, 0.1, "r"), SessionNumbers()) is None
