"""The bytes each step puts on the wire, by hop, as the client sends and receives them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from meshnet.cli.passing_client import PassingClient
from meshnet.core.protocol import codec
from meshnet.core.protocol.messages import (
    ActivationReply,
    ForwardRequest,
    Mode,
    Reply,
)
from meshnet.core.vocabulary import NodeId
from meshnet.head import HopClient


@dataclass(frozen=True, slots=True)
class WireCost:
    """One decode on one hop. Tensor bytes are exact; the rest is names and decimal numbers."""

    tensor_bytes_out: int
    tensor_bytes_in: int
    request_bytes: int
    """Headers and body as encoded; a decimal number more or less moves it by a byte."""


class MeasuredClient(PassingClient):
    """A HopClient that remembers the cost of decodes at the past lengths it is told to watch."""

    def __init__(self, inner: HopClient) -> None:
        super().__init__(inner)
        self._costs: dict[int, dict[NodeId, WireCost]] = {}

    def watch(self, past_lengths: Iterable[int]) -> None:
        self._costs = {past_length: {} for past_length in past_lengths}

    def at(self, past_length: int) -> Mapping[NodeId, WireCost]:
        """Return the cost of the last decode at `past_length`, by hop."""
        return self._costs[past_length]

    async def forward(self, node: NodeId, request: ForwardRequest, timeout_s: float) -> Reply:
        reply = await super().forward(node, request, timeout_s)
        if request.mode is Mode.DECODE and request.past_length in self._costs:
            headers, parts = codec.encode_request(request)
            sent = 0 if request.activation is None else len(request.activation.data)
            got = len(reply.activation.data) if isinstance(reply, ActivationReply) else 0
            lines = sum(len(name) + len(value) + 4 for name, value in headers.items())
            cost = WireCost(sent, got, lines + sum(map(len, parts)))
            self._costs[request.past_length][node] = cost
        return reply
