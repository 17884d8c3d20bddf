"""A node tells heads that wait whether a step of their session is still before it."""

from __future__ import annotations

import asyncio

from tests.node.bench import SESSION, Bench, Gate, other_session, prefill, waiting

from meshnet.core.protocol.messages import Reserved, ReserveRequest
from meshnet.core.vocabulary import SessionId


async def test_a_step_runs_while_it_is_computed_and_while_it_waits_its_turn(whole: Bench) -> None:
    gate = Gate(whole)
    async with asyncio.TaskGroup() as group:
        group.create_task(whole.ask(other_session("first")))
        await gate.entered.wait()
        group.create_task(whole.ask(prefill()))
        await waiting(whole.thread, 1)

        computed = await whole.service.reserve(ReserveRequest(SessionId("first"), 8))
        queued = await whole.service.reserve(ReserveRequest(SESSION, 8))
        gate.open()
    ended = await whole.service.reserve(ReserveRequest(SESSION, 8))

    assert isinstance(computed, Reserved)
    assert isinstance(queued, Reserved)
    assert isinstance(ended, Reserved)
    assert (computed.running, queued.running, ended.running) == (True, True, False)
