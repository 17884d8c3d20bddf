"""Steps that nodes hand on to each other, over real sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest
from tests.wire.echoing import LIMITS, TAIL, EchoService, activation, serving

from meshnet.core.protocol.limits import STEPS_OUT_MAX
from meshnet.core.protocol.messages import (
    ActivationReply,
    Code,
    ForwardRequest,
    Mode,
    Refusal,
    TokenReply,
)
from meshnet.core.vocabulary import (
    WIRE_VERSION,
    Drawn,
    Hop,
    HopLost,
    LayerRange,
    NodeId,
    SampledToken,
    SessionId,
    TraceContext,
)
from meshnet.wire.http_client import HttpHopClient
from meshnet.wire.stream_peers import Peers, PeerStreams

IDS = tuple(NodeId(name) for name in ("first", "middle", "last"))
RANGES = (LayerRange(0, 4), LayerRange(4, 8), TAIL)
S = SessionId("s")


@dataclass
class Mesh:
    services: list[EchoService]
    urls: dict[NodeId, str]
    head: HttpHopClient
    stops: list[AsyncExitStack] = field(default_factory=list)


@asynccontextmanager
async def three(*, unknown: bool = False) -> AsyncIterator[Mesh]:
    """Three nodes, of which each knows the ones behind it, and a head with streams to all."""
    urls: dict[NodeId, str] = {}
    services = [EchoService() for _ in IDS]
    async with AsyncExitStack() as stack:
        stops = []
        for node, service in reversed(list(zip(IDS, services, strict=True))):
            stop = await stack.enter_async_context(AsyncExitStack())
            peers = Peers({} if unknown else dict(urls))
            urls[node] = await stop.enter_async_context(serving(service, peers=peers))
            stops.insert(0, stop)
        head = await stack.enter_async_context(HttpHopClient(urls, limits=LIMITS))
        for node in IDS:
            await head.describe(node, timeout_s=10)
        yield Mesh(services, urls, head, stops)


def step(past_length: int = 17, token: int = 42) -> ForwardRequest:
    hops = tuple(Hop(node, layers) for node, layers in zip(IDS, RANGES, strict=True))
    return ForwardRequest(
        Mode.DECODE,
        S,
        past_length,
        layers=RANGES[0],
        tokens=(token,),
        activation=activation(1),
        wire=WIRE_VERSION,
        route=hops[1:],
        deadline_ms=9000,
        stages=3,
    )


async def test_a_step_goes_from_node_to_node_and_the_last_one_answers_the_head():
    async with three() as mesh:
        ends = [await mesh.head.chain(IDS, step(17 + at, 40 + at), 10) for at in range(3)]

    assert ends == [
        (IDS[2], TokenReply(Drawn((SampledToken(40 + at),)), "é", 18 + at)) for at in range(3)
    ]
    for service, layers in zip(mesh.services, RANGES, strict=True):
        assert [asked.layers for asked in service.seen] == [layers] * 3
        assert [asked.past_length for asked in service.seen] == [17, 18, 19]
        assert all(asked.activation == activation(1) for asked in service.seen)
    assert [len(service.seen[0].route) for service in mesh.services] == [2, 1, 0]


async def test_the_trace_of_a_step_goes_with_it_over_all_nodes():
    trace = TraceContext("a" * 32, "b" * 16, True)
    async with three() as mesh:
        await mesh.head.chain(IDS, replace(step(), traceparent=trace), 10)

    assert [service.seen[0].traceparent for service in mesh.services] == [trace] * 3


async def test_steps_asked_one_after_the_other_go_in_that_order_also_while_streams_open():
    async with three() as mesh, asyncio.TaskGroup() as tasks:
        chunks = [
            tasks.create_task(mesh.head.chain(IDS, step(17 + at, 40 + at), 10)) for at in range(6)
        ]

    assert [chunk.result()[0] for chunk in chunks] == [IDS[2]] * 6
    for service in mesh.services:
        assert [asked.past_length for asked in service.seen] == [17, 18, 19, 20, 21, 22]


async def test_a_prompt_goes_from_node_to_node_too():
    prefill = replace(step(0), mode=Mode.PREFILL, want_token=False)
    async with three() as mesh:
        end = await mesh.head.chain(IDS, prefill, 10)

    assert isinstance(end[1], TokenReply)
    assert [asked.mode for service in mesh.services for asked in service.seen] == [Mode.PREFILL] * 3
    assert not mesh.services[2].seen[0].want_token


async def test_a_way_that_ends_in_the_middle_ends_with_its_activation():
    async with three() as mesh:
        short = replace(step(), route=step().route[:1])
        node, end = await mesh.head.chain(IDS[:2], short, 10)

    assert (node, end) == (IDS[1], ActivationReply(activation(1), 18, 5))
    assert not mesh.services[2].seen


async def test_a_step_given_up_ends_the_streams_of_all_its_hops():
    async with three() as mesh:
        await mesh.head.chain(IDS, step(), 10)
        last = mesh.services[2]
        last.go_on = asyncio.Event()
        last.arrived.clear()
        async with asyncio.TaskGroup() as tasks:
            given_up = tasks.create_task(mesh.head.chain(IDS, step(18), 10))
            await last.arrived.wait()
            given_up.cancel()
        last.go_on.set()
        async with asyncio.timeout(10):
            while any(service.pins[S] for service in mesh.services):  # noqa: ASYNC110  # no event
                await asyncio.sleep(0)


async def test_each_node_tells_how_far_a_session_got():
    async with three() as mesh:
        await mesh.head.chain(IDS, step(), 10)
        told = [await mesh.head.session(node, S, 10) for node in IDS]
        unknown = await mesh.head.session(IDS[0], SessionId("other"), 10)
        await mesh.stops[1].aclose()
        with pytest.raises(HopLost):
            await mesh.head.session(IDS[1], S, 10)

    assert [each.length for each in told if each is not None] == [18] * 3
    assert unknown is None


async def test_deadlines_shrink_along_the_way():
    async with three() as mesh:
        mesh.services[0].go_on = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(mesh.head.chain(IDS, step(), 10))
            await mesh.services[0].arrived.wait()
            await asyncio.get_running_loop().run_in_executor(None, lambda: None)
            mesh.services[0].go_on.set()

    left = [service.seen[0].deadline_ms for service in mesh.services]
    assert left[0] == 9000
    assert left == sorted(left, reverse=True)


async def test_a_release_by_the_head_ends_the_streams_between_the_nodes_too():
    async with three() as mesh:
        await mesh.head.chain(IDS, step(), 10)
        assert [service.pins[S] for service in mesh.services] == [1, 2, 2]
        for node in IDS:
            await mesh.head.release(node, S, timeout_s=10)
        async with asyncio.timeout(10):
            while any(service.pins[S] for service in mesh.services):  # noqa: ASYNC110  # no event
                await asyncio.sleep(0)


async def test_nodes_open_their_streams_to_each_other_before_a_step_comes():
    async with three() as mesh:
        mesh.services[0].go_on = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(mesh.head.chain(IDS, step(), 10))
            await mesh.services[0].arrived.wait()
            async with asyncio.timeout(10):
                while [each.pins[S] for each in mesh.services] != [1, 2, 2]:  # noqa: ASYNC110
                    await asyncio.sleep(0)
            mesh.services[0].go_on.set()

    assert [len(service.seen) for service in mesh.services] == [1, 1, 1]


async def test_a_node_dials_nobody_it_was_not_told_of():
    async with three(unknown=True) as mesh:
        node, end = await mesh.head.chain(IDS, step(), 10)

    assert node == IDS[0]
    assert isinstance(end, Refusal)
    assert (end.code, end.message) == (Code.HOP_FAILED, "middle: none of this node's peers")
    assert not mesh.services[1].seen


async def test_a_refusal_half_way_comes_from_the_node_that_refused():
    async with three() as mesh:
        mesh.services[1].forward = refuse  # type: ignore[method-assign]
        end = await mesh.head.chain(IDS, step(), 10)
        assert end == (IDS[1], Refusal(Code.OUT_OF_MEMORY, "no memory", 0.5))

    assert not mesh.services[2].seen


async def refuse(request: ForwardRequest) -> Refusal:
    return Refusal(Code.OUT_OF_MEMORY, "no memory", 0.5)


async def test_a_node_that_is_gone_is_named_while_the_step_is_on_its_way():
    async with three() as mesh:
        await mesh.head.chain(IDS, step(), 10)
        mesh.services[0].go_on = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(mesh.head.chain(IDS, step(18), 10))
            await mesh.stops[1].aclose()
            node, end = await asking
            mesh.services[0].go_on.set()

    assert node == IDS[1]
    assert isinstance(end, HopLost)


async def test_a_late_answer_to_a_step_given_up_is_not_taken_for_that_of_the_next():
    async with three() as mesh:
        await mesh.head.chain(IDS, step(), 10)
        last = mesh.services[2]
        last.go_on = asyncio.Event()
        last.arrived.clear()
        async with asyncio.TaskGroup() as tasks:
            given_up = tasks.create_task(mesh.head.chain(IDS, step(18, 1), 10))
            await last.arrived.wait()
            given_up.cancel()
        last.go_on.set()
        last.go_on = None

        end = await mesh.head.chain(IDS, step(18, 2), 10)

    assert end == (IDS[2], TokenReply(Drawn((SampledToken(2),)), "é", 19))


@pytest.mark.parametrize(
    "route",
    [
        (Hop(IDS[1], RANGES[1]), Hop(IDS[1], RANGES[2])),
        (Hop(IDS[1], RANGES[1]), Hop(IDS[2], LayerRange(9, 10))),
        tuple(Hop(NodeId(f"n{at}"), LayerRange(at + 4, at + 5)) for at in range(65)),
    ],
    ids=["a circle", "a gap", "too long"],
)
async def test_a_way_that_cannot_be_right_is_refused_at_once(route: tuple[Hop, ...]):
    async with three() as mesh:
        node, end = await mesh.head.chain(IDS, replace(step(), route=route), 10)

    assert node == IDS[0]
    assert isinstance(end, Refusal)
    assert end.code is Code.BAD_REQUEST
    assert not mesh.services[0].seen


async def test_a_ninth_step_of_a_session_waits_until_one_before_it_ended():
    """Whether those before it are still wanted or were overtaken: it is what is out that counts."""
    async with three() as mesh, asyncio.TaskGroup() as tasks:
        await mesh.head.chain(IDS, step(), 10)
        first, last = mesh.services[0], mesh.services[2]
        last.go_on = asyncio.Event()
        asked = [tasks.create_task(mesh.head.chain(IDS, step(18 + at), 10)) for at in range(9)]
        while len(first.seen) < 1 + STEPS_OUT_MAX:  # noqa: ASYNC110  # no event
            await asyncio.sleep(0)
        await mesh.head.session(IDS[0], S, 10)
        seen_meanwhile = len(first.seen)
        last.go_on.set()
        ends = [await each for each in asked]

    assert seen_meanwhile == 1 + STEPS_OUT_MAX
    assert [node for node, _ in ends] == [IDS[2]] * 9
    assert [each.past_length for each in first.seen] == [17 + at for at in range(10)]


async def test_a_step_that_is_given_up_while_it_waits_for_a_place_ends_the_streams():
    """What holds the places would hold up what is asked instead, too."""
    async with three() as mesh, asyncio.TaskGroup() as tasks:
        await mesh.head.chain(IDS, step(), 10)
        last = mesh.services[2]
        last.go_on = asyncio.Event()
        before = [tasks.create_task(mesh.head.chain(IDS, step(18), 10)) for _ in range(8)]
        given_up = tasks.create_task(mesh.head.chain(IDS, step(18), 10))
        await last.arrived.wait()
        given_up.cancel()
        ends = [await each for each in before]
        last.go_on.set()

    assert all(isinstance(end, HopLost) for _, end in ends)


async def test_a_peer_that_accepts_and_says_nothing_holds_a_step_no_longer_than_its_deadline():
    """As one does that is stopped: for ever, the session would stay pinned."""
    silent = socket.create_server(("127.0.0.1", 0))
    with silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        peers = PeerStreams(Peers({IDS[1]: url}), LIMITS)
        onward = replace(step(), deadline_ms=50, route=())

        with pytest.raises(HopLost, match="no stream within"):
            await peers.hand_on(IDS[1], 1, onward)


async def test_a_peer_that_is_named_later_is_dialled_and_one_that_is_taken_away_is_not():
    """Nodes of a mesh come and go; nobody else is ever dialled."""
    known: dict[NodeId, str] = {}
    async with serving(EchoService()) as url:
        streams = PeerStreams(Peers(known), LIMITS)
        with pytest.raises(HopLost, match="none of this node's peers"):
            await streams.hand_on(IDS[1], 1, step())

        known[IDS[1]] = url
        await streams.hand_on(IDS[1], 1, step())
        streams.drop(S)
        del known[IDS[1]]

        with pytest.raises(HopLost, match="none of this node's peers"):
            await streams.hand_on(IDS[1], 2, step())
