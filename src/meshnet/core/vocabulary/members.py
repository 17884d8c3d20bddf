"""Who is in the mesh, in which state, and which layers it was told to hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from meshnet.core.vocabulary.capacity import Capacity
from meshnet.core.vocabulary.identity import ModelId, NodeId
from meshnet.core.vocabulary.layers import LayerRange

MEMBERS_MAX = 1024


class MemberState(Enum):
    """What a member says of itself."""

    JOINING = "joining"
    """It holds no layers, and waits to be told some."""
    LOADING = "loading"
    READY = "ready"
    """Loaded and tested: it takes steps."""
    DRAINING = "draining"
    """It takes no new sessions, and will leave."""


@dataclass(frozen=True, slots=True)
class Member:
    """A node as it announces itself. It is known by the URL that others dial."""

    node: NodeId
    wire: int
    state: MemberState
    capacity: Capacity
    description: str = ""
    """Digest of what it says of its shards in `GET /node`; another one: ask again."""
    model: ModelId | None = None
    layers: LayerRange | None = None
    """What it holds or loads; None: nothing yet."""
    assigned: bool = False
    """Whether the mesh tells it what to hold; else its operator did."""
    epoch: int = 0
    """Of the assignment it follows; 0: none."""
    failure: str = ""
    """Why it cannot hold what it was told."""

    def __post_init__(self) -> None:
        if (self.model is None) != (self.layers is None):
            raise ValueError(f"member {self.node}: expected model and layers, or neither")

    def may_hand_on_to(self, other: Member) -> bool:
        """Whether a route may visit `other` right behind this one."""
        if self.layers is None or other.layers is None or self.model != other.model:
            return False
        return other.layers.start <= self.layers.stop and self.layers.start < other.layers.stop


@dataclass(frozen=True, slots=True)
class Assignment:
    """What one node is told to hold.

    `source` is what the gateway's user called the model: where a node knows the model by another
    path, it is started with its own `--model`.
    """

    model: ModelId
    source: str
    weights: str
    """A `WeightFormat`, or `auto`: as the node's own settings say, else by its device."""
    layers: LayerRange
    epoch: int
    """Later ones are higher; a node obeys none that is not."""


@dataclass(frozen=True, slots=True)
class Assignments:
    """What all nodes of the mesh are told to hold: one value, written as a whole."""

    model: ModelId
    source: str
    weights: str
    epoch: int = 0
    """Of the last change."""
    held: Mapping[NodeId, tuple[LayerRange, int]] = field(default_factory=dict)
    """Layers of each node, and the epoch in which it was told so."""

    def of(self, node: NodeId) -> Assignment | None:
        """Return what `node` is told; None: nothing yet."""
        if (held := self.held.get(node)) is None:
            return None
        return Assignment(self.model, self.source, self.weights, *held)

    def changed(self, ranges: Mapping[NodeId, LayerRange]) -> Assignments:
        """Return the next ones; who keeps its layers keeps its epoch."""
        epoch = self.epoch + 1
        held = {
            node: self.held[node]
            if node in self.held and self.held[node][0] == layers
            else (layers, epoch)
            for node, layers in ranges.items()
        }
        return Assignments(self.model, self.source, self.weights, epoch, held)
