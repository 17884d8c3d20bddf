"""Session streams over loopback: who gets one, what goes over it, and how it ends."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest
from tests.wire.echoing import (
    LIMITS,
    NODE,
    TAIL,
    EchoService,
    activation,
    decode,
    serving,
)
from tests.wire.skipping import skipping

from meshnet.core.protocol.messages import (
    ActivationReply,
    Code,
    ForwardRequest,
    Mode,
    Refusal,
    Reply,
    TokenReply,
)
from meshnet.core.vocabulary import (
    Drawn,
    HopLost,
    ModelId,
    SampledToken,
    SessionId,
    TraceContext,
)
from meshnet.wire.http_client import HttpHopClient
from meshnet.wire.stream_bounds import BoundedStreamProtocol
from meshnet.wire.stream_pool import StreamPool

S = SessionId("s")
ANSWER = ActivationReply(activation(1), cached=18, compute_us=5)


@dataclass
class Streaming(EchoService):
    """Tells when a session is pinned and when it is no longer."""

    def __post_init__(self) -> None:
        self.unpinned = asyncio.Event()

    def unpin(self, session: SessionId) -> None:
        super().unpin(session)
        self.unpinned.set()


@asynccontextmanager
async def talking(
    service: EchoService, *, token: str | None = None
) -> AsyncIterator[HttpHopClient]:
    """A client that knows what the node can do."""
    async with (
        serving(service, token=token) as url,
        HttpHopClient({NODE: url}, limits=LIMITS, token=token) as hops,
    ):
        await hops.describe(NODE, timeout_s=10)
        yield hops


def streams_of(hops: HttpHopClient) -> StreamPool:
    return hops._streams


async def test_the_steps_of_a_session_go_over_one_stream():
    service = Streaming()
    async with talking(service) as hops:
        replies = [await hops.forward(NODE, decode(), timeout_s=10) for _ in range(3)]

        assert (service.pins[S], len(streams_of(hops))) == (1, 1)
    assert replies == [ANSWER] * 3
    assert service.seen == [decode()] * 3


@pytest.mark.parametrize(
    "request_",
    [
        replace(
            decode(), model=ModelId("m/ö"), fingerprint="f", trace="t-1", owner="o-1", attempt=3
        ),
        replace(decode(), traceparent=TraceContext("a" * 32, "b" * 16, True)),
        ForwardRequest(Mode.PREFILL, S, tokens=(1, 2), activation=activation(2), want_token=False),
        ForwardRequest(Mode.PREFILL, S, tokens=tuple(range(3000)), activation=activation(3000, 64)),
    ],
)
async def test_a_step_arrives_over_a_stream_as_by_post(request_: ForwardRequest):
    service = Streaming()
    async with serving(service) as url, HttpHopClient({NODE: url}, limits=LIMITS) as hops:
        by_post = await hops.forward(NODE, request_, timeout_s=30)
    async with talking(service) as hops:
        by_stream = await hops.forward(NODE, request_, timeout_s=30)

        assert len(streams_of(hops)) == 1
    assert by_stream == by_post
    assert service.seen == [request_, request_]


async def test_the_tail_answers_a_token_over_a_stream():
    request = ForwardRequest(Mode.PREFILL, S, layers=TAIL, tokens=(1, 2, 3))
    async with talking(Streaming()) as hops:
        reply = await hops.forward(NODE, request, timeout_s=10)

    assert reply == TokenReply(Drawn((SampledToken(6),)), "é", cached=3)


async def test_a_node_that_says_nothing_of_streams_is_asked_by_post():
    service = Streaming()
    async with serving(service) as url, HttpHopClient({NODE: url}, limits=LIMITS) as hops:
        reply = await hops.forward(NODE, decode(), timeout_s=10)

        assert (service.pins[S], len(streams_of(hops))) == (0, 0)
    assert reply == ANSWER


async def test_a_stateless_step_needs_no_stream():
    service = Streaming()
    async with talking(service) as hops:
        await hops.forward(NODE, ForwardRequest(Mode.STATELESS, S, activation=activation(1)), 10)

        assert len(streams_of(hops)) == 0
    assert service.pins[S] == 0


async def test_the_token_opens_the_stream_too():
    service = Streaming()
    async with talking(service, token="secret") as hops:
        assert await hops.forward(NODE, decode(), timeout_s=10) == ANSWER

        assert len(streams_of(hops)) == 1


async def test_a_wrong_token_opens_no_stream_and_is_told_as_by_post():
    service = Streaming()
    async with serving(service, token="secret") as url:
        hops = HttpHopClient({NODE: url}, limits=LIMITS, token="wrong")
        async with hops:
            streams_of(hops).learn(NODE, replace(service.describe(), stream=True))
            reply = await hops.forward(NODE, decode(), timeout_s=10)

    assert isinstance(reply, Refusal)
    assert reply.code is Code.UNAUTHORIZED
    assert (service.seen, service.pins[S]) == ([], 0)


async def test_a_release_ends_the_session_and_its_stream():
    service = Streaming()
    async with talking(service) as hops:
        await hops.forward(NODE, decode(), timeout_s=10)
        await hops.release(NODE, S, timeout_s=10)

        assert service.lengths == {}
        assert len(streams_of(hops)) == 0
        async with asyncio.timeout(10):
            await service.unpinned.wait()


async def test_a_head_that_goes_leaves_its_session_unpinned_not_deleted():
    service = Streaming()
    async with serving(service) as url:
        async with HttpHopClient({NODE: url}, limits=LIMITS) as hops:
            await hops.describe(NODE, timeout_s=10)
            await hops.forward(NODE, decode(), timeout_s=10)
            pinned = service.pins[S]
        async with asyncio.timeout(10):
            await service.unpinned.wait()

    assert (pinned, service.pins[S]) == (1, 0)
    assert service.lengths == {S: 18}


async def test_two_sessions_go_their_own_ways():
    service = Streaming(go_on=asyncio.Event())
    async with talking(service) as hops, asyncio.TaskGroup() as group:
        slow = group.create_task(hops.forward(NODE, decode("a"), timeout_s=10))
        async with asyncio.timeout(10):
            await service.arrived.wait()
        service.arrived.clear()
        other = group.create_task(hops.forward(NODE, decode("b", past_length=3), timeout_s=10))
        async with asyncio.timeout(10):
            await service.arrived.wait()
        service.go_on.set()

    assert slow.result() == ANSWER
    assert other.result() == replace(ANSWER, cached=4)


async def test_steps_in_flight_are_run_in_their_order():
    service = Streaming()
    steps = [decode(past_length=length) for length in range(10)]
    async with talking(service) as hops, asyncio.TaskGroup() as group:
        asked = [group.create_task(hops.forward(NODE, step, timeout_s=10)) for step in steps]

    assert service.seen == steps
    assert [reply_of(task).cached for task in asked] == list(range(1, 11))
    assert service.pins[S] == 0


def reply_of(task: asyncio.Task[Reply]) -> ActivationReply:
    reply = task.result()
    assert isinstance(reply, ActivationReply)
    return reply


async def test_no_more_than_eight_steps_are_out_on_a_stream():
    service = Streaming(go_on=asyncio.Event())
    steps = [decode(past_length=length) for length in range(12)]
    async with talking(service) as hops, asyncio.TaskGroup() as group:
        asked = [group.create_task(hops.forward(NODE, step, timeout_s=10)) for step in steps]
        async with asyncio.timeout(10):
            await service.arrived.wait()
        (stream,) = streams_of(hops)._streams.values()
        out = len(stream._asked)
        assert service.go_on is not None
        service.go_on.set()

    assert out == 8
    assert [reply_of(task).cached for task in asked] == list(range(1, 13))


async def test_a_step_that_outlasts_its_time_ends_the_stream_and_the_next_opens_another():
    service = Streaming(go_on=asyncio.Event())
    async with talking(service) as hops:
        with pytest.raises(HopLost, match="no answer within"):
            await hops.forward(NODE, decode(), timeout_s=0.05)
        left = len(streams_of(hops))
        service.go_on.set()
        reply = await hops.forward(NODE, decode(), timeout_s=10)

        assert (left, len(streams_of(hops))) == (0, 1)
    assert reply == ANSWER


async def test_a_cancelled_step_ends_the_stream_and_fails_those_behind_it():
    service = Streaming(go_on=asyncio.Event())
    async with talking(service) as hops:
        async with asyncio.TaskGroup() as group:
            first = group.create_task(hops.forward(NODE, decode(), timeout_s=10))
            behind = group.create_task(lost(hops, timeout_s=3000))
            async with asyncio.timeout(10):
                await service.arrived.wait()
            first.cancel()
            async with asyncio.timeout(20):
                await asyncio.wait([behind])
        left = len(streams_of(hops))
        service.go_on.set()

        assert await hops.forward(NODE, decode(), timeout_s=10) == ANSWER
    assert (behind.result(), left) == (True, 0)


async def lost(hops: HttpHopClient, timeout_s: float = 10) -> bool:
    try:
        await hops.forward(NODE, decode(past_length=18), timeout_s)
    except HopLost:
        return True
    return False


async def test_a_stream_that_the_node_closed_for_idleness_costs_no_step(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("meshnet.wire.stream_bounds.IDLE_S", 5.0)
    service, skip = Streaming(), skipping()
    async with talking(service) as hops:
        await hops.forward(NODE, decode(), timeout_s=10)
        (stream,) = streams_of(hops)._streams.values()
        skip(5.0)
        async with asyncio.timeout(20):
            await stream._over

        assert await hops.forward(NODE, decode(), timeout_s=10) == ANSWER
    assert service.seen == [decode()] * 2


async def test_other_weights_mean_another_stream():
    service = Streaming()
    async with talking(service) as hops:
        for fingerprint in ("a", "b"):
            await hops.forward(NODE, replace(decode(), fingerprint=fingerprint), timeout_s=10)

        assert len(streams_of(hops)) == 1
    assert [request.fingerprint for request in service.seen] == ["a", "b"]


async def test_a_session_that_waits_for_room_gives_its_pins_up():
    """Who waits for room on one node and keeps a place on another would block its like."""

    class Full(Streaming):
        async def forward(self, request: ForwardRequest) -> Reply:
            return Refusal(Code.NO_ROOM, "full")

    roomy, full = Streaming(), Full()
    async with serving(roomy) as url, serving(full) as full_url:
        nodes = {NODE: url, full.describe().node: url, "full": full_url}
        async with HttpHopClient(nodes, limits=LIMITS) as hops:  # type: ignore[arg-type]
            for node in (NODE, "full"):
                await hops.describe(node, timeout_s=10)  # type: ignore[arg-type]
            await hops.forward(NODE, decode(), timeout_s=10)
            await hops.forward("full", decode(), timeout_s=10)  # type: ignore[arg-type]
            async with asyncio.timeout(10):
                await roomy.unpinned.wait()

    assert roomy.lengths == {S: 18}


async def test_a_body_over_the_nodes_limit_comes_back_as_a_refusal_over_a_stream():
    """Pit A111."""
    request = ForwardRequest(
        Mode.PREFILL, S, tokens=tuple(range(9000)), activation=activation(9000, 128)
    )
    async with serving(Streaming()) as url:
        small = replace(LIMITS, body_bytes=64 * 2**20)
        async with HttpHopClient({NODE: url}, limits=small) as hops:
            await hops.describe(NODE, timeout_s=10)
            reply = await hops.forward(NODE, request, timeout_s=30)

    assert isinstance(reply, Refusal)
    assert reply.code is Code.TOO_LARGE


class Watched(BoundedStreamProtocol):
    """Shows the node's end of the stream made last."""

    made: asyncio.BaseTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        Watched.made = transport


