"""A simulated node's streams to the nodes it hands steps on to, over the same network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from meshnet.core.protocol.limits import Limits
from meshnet.core.protocol.messages import ForwardRequest
from meshnet.core.protocol.opening import Opening
from meshnet.core.vocabulary import HopLost, NodeId, SessionId
from meshnet.simulation.machine import Machine
from meshnet.simulation.network import Network
from meshnet.simulation.streams import Node, SimStream


class SimPeers:
    """Those of one life of the node `own`."""

    def __init__(
        self, own: NodeId, network: Network, machines: Mapping[NodeId, Machine[Any]]
    ) -> None:
        self._own, self._network, self._machines = own, network, machines
        self._streams: dict[tuple[NodeId, SessionId], SimStream] = {}

    async def hand_on(self, node: NodeId, number: int, step: ForwardRequest) -> None:
        """Send a chained step. Raises HopLost."""
        assert step.session is not None
        machine = self._machines.get(node)
        if machine is None:
            raise HopLost("none of this node's peers")
        stream = self._streams.get((node, step.session))
        if stream is None or not stream.opening.covers(step):
            opening = replace(Opening.of(step), onward=True)
            stream = SimStream(
                self._own, self._network, cast(Node, machine), opening, Limits(), self._forget
            )
            self._streams[node, step.session] = stream
        stream.pass_on(number, step)

    async def prepare(self, opening: Opening) -> None:
        """Streams open with their first step here."""

    def drop(self, session: SessionId) -> None:
        """Close the session's streams."""
        for key, stream in list(self._streams.items()):
            if key[1] == session:
                stream.lose("its head left")

    def _forget(self, stream: SimStream) -> None:
        for key in [key for key, held in self._streams.items() if held is stream]:
            del self._streams[key]
