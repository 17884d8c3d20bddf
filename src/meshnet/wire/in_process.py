"""Hops to services in this process: the same seam as HTTP, without bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from meshnet.core.protocol.messages import (
    Code,
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
from meshnet.wire.service import Service


class InProcessHopClient:
    """Calls services directly. A step that outlasts its time is cancelled and counts as lost."""

    def __init__(self, services: Mapping[NodeId, Service]) -> None:
        self._services = services

    async def forward(self, node: NodeId, request: ForwardRequest, timeout_s: float) -> Reply:
        service = self._service(node)
        try:
            async with asyncio.timeout(timeout_s):
                return await service.forward(request)
        except TimeoutError:
            raise HopLost(f"{node}: no answer within {timeout_s:g} s") from None

    async def chain(
        self, nodes: Sequence[NodeId], request: ForwardRequest, timeout_s: float
    ) -> tuple[NodeId | None, Reply | HopLost]:
        """Services in one process hand nothing on."""
        return nodes[0], Refusal(Code.HOP_FAILED, "no streams in one process")

    async def reserve(
        self, node: NodeId, request: ReserveRequest, timeout_s: float
    ) -> Reserved | Refusal:
        service = self._service(node)
        try:
            async with asyncio.timeout(timeout_s):
                return await service.reserve(request)
        except TimeoutError:
            raise HopLost(f"{node}: no answer within {timeout_s:g} s") from None

    async def session(
        self, node: NodeId, session: SessionId, timeout_s: float
    ) -> SessionDescription | None:
        return self._service(node).session(session)

    async def release(
        self, node: NodeId, session: SessionId, timeout_s: float, *, linger: bool = False
    ) -> None:
        self._service(node).release(session, linger=linger)

    async def take(
        self, node: NodeId, request: TakeRequest, timeout_s: float
    ) -> SessionDescription | Refusal:
        """Services in one process know no others."""
        return Refusal(Code.NOT_FOUND, "no sessions move in one process")

    async def describe(self, node: NodeId, timeout_s: float) -> NodeDescription:
        return self._service(node).describe()

    def _service(self, node: NodeId) -> Service:
        service = self._services.get(node)
        if service is None:
            raise HopLost(f"{node}: not a node of this process")
        return service
