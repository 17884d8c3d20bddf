"""What the head needs from whatever carries its questions to nodes.

Two carriers exist: HTTP and the simulated network. Every call ends within `timeout_s` with an
answer or HopLost, and can be cancelled at any time; a cancelled call leaves nothing behind here
(what the node does with it is the session rules' concern).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

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


class HopClient(Protocol):
    async def forward(self, node: NodeId, request: ForwardRequest, timeout_s: float) -> Reply:
        """Run one hop of one step. Raises HopLost: timeout, refused, reset, unreadable."""

    async def chain(
        self, nodes: Sequence[NodeId], request: ForwardRequest, timeout_s: float
    ) -> tuple[NodeId | None, Reply | HopLost]:
        """Let the first of `nodes` run a step that they hand on; return who ended it, and how.

        None: nobody did within `timeout_s`. Raises nothing.
        """

    async def reserve(
        self, node: NodeId, request: ReserveRequest, timeout_s: float
    ) -> Reserved | Refusal:
        """Ask for room; a node that knows no reservations grants it. Raises HopLost."""

    async def session(
        self, node: NodeId, session: SessionId, timeout_s: float
    ) -> SessionDescription | None:
        """Ask what a node holds of a session; None: nothing. Raises HopLost."""

    async def release(
        self, node: NodeId, session: SessionId, timeout_s: float, *, linger: bool = False
    ) -> None:
        """Hint that a session is over; with `linger` it may still be adopted. Raises HopLost."""

    async def take(
        self, node: NodeId, request: TakeRequest, timeout_s: float
    ) -> SessionDescription | Refusal:
        """Tell `node` to take a session over, and wait until it has. Raises HopLost, also for a
        node that does not know how."""

    async def describe(self, node: NodeId, timeout_s: float) -> NodeDescription:
        """Raises HopLost, also for a node that has no description yet."""