async def test_both_ends_send_small_frames_at_once(monkeypatch: pytest.MonkeyPatch):
    """Nagle's algorithm would hold a frame back until the one before it is acknowledged."""
    monkeypatch.setattr("meshnet.wire.serving.BoundedStreamProtocol", Watched)
    async with talking(Streaming()) as hops:
        await hops.forward(NODE, decode(), timeout_s=10)
        (stream,) = streams_of(hops)._streams.values()
        for transport in (Watched.made, stream._transport):
            assert transport is not None
            end = transport.get_extra_info("socket")

            assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_a_bug_in_the_node_costs_the_stream_and_not_the_node(
    caplog: pytest.LogCaptureFixture,
):
    service = Streaming()
    async with talking(service) as hops:
        with pytest.raises(HopLost):
            await hops.forward(NODE, replace(decode(), model=ModelId("bug")), timeout_s=10)

        assert await hops.forward(NODE, decode(), timeout_s=10) == ANSWER
    assert "ZeroDivisionError" in caplog.text


async def test_after_the_end_no_task_and_no_pin_is_left():
    service = Streaming(go_on=asyncio.Event())
    before = asyncio.all_tasks()
    async with talking(service) as hops:
        waiting = asyncio.ensure_future(hops.forward(NODE, decode(), timeout_s=10))
        async with asyncio.timeout(10):
            await service.arrived.wait()
        await hops.aclose()
        with pytest.raises(HopLost, match="closed"):
            await waiting
        with pytest.raises(HopLost):
            await hops.forward(NODE, decode(), timeout_s=10)
        service.go_on.set()

    assert asyncio.all_tasks() == before
    assert service.pins[S] == 0


async def test_a_node_that_ends_with_a_step_running_ends_in_time():
    service = Streaming(go_on=asyncio.Event())
    async with asyncio.TaskGroup() as group, talking(service) as hops:
        waiting = group.create_task(lost(hops))
        async with asyncio.timeout(10):
            await service.arrived.wait()

    assert waiting.result()
