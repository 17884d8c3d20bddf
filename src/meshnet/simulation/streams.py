"""Session streams in the simulation: real frames, in their order, until something breaks them.

Both ends of a stream are here. Nothing on it is lost, doubled or overtaken, as on a TCP connection;
it breaks instead, and then the head knows at once, or at its step's time-out, while the node may
know only when nothing came for IDLE_S. What the real ends do is done here too: the session is
pinned while the node's end is open, steps run one after the other, a step that was given up ends
the stream. Its handshake is left out: a stream opens with its first step.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from meshnet.core.protocol.chains import is_chained
from meshnet.core.protocol.frames import Ending, decode_step, encode_release, encode_step, number_of
from meshnet.core.protocol.frames_replies import decode_answer, encode_answer
from meshnet.core.protocol.limits import STEPS_OUT_MAX, Limits
from meshnet.core.protocol.messages import ForwardRequest, Reply
from meshnet.core.protocol.opening import Opening
from meshnet.core.protocol.refusals import refusal_of
from meshnet.core.vocabulary import BadField, HopLost
from meshnet.node.service import NodeService
from meshnet.simulation.machine import Machine
from meshnet.simulation.network import Network
from meshnet.simulation.toy_shard import ToyState

IDLE_S = 30.0
ROUNDING_S = 0.001
"""A shorter wait would not move a virtual clock."""

Node = Machine[NodeService[ToyState]]
Answer = Callable[[bytes | HopLost], None]


class SimStream:
    """A head's end. `ended` is called once, when no more can be sent on it."""

    def __init__(
        self,
        head: str,
        network: Network,
        machine: Node,
        opening: Opening,
        limits: Limits,
        ended: Callable[[SimStream], None],
    ) -> None:
        self.opening = opening
        self.alive = True
        self._head, self._network, self._node = head, network, machine.node
        self._limits, self._ended = limits, ended
        self._far = _NodeEnd(machine, opening, limits, self._closed, self._reply)
        self._asked: dict[int, tuple[ForwardRequest, asyncio.Future[Reply]]] = {}
        self._number = 0
        self._forth = self._back = 0.0

    async def ask(self, request: ForwardRequest, timeout_s: float) -> Reply:
        """Send one step and wait for its answer. Raises HopLost."""
        self._number = number = self._number + 1
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._asked[number] = (request, answer)
        breaks = self._network.breaks()
        if breaks == "before":
            self.lose("broke on the way there")
        else:
            self._send(encode_step(number, request), cut_off=breaks == "after")
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            raise HopLost(f"{self._node}: no answer within {timeout_s} s") from None
        finally:
            if self._asked.pop(number, None) is not None:
                self.lose("a step before was given up")
            elif answer.done() and not answer.cancelled():
                answer.exception()

    async def open(self) -> None:
        """Wait until the node knows of the stream, which need not carry a step first."""
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def arrive() -> None:
            if not opened.done():
                opened.set_result(None)

        def answer(reply: object) -> None:
            self._back = self._network.in_order(self._head, self._node, self._back, arrive)

        self._forth = self._network.in_order(
            self._head, self._node, self._forth, lambda: self._far.open(answer)
        )
        await opened

    def expect(self, number: int, request: ForwardRequest) -> asyncio.Future[Reply]:
        """Wait for the answer to a chained step, whichever node sends it."""
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._asked[number] = (request, answer)
        return answer

    def forget(self, number: int) -> None:
        self._asked.pop(number, None)

    def pass_on(self, number: int, request: ForwardRequest) -> None:
        """Send a chained step."""
        breaks = self._network.breaks()
        if breaks == "before":
            self.lose("broke on the way there")
            raise HopLost(f"{self._node}: broke on the way there")
        self._send(encode_step(number, request), cut_off=breaks == "after")

    def release(self, ending: Ending) -> None:
        """End the session and the stream; the node may never hear of it."""
        self._send(encode_release(ending), cut_off=False)
        self._end("released")

    def lose(self, why: str) -> None:
        """End the stream; the node hears that it closed, unless the network is cut."""
        if self.alive:
            self._forth = self._network.in_order(
                self._head, self._node, self._forth, self._far.close
            )
            self._end(why)

    def _send(self, frame: bytes, *, cut_off: bool) -> None:
        def arrive() -> None:
            self._far.receive(frame, self._reply)
            if cut_off:  # its answer finds nobody
                self.lose("broke on the way back")

        self._forth = self._network.in_order(self._head, self._node, self._forth, arrive)

    def _reply(self, reply: bytes | HopLost) -> None:
        self._back = self._network.in_order(
            self._head, self._node, self._back, lambda: self._received(reply)
        )

    def _closed(self) -> None:
        def arrive() -> None:
            if self.alive:
                self._end("closed by the node")

        self._back = self._network.in_order(self._head, self._node, self._back, arrive)

    def _received(self, reply: bytes | HopLost) -> None:
        if not self.alive:
            return
        if isinstance(reply, HopLost):
            self._end(str(reply))
            return
        asked = self._asked.pop(number_of(reply), None)
        if asked is None:
            assert is_chained(number_of(reply)), "an answer to nothing that was asked"
            return
        request, answer = asked
        if not answer.done():
            answer.set_result(decode_answer(reply, request, self._limits))

    def _end(self, why: str) -> None:
        self.alive = False
        asked, self._asked = self._asked, {}
        for _, answer in asked.values():
            if not answer.done():
                answer.set_exception(HopLost(f"{self._node}: {why}"))
                answer.exception()
        self._ended(self)


