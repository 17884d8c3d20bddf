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
