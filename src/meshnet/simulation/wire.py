"""A head's way to its nodes in the simulation: real codec, virtual network.

A request is encoded, travels, is parsed, served, and its reply travels back as
bytes. Both ways the network may lose, double or delay it; a reply that comes
after the head gave up meets a future that is done, and is ignored, as a closed
connection would ignore it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar, cast

from meshnet.core.protocol.chains import CHAINED, as_asked_alone
from meshnet.core.protocol.codec import (
    decode_reply,
    encode_refusal,
    encode_reply,
    encode_request,
    encode_session,
    parse_head,
)
from meshnet.core.protocol.frames import Ending, fits
from meshnet.core.protocol.limits import Limits
from meshnet.core.protocol.messages import (
    Code,
    ForwardRequest,
    Refusal,
    Reply,
    Reserved,
    ReserveRequest,
)
from meshnet.core.protocol.moving import (
    LayerReply,
    LayerRequest,
    TakeRequest,
    decode_layer,
    decode_layer_request,
    decode_take,
    decode_taken,
    encode_layer,
    encode_layer_request,
    encode_take,
)
from meshnet.core.protocol.opening import Opening
from meshnet.core.protocol.refusals import refusal_of
from meshnet.core.vocabulary import (
    BadField,
    Buffer,
    HopLost,
    NodeDescription,
    NodeId,
    SessionDescription,
    SessionId,
)
from meshnet.node.service import NodeService
from meshnet.simulation.machine import Machine
from meshnet.simulation.network import Network
from meshnet.simulation.streams import Node, SimStream
from meshnet.wire.chain_turns import ChainTurns, Turns

T = TypeVar("T")
Answer = tuple[int, dict[str, str], Buffer]
Headers = dict[str, str]
NO_SUCH_PATH: Answer = (404, {}, b"")


class Service(Protocol):
    """What a machine serves: a `NodeService`, or a node of an older protocol."""

    async def forward(self, request: ForwardRequest) -> Reply: ...

    async def reserve(self, request: ReserveRequest) -> Reserved | Refusal: ...

    def release(self, session: SessionId, *, linger: bool = False) -> None: ...

    def describe(self) -> NodeDescription: ...


class SimHopClient:
    """One head's client. `head` names its end of the network; a silenced one sends nothing.

    A legacy one is ADR-0022's: it knows no attempt, no digest and no reservation. With `streams`
    the steps of a session go over one stream to each node that has them.
    """

    def __init__(
        self,
        head: str,
        network: Network,
        machines: Mapping[NodeId, Machine[Service]],
        *,
        legacy: bool = False,
        streams: bool = False,
    ) -> None:
        self._streaming = streams
        self._offered: dict[NodeId, bool] = {}
        self._streams: dict[tuple[NodeId, SessionId], SimStream] = {}
        self.silenced = False
        self.asking = self._chained = 0
        self._turns = ChainTurns()
        self._legacy = legacy
        self._head, self._network, self._machines = head, network, machines
        self._limits = Limits()

    async def forward(self, node: NodeId, request: ForwardRequest, timeout_s: float) -> Reply:
        """Send one hop of one step. Raises HopLost."""
        if self._streaming and self._offered.get(node) and fits(request) and not self.silenced:
            return await self._forward_by_stream(node, request, timeout_s)
        if self._legacy:
            request = replace(request, attempt=None, prefix=None, truncate=False, wire=0)
        headers, parts = encode_request(request)
        body = b"".join(parts)

        async def serve(service: Service) -> Answer:
            return await _served(service, headers, body, self._limits)

        self.asking += 1
        try:
            status, fields, reply = await self._ask(node, serve, timeout_s)
        finally:
            self.asking -= 1
        return decode_reply(status, fields.items(), reply, request, self._limits)

    async def _forward_by_stream(
        self, node: NodeId, request: ForwardRequest, timeout_s: float
    ) -> Reply:
        self.asking += 1
        try:
            reply = await self._stream(node, request).ask(request, timeout_s)
        finally:
            self.asking -= 1
        self._give_way(reply, request)
        return reply

    async def chain(
        self, nodes: Sequence[NodeId], request: ForwardRequest, timeout_s: float
    ) -> tuple[NodeId | None, Reply | HopLost]:
        """Send a step that nodes hand on."""
        assert request.session is not None, "a chained step belongs to a session"
        turns = self._turns.of(request.session)
        self.asking += 1
        try:
            async with asyncio.timeout(timeout_s):
                try:
                    await turns.places.acquire()
                except BaseException:
                    self._lose(request.session, "a step before was given up")
                    raise
                try:
                    return await self._chain(nodes, request, turns)
                finally:
                    turns.places.release()
        except TimeoutError:
            return None, HopLost(f"no answer within {timeout_s} s")
        finally:
            self.asking -= 1

    async def _chain(
        self, nodes: Sequence[NodeId], request: ForwardRequest, turns: Turns
    ) -> tuple[NodeId | None, Reply | HopLost]:
        if self.silenced:
            return nodes[0], HopLost("this head is gone")
        assert request.session is not None, "its turns are of a session"
        later = as_asked_alone(request)
        asked = [(node, later if node != nodes[0] else request) for node in nodes]
        async with turns.opening:
            for node, step in asked:
                known = self._streams.get((node, request.session))
                if known is None or not known.opening.covers(step):
                    await self._stream(node, step).open()
        streams = [self._stream(node, step) for node, step in asked]
        self._chained += 1
        number = CHAINED + self._chained
        answers = {
            stream.expect(number, request): node
            for node, stream in zip(nodes, streams, strict=True)
        }
        try:
            streams[0].pass_on(number, request)
            done, _ = await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED)
        except HopLost as lost:
            return nodes[0], lost
        except BaseException:
            for stream in streams:
                stream.lose("a step before was given up")
            raise
        finally:
            for stream in streams:
                stream.forget(number)
        first = next(answer for answer in answers if answer in done)
        if (error := first.exception()) is not None:
            return answers[first], HopLost(str(error))
        self._give_way(first.result(), request)
        return answers[first], first.result()

    def _give_way(self, reply: Reply, request: ForwardRequest) -> None:
        if isinstance(reply, Refusal) and reply.code is Code.NO_ROOM:
            self._lose(request.session, "the session waits for room")

    def _lose(self, session: SessionId | None, why: str) -> None:
        for key, stream in list(self._streams.items()):
            if key[1] == session:
                stream.lose(why)

    def _stream(self, node: NodeId, request: ForwardRequest) -> SimStream:
        assert request.session is not None
        key = (node, request.session)
        stream = self._streams.get(key)
        if stream is not None and not stream.opening.covers(request):
            stream.lose("the next step is for other weights")
            stream = None
        if stream is None:
            machine = cast(Node, self._machines[node])
            opening = Opening.of(request)
            stream = SimStream(
                self._head, self._network, machine, opening, self._limits, self._forget
            )
            self._streams[key] = stream
        return stream

    def _forget(self, stream: SimStream) -> None:
        for key in [key for key, held in self._streams.items() if held is stream]:
            del self._streams[key]

    def crash(self) -> None:
        """End as a process does: nothing more is sent, but the sockets close."""
        self.silenced = True
        for stream in list(self._streams.values()):
            stream.lose("this head is gone")

    async def reserve(
        self, node: NodeId, request: ReserveRequest, timeout_s: float
    ) -> Reserved | Refusal:
        """Ask for room. Raises HopLost."""
        if self._legacy:
            return Reserved(request.session, request.tokens)

        async def serve(service: Service) -> Reserved | Refusal:
            return await service.reserve(request)

        return await self._ask(node, serve, timeout_s)

    async def session(
        self, node: NodeId, session: SessionId, timeout_s: float
    ) -> SessionDescription | None:
        """Ask what a node holds of a session. Raises HopLost."""

        async def serve(service: Service) -> SessionDescription | None:
            return service.session(session) if isinstance(service, NodeService) else None

        return await self._ask(node, serve, timeout_s)

    async def take(
        self, node: NodeId, request: TakeRequest, timeout_s: float
    ) -> SessionDescription | Refusal:
        """Tell a node to take a session over. Raises HopLost."""

        async def serve(service: Service) -> Answer:
            if not isinstance(service, NodeService):
                return NO_SUCH_PATH
            order = decode_take(request.session, encode_take(request), self._limits)
            taken = await service.moves.take(order)
            if isinstance(taken, Refusal):
                return encode_refusal(taken)
            return 200, {}, encode_session(taken)

        status, fields, body = await self._ask(node, serve, timeout_s)
        return decode_taken(status, fields.items(), body, self._limits)

    async def layer(
        self, node: NodeId, request: LayerRequest, timeout_s: float, *, bytes_max: int
    ) -> LayerReply | Refusal:
        """Fetch a layer for a node that takes a session over. Raises HopLost."""
        headers = encode_layer_request(request)

        async def serve(service: Service) -> Answer:
            if not isinstance(service, NodeService):
                return NO_SUCH_PATH
            layer = str(request.layer)
            asked = decode_layer_request(request.session, layer, headers.items(), self._limits)
            given = await service.moves.give(asked)
            if isinstance(given, Refusal):
                return encode_refusal(given)
            fields, parts = encode_layer(given)
            return 200, fields, b"".join(parts)

        status, fields, body = await self._ask(node, serve, timeout_s)
        return decode_layer(status, fields.items(), body, self._limits)

    async def release(
        self, node: NodeId, session: SessionId, timeout_s: float, *, linger: bool = False
    ) -> None:
        """Hint that a session is over. Raises HopLost."""
        stream = self._streams.get((node, session))
        if stream is not None:
            stream.release(Ending.LINGERS if linger else Ending.RELEASED)
            return

        async def serve(service: Service) -> None:
            service.release(session, linger=linger)

        await self._ask(node, serve, timeout_s)

    async def describe(self, node: NodeId, timeout_s: float) -> NodeDescription:
        """Ask what a node holds. Raises HopLost."""

        async def serve(service: Service) -> NodeDescription:
            able = isinstance(service, NodeService)
            peers = tuple(self._machines)
            return replace(service.describe(), stream=able, chain=able, peers=peers)

        description = await self._ask(node, serve, timeout_s)
        self._offered[node] = description.stream
        return description

    async def _ask(
        self, node: NodeId, serve: Callable[[Service], Awaitable[T]], timeout_s: float
    ) -> T:
        answered: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def arrive(reply: T | HopLost) -> None:
            if answered.done():
                return
            if isinstance(reply, HopLost):
                answered.set_exception(reply)
            else:
                answered.set_result(reply)

        def answer(reply: T | HopLost) -> None:
            self._network.send(self._head, node, lambda: arrive(reply))

        if self.silenced:
            raise HopLost("this head is gone")
        machine = self._machines[node]
        self._network.send(self._head, node, lambda: machine.accept(serve, answer))
        try:
            async with asyncio.timeout(timeout_s):
                return await answered
        except TimeoutError:
            raise HopLost(f"{node}: no answer within {timeout_s} s") from None


async def _served(service: Service, headers: Headers, body: bytes, limits: Limits) -> Answer:
    """Do what a node's HTTP server does with one request."""
    try:
        request = parse_head(headers.items(), len(body), limits).finish(body)
        reply = await service.forward(request)
    except BadField as error:
        reply = refusal_of(error)
    status, fields, parts = encode_reply(reply)
    return status, fields, b"".join(parts)
