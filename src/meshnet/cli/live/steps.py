"""The head's client with somebody looking over its shoulder: which hops a step went through."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from meshnet.cli.live.feed import Feed
from meshnet.cli.passing_client import PassingClient
from meshnet.core.protocol.messages import (
    ActivationReply,
    ForwardRequest,
    Reply,
    TokenReply,
)
from meshnet.core.vocabulary import HopLost, NodeId, SessionId
from meshnet.head import HopClient

SESSIONS_MAX = 1024
End = tuple[NodeId | None, Reply | HopLost]


class SessionNumbers:
    """Short names for sessions: whoever knows a session's own id could extend it."""

    def __init__(self) -> None:
        self._numbers: OrderedDict[str, int] = OrderedDict()
        self._last = 0

    def of(self, session: str) -> int:
        if session not in self._numbers:
            self._last += 1
            self._numbers[session] = self._last
            if len(self._numbers) > SESSIONS_MAX:
                self._numbers.popitem(last=False)
        return self._numbers[session]


class WatchedClient(PassingClient):
    """Times the steps while somebody follows; else it is not in their way."""

    def __init__(
        self, inner: HopClient, feed: Feed, numbers: SessionNumbers, clock: Callable[[], float]
    ) -> None:
        super().__init__(inner)
        self._feed, self._numbers, self._clock = feed, numbers, clock

    def forward(
        self, node: NodeId, request: ForwardRequest, timeout_s: float
    ) -> Coroutine[Any, Any, Reply]:
        if not self._feed.followed:
            return self._inner.forward(node, request, timeout_s)
        return self._forward(node, request, timeout_s)

    def chain(
        self, nodes: Sequence[NodeId], request: ForwardRequest, timeout_s: float
    ) -> Coroutine[Any, Any, End]:
        if not self._feed.followed:
            return self._inner.chain(nodes, request, timeout_s)
        return self._chain(nodes, request, timeout_s)

    async def _forward(self, node: NodeId, request: ForwardRequest, timeout_s: float) -> Reply:
        began = self._clock()
        try:
            reply = await self._inner.forward(node, request, timeout_s)
        except HopLost as lost:
            self._tell([node], request, lost, began)
            raise
        self._tell([node], request, reply, began)
        return reply

    async def _chain(
        self, nodes: Sequence[NodeId], request: ForwardRequest, timeout_s: float
    ) -> End:
        began = self._clock()
        node, end = await self._inner.chain(nodes, request, timeout_s)
        self._tell(nodes, request, end, began)
        return node, end

    def _tell(
        self,
        nodes: Sequence[NodeId],
        request: ForwardRequest,
        end: Reply | HopLost,
        began: float,
    ) -> None:
        session: SessionId | None = request.session
        drawn = end.drawn if isinstance(end, TokenReply) else None
        compute_us = end.compute_us if isinstance(end, ActivationReply | TokenReply) else None
        self._feed.step(
            {
                "answer": None if session is None else self._numbers.of(session),
                "nodes": [*nodes],
                "mode": request.mode.value,
                "positions": _positions(request),
                "tokens": 0 if drawn is None else len(drawn.tokens),
                "ms": round((self._clock() - began) * 1000, 2),
                "compute_ms": None if compute_us is None else round(compute_us / 1000, 2),
                "ok": compute_us is not None,
            }
        )


def _positions(request: ForwardRequest) -> int:
    if request.activation is not None:
        return request.activation.hidden.shape[-2]
    return len(request.tokens)
