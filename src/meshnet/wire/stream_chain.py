"""A head's chained steps: sent on the stream to the first hop, answered on that to any of them.

Several of a session may be out, and go in the order in which they were asked, also while streams
are still being opened. A step that is given up ends the streams of its hops, also while it waits
for a place: what is before or behind it on its way must not hold up what is asked instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from meshnet.core.protocol.chains import CHAINED, as_asked_alone
from meshnet.core.protocol.messages import Code, ForwardRequest, Refusal, Reply
from meshnet.core.vocabulary import HopLost, NodeId
from meshnet.wire.chain_turns import ChainTurns, Turns
from meshnet.wire.stream_client import SessionStream
from meshnet.wire.stream_pool import StreamPool

End = tuple[NodeId | None, Reply | HopLost]


class Chains:
    def __init__(self, pool: StreamPool) -> None:
        self._pool = pool
        self._number = 0
        self._turns = ChainTurns()

    async def ask(self, nodes: Sequence[NodeId], request: ForwardRequest, timeout_s: float) -> End:
        """Return who ended the step, and how; None: nobody did in time."""
        assert request.session is not None, "a chained step belongs to a session"
        turns = self._turns.of(request.session)
        try:
            async with asyncio.timeout(timeout_s):
                try:
                    await turns.places.acquire()
                except BaseException:
                    self._pool.drop(request.session)
                    raise
                try:
                    return await self._in_place(nodes, request, turns)
                finally:
                    turns.places.release()
        except TimeoutError:
            return None, HopLost(f"no answer within {timeout_s:g} s")

    async def _in_place(
        self, nodes: Sequence[NodeId], request: ForwardRequest, turns: Turns
    ) -> End:
        async with turns.opening:
            streams = await self._streams(nodes, request)
        lacking = next((node for node in nodes if streams[node] is None), None)
        if lacking is not None:
            return lacking, Refusal(Code.HOP_FAILED, "no stream from the head")
        # Nothing is awaited until the step is sent: the next one in turn comes behind it.
        held = {node: stream for node, stream in streams.items() if stream is not None}
        return await self._ask(held, request)

    async def _streams(
        self, nodes: Sequence[NodeId], request: ForwardRequest
    ) -> dict[NodeId, SessionStream | None]:
        later = as_asked_alone(request)
        steps = {node: later if at else request for at, node in enumerate(nodes)}
        streams = {node: self._pool.held(node, step) for node, step in steps.items()}
        if all(streams.values()):
            return streams
        async with asyncio.TaskGroup() as opening:
            tasks = {
                node: opening.create_task(self._pool.opened(node, _onward_from(steps[node], at)))
                for at, (node, stream) in enumerate(streams.items())
                if stream is None
            }
        return streams | {node: task.result() for node, task in tasks.items()}

    async def _ask(self, streams: dict[NodeId, SessionStream], request: ForwardRequest) -> End:
        self._number = (self._number + 1) % CHAINED
        number = CHAINED + self._number
        answers: dict[asyncio.Future[Reply], NodeId] = {}
        first = asked_last = next(iter(streams))
        try:
            for asked_last, stream in streams.items():
                answers[stream.expect(number, request)] = asked_last
            asked_last = first
            streams[first].pass_on(number, request)
            await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED)
            return self._end(answers, request)
        except HopLost as lost:
            return asked_last, HopLost(f"{asked_last}: {lost}")
        except BaseException:
            for stream in streams.values():
                stream.lose("a step before was given up")
            raise
        finally:
            for stream in streams.values():
                stream.forget(number)

    def _end(self, answers: dict[asyncio.Future[Reply], NodeId], request: ForwardRequest) -> End:
        done = [answer for answer in answers if answer.done()]
        said = next((answer for answer in done if answer.exception() is None), done[0])
        node = answers[said]
        if (error := said.exception()) is not None:
            return node, HopLost(f"{node}: {error}")
        reply = said.result()
        if isinstance(reply, Refusal) and reply.code is Code.NO_ROOM and request.session:
            self._pool.drop(request.session)
        return node, reply


def _onward_from(step: ForwardRequest, at: int) -> ForwardRequest:
    """Return what tells the hop of that place who comes behind it."""
    return replace(step, route=step.route[at:])
