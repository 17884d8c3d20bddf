"""The in-process client behaves as the one over HTTP does."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from tests.wire.echoing import LIMITS, NODE, EchoService, activation, decode, serving

from meshnet.core.protocol.messages import ActivationReply, Reserved, ReserveRequest
from meshnet.core.vocabulary import HopLost, NodeDescription, NodeId, SessionId
from meshnet.wire.http_client import HttpHopClient
from meshnet.wire.in_process import InProcessHopClient

S = SessionId("s")


async def conversation(hops: InProcessHopClient | HttpHopClient) -> list[object]:
    return [
        await hops.reserve(NODE, ReserveRequest(S, 700), timeout_s=10),
        await hops.reserve(NODE, ReserveRequest(S, 1001), timeout_s=10),
        await hops.forward(NODE, decode(), timeout_s=10),
        await described(hops),
        await hops.release(NODE, S, timeout_s=10),
        await described(hops),
    ]


async def described(hops: InProcessHopClient | HttpHopClient) -> NodeDescription:
    """Only what is served over HTTP has streams, hands steps on, and tells its version."""
    told = await hops.describe(NODE, timeout_s=10)
    return replace(told, stream=False, chain=False, version="")


@pytest.mark.parametrize("streams", [False, True])
async def test_both_clients_hold_the_same_conversation(streams: bool):
    async with serving(EchoService()) as url, HttpHopClient({NODE: url}, limits=LIMITS) as hops:
        if streams:
            await hops.describe(NODE, timeout_s=10)
        over_http = await conversation(hops)

    in_process = await conversation(InProcessHopClient({NODE: EchoService()}))

    assert in_process == over_http
    assert in_process[0] == Reserved(S, 700)
    assert in_process[2] == ActivationReply(activation(1), cached=18, compute_us=5)


async def test_a_step_that_outlasts_its_time_is_a_lost_hop():
    hops = InProcessHopClient({NODE: EchoService(go_on=asyncio.Event())})

    with pytest.raises(HopLost, match="echo"):
        await hops.forward(NODE, decode(), timeout_s=0.01)


async def test_an_unknown_node_is_a_lost_hop():
    hops = InProcessHopClient({})

    with pytest.raises(HopLost, match="other"):
        await hops.release(NodeId("other"), S, timeout_s=10)
