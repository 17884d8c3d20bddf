"""A HopClient that sums the time of the head's calls, by node."""

from __future__ import annotations

import time

from meshnet.cli.passing_client import PassingClient
from meshnet.core.protocol.messages import ForwardRequest, Reply
from meshnet.core.vocabulary import NodeId
from meshnet.head import HopClient


class CallClock(PassingClient):
    def __init__(self, inner: HopClient) -> None:
        super().__init__(inner)
        self.called_s: dict[NodeId, float] = {}

    async def forward(self, node: NodeId, request: ForwardRequest, timeout_s: float) -> Reply:
        began = time.perf_counter()
        reply = await super().forward(node, request, timeout_s)
        self.called_s[node] = self.called_s.get(node, 0.0) + time.perf_counter() - began
        return reply
