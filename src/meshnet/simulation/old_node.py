"""Nodes of older protocols, beside the real `NodeService`."""

from __future__ import annotations

from dataclasses import replace

from meshnet.core.protocol.messages import (
    ActivationReply,
    Code,
    ForwardRequest,
    Mode,
    Refusal,
    Reply,
    Reserved,
    ReserveRequest,
    TokenReply,
)
from meshnet.core.protocol.refusals import refusal_of
from meshnet.core.vocabulary import (
    HIDDEN,
    Activation,
    BadField,
    KVCacheMiss,
    MeshnetError,
    MissReason,
    NodeDescription,
    NodeId,
    SamplingParams,
    SessionDescription,
    SessionId,
    ShardStep,
)
from meshnet.head.directory import undescribed
from meshnet.node.service import NodeService
from meshnet.simulation.machine import SimCompute
from meshnet.simulation.toy_shard import ToyShard, ToyState


class OldNode:
    """A node from before ADR-0022: it runs its layers over whatever comes, and keeps nothing.

    It ignores every field it does not know, knows no ids, draws greedily and answers with text.
    """

    def __init__(self, node: NodeId, shard: ToyShard, compute: SimCompute) -> None:
        self._node, self._shard, self._compute = node, shard, compute

    async def forward(self, request: ForwardRequest) -> Reply:
        try:
            step = self._step(request)
            result = await self._compute.run(lambda: self._shard.run(step, None))
        except MeshnetError as error:
            return refusal_of(error)
        if isinstance(result, Activation):
            return ActivationReply(result, cached=None)
        assert result is not None
        return TokenReply(None, self._shard.text_of(result.ids[0]), cached=None)

    def _step(self, request: ForwardRequest) -> ShardStep:
        activation = request.activation
        if activation is None or activation.hidden.name != HIDDEN:
            raise BadField("body", "an activation", None)
        layers, length = self._shard.description.layers, activation.hidden.shape[-2]
        return ShardStep(layers, 0, length, (), activation, SamplingParams())

    async def reserve(self, request: ReserveRequest) -> Reserved | Refusal:
        return Reserved(request.session, request.tokens)

    def release(self, session: SessionId, *, linger: bool = False) -> None:
        return None

    def describe(self) -> NodeDescription:
        """What its operator wrote down for it; the node itself has no such answer."""
        return undescribed(self._node, (self._shard.description,))


class NodeBeforeReplays(NodeService[ToyState]):
    """A node from before ADR-0041: attempts rise with prefills only, and it keeps no rows."""

    async def forward(self, request: ForwardRequest) -> Reply:
        if request.replay or request.fill:
            return Refusal(Code.BAD_REQUEST, "flags of this version")
        if request.mode is Mode.DECODE and request.session is not None and request.adopt is None:
            held = self.session(request.session)
            if held is not None and held.attempt != request.attempt:
                return refusal_of(KVCacheMiss(MissReason.ATTEMPT, "another attempt"))
        return await super().forward(request)

    def describe(self) -> NodeDescription:
        return replace(super().describe(), replay=False)

    def session(self, session: SessionId) -> SessionDescription | None:
        held = super().session(session)
        return None if held is None else replace(held, replayable=0)
