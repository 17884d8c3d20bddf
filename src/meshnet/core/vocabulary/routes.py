"""The hops that a step visits."""

from __future__ import annotations

from dataclasses import dataclass

from meshnet.core.vocabulary.identity import WIRE_VERSION, ModelId, NodeId
from meshnet.core.vocabulary.layers import LayerRange, check_cover


@dataclass(frozen=True, slots=True)
class Hop:
    """One visit of a step: a node, the layers it runs, and the wire version it speaks."""

    node: NodeId
    layers: LayerRange
    wire: int = WIRE_VERSION


@dataclass(frozen=True, slots=True)
class Route:
    """Ordered hops that cover layers [0, total) once."""

    model: ModelId
    hops: tuple[Hop, ...]
    kv_cache: bool = True
    multi_token: bool = True
    truncate: bool = False
    chain: bool = False
    fingerprint: str = ""
    """Of the model on all its hops; a generation never changes it half-way."""

    def __post_init__(self) -> None:
        check_cover([hop.layers for hop in self.hops])
