"""What a node must offer so that a transport can serve it."""

from __future__ import annotations

from typing import Protocol

from meshnet.core.protocol.messages import (
    ForwardRequest,
    Refusal,
    Reply,
    Reserved,
    ReserveRequest,
)
from meshnet.core.protocol.moving import LayerReply, LayerRequest, TakeRequest
from meshnet.core.vocabulary import ModelId, NodeDescription, SessionDescription, SessionId


class Service(Protocol):
    """A node behind any transport: `node.NodeService`, or a toy in a simulation."""

    @property
    def ready(self) -> bool: ...

    async def forward(self, request: ForwardRequest) -> Reply: ...

    async def reserve(self, request: ReserveRequest) -> Reserved | Refusal: ...

    def release(
        self, session: SessionId, model: ModelId | None = None, *, linger: bool = False
    ) -> None:
        """The session is over; with `linger` another may still adopt it."""

    def pin(self, session: SessionId) -> None:
        """A stream of the session was opened; `unpin` when it has ended."""

    def unpin(self, session: SessionId) -> None: ...

    def session(self, session: SessionId) -> SessionDescription | None: ...

    def describe(self) -> NodeDescription: ...


class Mover(Protocol):
    """The part of a node that lets sessions move from it and to it."""

    async def give(self, request: LayerRequest) -> LayerReply | Refusal:
        """Export one layer of a session."""

    async def take(self, request: TakeRequest) -> SessionDescription | Refusal:
        """Take a session over from another node, whole or not at all."""

    def drain(self, *, undo: bool = False) -> None:
        """Take no new sessions from now on, or again."""
