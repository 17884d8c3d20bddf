"""Nodes that would like to be rid of their sessions."""

from __future__ import annotations

from dataclasses import replace

from tests.node.bench import LAYERS, PROMPT, SESSION, Bench, decode, prefill, refused

from meshnet.core.protocol.messages import (
    Code,
    ForwardRequest,
    Mode,
    Reserved,
    ReserveRequest,
    TokenReply,
)
from meshnet.core.protocol.moving import TakeRequest
from meshnet.core.vocabulary import LayerRange, NodeId, SamplingParams, SessionId
from meshnet.simulation.toy_shard import TOY_MODEL


async def test_a_draining_node_serves_what_it_has_and_nobody_new(whole: Bench) -> None:
    await whole.prefilled()

    whole.service.moves.drain()

    assert whole.service.describe().draining
    assert isinstance(await whole.ask(decode(len(PROMPT), 1)), TokenReply)
    assert isinstance(await whole.ask(prefill(attempt=2)), TokenReply)
    assert isinstance(await whole.service.reserve(ReserveRequest(SESSION, 5)), Reserved)
    new = SessionId("new")
    refused(await whole.ask(replace(prefill(), session=new)), Code.DRAINING)
    refused(await whole.ask(ForwardRequest(Mode.STATELESS, tokens=PROMPT)), Code.DRAINING)
    refused(await whole.service.reserve(ReserveRequest(new, 5)), Code.DRAINING)
    layers, sampling = LayerRange(0, LAYERS), SamplingParams()
    order = TakeRequest(
        new, NodeId("giver"), layers, 1, PROMPT, TOY_MODEL, "toy", sampling, deadline_ms=60_000
    )
    refused(await whole.service.moves.take(order), Code.DRAINING)


async def test_a_node_may_be_told_to_go_on(whole: Bench) -> None:
    whole.service.moves.drain()

    whole.service.moves.drain(undo=True)

    assert not whole.service.describe().draining
    assert isinstance(await whole.prefilled(), TokenReply)


async def test_a_chat_whose_stream_is_open_is_waited_for_however_quiet_it_is(whole: Bench) -> None:
    await whole.prefilled()
    whole.service.pin(SESSION)
    whole.service.moves.drain()

    whole.clock.now += 60.0
    quiet = whole.service.moves.busy
    whole.service.unpin(SESSION)

    assert (quiet, whole.service.moves.busy) == (1, 0)


async def test_a_draining_node_forgets_the_sessions_that_are_over(whole: Bench) -> None:
    await whole.prefilled()
    whole.service.release(SESSION, linger=True)
    assert whole.service.describe().sessions == 1

    whole.service.moves.drain()

    assert whole.service.describe().sessions == 0