class _NodeEnd:
    """A node's end: the pin, and the steps that wait for the one that runs."""

    def __init__(
        self,
        machine: Node,
        opening: Opening,
        limits: Limits,
        closed: Callable[[], None],
        reply: Answer,
    ) -> None:
        self._closed, self._reply = closed, reply
        self._handing = machine.handing
        self._machine, self._opening, self._limits = machine, opening, limits
        self._loop = asyncio.get_running_loop()
        self._boots = machine.boots
        self._service: NodeService[ToyState] | None = None
        self._frames: deque[tuple[bytes, Answer]] = deque()
        self._running, self._open, self._heard_at = False, True, self._loop.time()
        self._loop.call_later(IDLE_S, self._watch)

    def receive(self, frame: bytes, answer: Answer) -> None:
        """Take a frame that arrived."""
        if self._machine.boots != self._boots:
            answer(HopLost("connection reset"))
            return
        if self._open:
            assert len(self._frames) < STEPS_OUT_MAX, "the head bounds what it has out"
            self._heard_at = self._loop.time()
            self._frames.append((frame, answer))
            self._next()

    def open(self, answer: Callable[[object], None]) -> None:
        """Let the node know of the stream."""
        if self._machine.boots == self._boots and self._open:
            self._machine.accept(self._came, answer)

    def close(self) -> None:
        """Forget what waits, and unpin; a step that runs goes on."""
        if self._open:
            self._open = False
            self._frames.clear()
            self._machine.accept(self._unpin, lambda reply: self._closed())

    def _next(self) -> None:
        if self._running or not self._frames:
            return
        frame, answer = self._frames.popleft()
        self._running = True

        def ended(reply: bytes | HopLost | None) -> None:
            self._running = False
            self._heard_at = self._loop.time()
            if reply is None:
                self.close()
            elif isinstance(reply, HopLost) or reply:
                answer(reply)
            self._next()

        self._machine.accept(lambda service: self._served(service, frame), ended)

    async def _served(self, service: NodeService[ToyState], frame: bytes) -> bytes | None:
        """Do what a node's stream server does with one frame; None after a release."""
        await self._came(service)
        try:
            step = decode_step(frame, self._opening, self._limits)
        except BadField as error:
            return encode_answer(number_of(frame), refusal_of(error))
        if isinstance(step, Ending):
            service.release(self._opening.session, linger=step is Ending.LINGERS)
            return None
        number = number_of(frame)
        if is_chained(number):
            await self._handing.serve(number, step, service.forward)
            return b""
        return encode_answer(number, await service.forward(step))

    async def _came(self, service: NodeService[ToyState]) -> None:
        if self._service is None and self._open:
            self._service = service
            service.pin(self._opening.session)
            if not self._opening.onward:
                self._handing.head_came(self._opening.session, self._tell)

    async def _tell(self, frame: bytes) -> None:
        self._heard_at = self._loop.time()
        if frame and self._open and self._machine.boots == self._boots:
            self._reply(frame)

    async def _unpin(self, service: NodeService[ToyState]) -> None:
        self._handing.head_left(self._opening.session, self._tell)
        if service is self._service:
            service.unpin(self._opening.session)

    def _watch(self) -> None:
        idle_s = 0.0 if self._running else self._loop.time() - self._heard_at
        if idle_s >= IDLE_S or self._machine.boots != self._boots:
            self.close()
        elif self._open:
            self._loop.call_later(max(IDLE_S - idle_s, ROUNDING_S), self._watch)
