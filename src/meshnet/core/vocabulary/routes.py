"""The hops that a step visits."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from meshnet.core.vocabulary.identity import WIRE_VERSION, ModelId, NodeId
from meshnet.core.vocabulary.layers import LayerRange, check_cover


@dataclass(frozen=True, slots=True)
class Hop:
    """One visit of a step: a node, the layers it runs, and the wire version it speaks."""

    node: NodeId
    layers: LayerRange
    wire: int = WIRE_VERSION

    def __hash__(self) -> int:
        return hash(self.node)  # hops of one node are few, and looked up once a token


@dataclass(frozen=True, slots=True)
class Route:
    """Ordered hops that cover layers [0, total) once."""

    model: ModelId
    hops: tuple[Hop, ...]
    kv_cache: bool = True
    multi_token: bool = True
    truncate: bool = False
    marks: bool = False
    """Each hop can shorten a session, if only to its marks."""
    onward: frozenset[NodeId] = frozenset()
    """The nodes that can hand a step on to the hop behind theirs."""
    fingerprint: str = ""
    """Of the model on all its hops; a generation never changes it half-way."""
    replay: frozenset[NodeId] = frozenset()
    """The nodes that know replays, fills and rising attempts (ADR-0041)."""
    arithmetic: frozenset[str] = frozenset()
    """The arithmetic ids of its hops."""

    def __post_init__(self) -> None:
        check_cover([hop.layers for hop in self.hops])

    @property
    def chain(self) -> bool:
        """Whether a step can go from the first hop to the last without the head."""
        return len(self.hops) > 1 and len(self.segments) == 1

    @property
    def segments(self) -> tuple[tuple[Hop, ...], ...]:
        """The hops in runs through which a step is handed on; the last of each run answers."""
        return segments_of(self.hops, self.onward)


def segments_of(hops: Sequence[Hop], onward: Collection[NodeId]) -> tuple[tuple[Hop, ...], ...]:
    """Part `hops` into runs through which a step is handed on, by the nodes of `onward`."""
    return tuple(_segments(hops, onward))


def _segments(hops: Sequence[Hop], onward: Collection[NodeId]) -> Iterator[tuple[Hop, ...]]:
    run: tuple[Hop, ...] = ()
    for hop in hops:
        if run and (run[-1].node not in onward or hop.node in {each.node for each in run}):
            yield run
            run = ()
        run = (*run, hop)
    yield run
