"""What a node does with steps that it hands on, whatever carries them.

    step n, from the head or the hop before ──run──▶ the next hop, by `Onward`
                                               └──▶ the head, on its own stream to this node

The streams that are opened from here for a session end with the head's stream to it. Nobody
acknowledges a step that was handed on: where it is lost on its way, the head hears nothing and
gives it up at its deadline.

Invariant: a step that ends here is told to the head once, unless the head's stream is gone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from meshnet.core.protocol.chains import handed_on
from meshnet.core.protocol.frames_replies import encode_answer
from meshnet.core.protocol.messages import Code, ForwardRequest, Refusal, Reply
from meshnet.core.protocol.opening import Opening
from meshnet.core.vocabulary import HopLost, NodeId, SessionId

Tell = Callable[[bytes], Awaitable[None]]
"""Send a frame to the head of a session; empty: only a sign of life for the stream."""


class Onward(Protocol):
    """The way to the nodes that this one knows."""

    async def hand_on(self, node: NodeId, number: int, step: ForwardRequest) -> None:
        """Send a chained step. Raises HopLost, also for a node that is not known."""

    async def prepare(self, opening: Opening) -> None:
        """Get ready to hand on the steps of a stream that was opened so. Raises nothing."""

    def drop(self, session: SessionId) -> None:
        """End what was opened for the session."""


class Handing:
    """The chained steps of one node."""

    def __init__(self, onward: Onward, clock: Callable[[], float]) -> None:
        self._onward, self._clock = onward, clock
        self._heads: dict[SessionId, Tell] = {}

    def head_came(self, session: SessionId, tell: Tell) -> None:
        """The head of a session has a stream to this node now."""
        self._heads[session] = tell

    async def prepare(self, opening: Opening) -> None:
        """Be ready when the head's first step comes, which is on its way meanwhile."""
        if not opening.onward and opening.next is not None:
            await self._onward.prepare(opening)

    def head_left(self, session: SessionId, tell: Tell) -> None:
        """It has none any more, unless it opened another."""
        if self._heads.get(session) == tell:
            del self._heads[session]
            self._onward.drop(session)

    async def serve(
        self, number: int, step: ForwardRequest, run: Callable[[ForwardRequest], Awaitable[Reply]]
    ) -> None:
        """Run a chained step, and hand it on or tell the head how it ended."""
        assert step.session is not None, "frames belong to a session"
        began = self._clock()
        reply = await run(step)
        onward = handed_on(step, reply, took_ms=round((self._clock() - began) * 1000))
        frame = b""
        if not isinstance(onward, ForwardRequest):
            frame = encode_answer(number, onward)
        else:
            node = step.route[0].node
            try:
                await self._onward.hand_on(node, number, onward)
            except HopLost as lost:
                frame = encode_answer(number, Refusal(Code.HOP_FAILED, f"{node}: {lost}"))
        await self.tell(step.session, frame)

    async def tell(self, session: SessionId, frame: bytes) -> None:
        """Send a frame to the session's head, if it is there."""
        if (head := self._heads.get(session)) is not None:
            await head(frame)
