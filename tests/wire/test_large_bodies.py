"""Activations of real prompts are larger than what web frameworks let in by default."""

from __future__ import annotations

import pytest
from tests.wire.echoing import NODE, EchoService, activation, serving

from meshnet.core.protocol.limits import Limits
from meshnet.core.protocol.messages import ActivationReply, ForwardRequest, Mode
from meshnet.core.vocabulary import SessionId
from meshnet.wire.http_client import HttpHopClient


@pytest.mark.parametrize(("positions", "megabytes"), [(750, 3), (17_500, 70)])
async def test_an_activation_of_any_prompt_within_the_limit_travels_both_ways(
    positions: int, megabytes: int
):
    """Pit A111."""
    sent = activation(length=positions, size=1000)
    assert len(bytes(sent.data)) == megabytes * 1_000_000
    request = ForwardRequest(Mode.PREFILL, SessionId("s"), activation=sent, want_token=False)
    async with (
        serving(EchoService(), limits=Limits()) as url,
        HttpHopClient({NODE: url}, limits=Limits()) as hops,
    ):
        reply = await hops.forward(NODE, request, timeout_s=60)

    assert isinstance(reply, ActivationReply)
    assert bytes(reply.activation.data) == bytes(sent.data)
