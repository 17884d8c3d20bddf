"""The nodes that a node may hand steps on to, and its streams to them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from meshnet.core.protocol.limits import Limits
from meshnet.core.protocol.messages import ForwardRequest, Mode
from meshnet.core.protocol.opening import Opening
from meshnet.core.vocabulary import HopLost, NodeId, SessionId
from meshnet.wire.stream_client import SessionStream
from meshnet.wire.stream_pool import StreamPool
from meshnet.wire.tls import MeshTls

PREPARE_S = 2.0
"""How long a first step waits for a stream that is opened for it before it came."""


OPEN_S = 10.0
"""How long a step waits for its stream, if its own time is no shorter: while it waits, its session
is pinned, and a peer that is stopped accepts connections and says nothing."""


@dataclass(frozen=True, slots=True)
class Peers:
    """By the ids that heads know them by, and what they ask for: a token, mutual TLS.

    `urls` is read at every use: the owner may add and remove nodes.
    """

    urls: Mapping[NodeId, str]
    token: str | None = None
    tls: MeshTls | None = None

    @classmethod
    def of(cls, urls: Sequence[str], token: str | None = None) -> Peers:
        """Heads know a node by its URL."""
        return cls({NodeId(url): url for url in urls}, token)


NOBODY = Peers({})


class PeerStreams:
    """Dials the addresses it was given, and no other; each of them is taken to have streams."""

    def __init__(self, peers: Peers, limits: Limits) -> None:
        authorization = {} if peers.token is None else {"Authorization": f"Bearer {peers.token}"}
        self._urls = peers.urls
        self._pool = StreamPool(peers.urls, authorization, limits, onward=True, tls=peers.tls)

    async def hand_on(self, node: NodeId, number: int, step: ForwardRequest) -> None:
        if node not in self._urls:
            raise HopLost("none of this node's peers")
        stream = self._pool.held(node, step) or await self._opened(node, step)
        if stream is None:
            raise HopLost("no stream")
        stream.pass_on(number, step)

    async def _opened(self, node: NodeId, step: ForwardRequest) -> SessionStream | None:
        self._pool.trust(node)
        left_s = OPEN_S if step.deadline_ms is None else min(step.deadline_ms / 1000, OPEN_S)
        try:
            async with asyncio.timeout(left_s):
                return await self._pool.opened(node, step)
        except TimeoutError:
            raise HopLost(f"no stream within {left_s:g} s") from None

    async def prepare(self, opening: Opening) -> None:
        node = opening.next
        if node is None or node not in self._urls:
            return
        alike = ForwardRequest(
            Mode.DECODE,
            opening.session,
            model=opening.model,
            fingerprint=opening.fingerprint,
            wire=opening.wire,
            trace=opening.trace,
            traceparent=opening.traceparent,
            owner=opening.owner,
        )
        self._pool.trust(node)
        if self._pool.held(node, alike) is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(PREPARE_S):
                    await self._pool.opened(node, alike)

    def drop(self, session: SessionId) -> None:
        self._pool.drop(session)
