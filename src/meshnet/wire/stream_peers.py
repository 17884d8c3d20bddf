"""The nodes that a node may hand steps on to, and its streams to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshnet.core.protocol.limits import Limits
from meshnet.core.protocol.messages import ForwardRequest
from meshnet.core.vocabulary import HopLost, NodeId, SessionId
from meshnet.wire.stream_pool import StreamPool


@dataclass(frozen=True, slots=True)
class Peers:
    """By the ids that heads know them by, and the token that they ask for."""

    urls: Mapping[NodeId, str]
    token: str | None = None

    @classmethod
    def of(cls, urls: Sequence[str], token: str | None = None) -> Peers:
        """Heads know a node by its URL."""
        return cls({NodeId(url): url for url in urls}, token)


NOBODY = Peers({})


class PeerStreams:
    """Dials the addresses it was given, and no other."""

    def __init__(self, peers: Peers, limits: Limits) -> None:
        authorization = {} if peers.token is None else {"Authorization": f"Bearer {peers.token}"}
        self._urls = peers.urls
        self._pool = StreamPool(peers.urls, authorization, limits, onward=True)
        for node in peers.urls:
            self._pool.trust(node)

    async def hand_on(self, node: NodeId, number: int, step: ForwardRequest) -> None:
        if node not in self._urls:
            raise HopLost("none of this node's peers")
        stream = self._pool.held(node, step) or await self._pool.opened(node, step)
        if stream is None:
            raise HopLost("no stream")
        stream.pass_on(number, step)

    def drop(self, session: SessionId) -> None:
        self._pool.drop(session)
