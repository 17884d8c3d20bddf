"""A head's chained steps: sent on the stream to the first hop, answered on that to any of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from meshnet.core.protocol.chains import CHAINED, as_asked_alone
from meshnet.core.protocol.messages import Code, ForwardRequest, Refusal, Reply
from meshnet.core.vocabulary import HopLost, NodeId
from meshnet.wire.stream_client import SessionStream
from meshnet.wire.stream_pool import StreamPool

End = tuple[NodeId | None, Reply | HopLost]


class Chains:
    def __init__(self, pool: StreamPool) -> None:
        self._pool = pool
        self._number = 0

    async def ask(self, nodes: Sequence[NodeId], request: ForwardRequest, timeout_s: float) -> End:
        """Return who ended the step, and how; None: nobody did in time."""
        try:
            async with asyncio.timeout(timeout_s):
                streams: list[SessionStream] = []
                for node in nodes:
                    step = request if node == nodes[0] else as_asked_alone(request)
                    stream = self._pool.held(node, step)
                    stream = stream or await self._pool.opened(node, step)
                    if stream is None:
                        return node, Refusal(Code.HOP_FAILED, "no stream from the head")
                    streams.append(stream)
                return await self._ask(nodes, streams, request)
        except TimeoutError:
            return None, HopLost(f"no answer within {timeout_s:g} s")

    async def _ask(
        self, nodes: Sequence[NodeId], streams: Sequence[SessionStream], request: ForwardRequest
    ) -> End:
        self._number = (self._number + 1) % CHAINED
        number = CHAINED + self._number
        answers: dict[asyncio.Future[Reply], NodeId] = {}
        try:
            for node, stream in zip(nodes, streams, strict=True):
                asked_last = node
                answers[stream.expect(number, request)] = node
            asked_last = nodes[0]
            streams[0].pass_on(number, request)
            await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED)
            return self._end(answers, request)
        except HopLost as lost:
            return asked_last, HopLost(f"{asked_last}: {lost}")
        except BaseException:
            streams[0].lose("a step before was given up")
            raise
        finally:
            for stream in streams:
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
