"""One forward request on its way through a node: what was resolved of it, and its answer."""

from __future__ import annotations

from typing import Generic

from meshnet.core.protocol.messages import ActivationReply, ForwardRequest, Reply, TokenReply
from meshnet.core.vocabulary import Activation, LayerRange, ShardDescription
from meshnet.node.shard import S
from meshnet.node.shards import LoadedShard
from meshnet.node.steps import UNSPENT, Done


class Visit(Generic[S]):
    """A request, what it asks for here, until when, and what it took."""

    __slots__ = ("deadline", "held", "layers", "loaded", "request", "spent")

    def __init__(
        self,
        request: ForwardRequest,
        loaded: LoadedShard[S],
        held: ShardDescription,
        layers: LayerRange,
        deadline: float | None,
    ) -> None:
        self.request, self.loaded, self.held = request, loaded, held
        self.layers, self.deadline = layers, deadline
        self.spent = UNSPENT

    def reply(self, done: Done[S], *, cached: int | None) -> Reply:
        """Word what a step gave; whoever fills a hop wants to know only that it holds it."""
        compute_us = round(done.spent.compute_s * 1e6)
        if self.request.fill and not self.request.route:
            return TokenReply(None, "", cached, compute_us)
        if isinstance(done.result, Activation):
            return ActivationReply(done.result, cached, compute_us)
        return TokenReply(done.result, done.text, cached, compute_us)
