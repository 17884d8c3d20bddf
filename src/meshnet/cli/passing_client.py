"""A HopClient that passes every call on; others override what they look at."""

from __future__ import annotations

from collections.abc import Sequence

from meshnet.core.protocol.messages import (
    ForwardRequest,
    Refusal,
    Reply,
    Reserved,
    ReserveRequest,
)
from meshnet.core.protocol.moving import TakeRequest
from meshnet.core.vocabulary import (
    HopLost,
    NodeDescription,
    NodeId,
    SessionDescription,
    SessionId,
)
from meshnet.head import HopClient


class PassingClient:
    def __init__(self, inner: HopClient) -> None:
        self._inner = inner

    async def forward(self, node: NodeId, request: ForwardRequest, timeout_s: float) -> Reply:
        return await self._inner.forward(node, request, timeout_s)

    async def chain(
        self, nodes: Sequence[NodeId], request: ForwardRequest, timeout_s: float
    ) -> tuple[NodeId | None, Reply | HopLost]:
        return await self._inner.chain(nodes, request, timeout_s)

    async def reserve(
        self, node: NodeId, request: ReserveRequest, timeout_s: float
    ) -> Reserved | Refusal:
        return await self._inner.reserve(node, request, timeout_s)

    async def session(
        self, node: NodeId, session: SessionId, timeout_s: float
    ) -> SessionDescription | None:
        return await self._inner.session(node, session, timeout_s)

    async def release(
        self, node: NodeId, session: SessionId, timeout_s: float, *, linger: bool = False
    ) -> None:
        await self._inner.release(node, session, timeout_s, linger=linger)

    async def take(
        self, node: NodeId, request: TakeRequest, timeout_s: float
    ) -> SessionDescription | Refusal:
        return await self._inner.take(node, request, timeout_s)

    async def describe(self, node: NodeId, timeout_s: float) -> NodeDescription:
        return await self._inner.describe(node, timeout_s)
