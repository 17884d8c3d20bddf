"""What a model asks of the nodes that run it: bytes and multiply-adds, layer by layer.

Of one weight format, and known from the model's configuration alone: no weight was read. Layers
may differ (experts, windows, recurrent states).

Invariant: every figure is of one layer, or of what stands before the first or behind the last, so
that what a range of layers asks is a sum.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshnet.core.vocabulary import BadField, KVBytes, LayerRange, ModelId, WeightFormat


@dataclass(frozen=True, slots=True)
class LayerShape:
    """One layer."""

    weight_bytes: int
    multiplies: int
    """Multiply-adds of one position with weights; attention apart."""
    kv_bytes: KVBytes
    """What a session takes."""
    position_bytes: int = 0
    """Keys and values of one position, as each later one reads them."""
    window: int | None = None
    """Positions that one sees at most, itself included; None is all."""
    state_bytes: int = 0
    """Read by every position, whatever came before it."""
    routed_bytes: int = 0
    """Of the weights, those of experts."""
    routed_share: float = 1.0
    """Of the experts, those that one position goes through."""

    def read_bytes(self, rows: int) -> float:
        """Weights that a step of so many positions reads, each choosing experts for itself."""
        return self.weight_bytes - self.routed_bytes * (1.0 - self.routed_share) ** rows

    def attended_bytes(self, seen: float) -> float:
        """Keys, values and states that a position reads which sees `seen` positions."""
        within = seen if self.window is None else min(seen, self.window)
        return self.position_bytes * within + self.state_bytes


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A model in one weight format."""

    model: ModelId
    weights: WeightFormat
    layers: tuple[LayerShape, ...]
    embedding_bytes: int
    """What the node of the first layer holds beside its layers."""
    head_bytes: int
    """Norm and output head: the node of the last layer holds them, and reads them for a token."""
    head_multiplies: int
    activation_bytes: int
    """Of one position between two hops."""
    hidden_size: int
    context_length: int
    shared_bytes: int = 0
    """Of both ends, what a node that has both holds once."""
    common_bytes: int = 0
    """What every node holds beside its layers."""
    inseparable: tuple[LayerRange, ...] = ()

    @property
    def weight_bytes(self) -> int:
        """Of the whole model, on one node."""
        return self.weight_bytes_of(LayerRange(0, len(self.layers)))

    def weight_bytes_of(self, layers: LayerRange) -> int:
        """What a node holds that has exactly these layers."""
        return self.common_bytes + self.ends_bytes(layers) + self.layer_bytes(layers)

    def layer_bytes(self, layers: LayerRange) -> int:
        return sum(layer.weight_bytes for layer in self.layers[layers.start : layers.stop])

    def ends_bytes(self, layers: LayerRange) -> int:
        """What a node of these layers holds of embedding, norm and output head."""
        first, last = layers.start == 0, layers.stop == len(self.layers)
        whole = self.embedding_bytes * first + self.head_bytes * last
        return whole - self.shared_bytes * (first and last)

    @property
    def kv_token_bytes(self) -> int:
        """What one more token of a session takes, on all nodes together."""
        return sum(layer.kv_bytes.per_token for layer in self.layers)

    def kv_bytes_of(self, layers: LayerRange, *, context: int, sessions: int) -> int:
        """What sessions of `context` tokens take on a node of these layers."""
        held = self.layers[layers.start : layers.stop]
        return sessions * sum(layer.kv_bytes.of(context) for layer in held)

    def cuts(self) -> tuple[int, ...]:
        """Where a hop may end, ascending; the last layer's end included."""
        inside = {cut for run in self.inseparable for cut in range(run.start + 1, run.stop)}
        return tuple(cut for cut in range(1, len(self.layers) + 1) if cut not in inside)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the mesh is to serve. Raises BadField: no such sessions."""

    context: int
    """Tokens that each of the sessions may come to."""
    sessions: int = 1
    """At the same time."""
    prompt: int = 512
    """Tokens of the prompt for which times are told; the answer begins behind it."""

    def __post_init__(self) -> None:
        for name, value in (("context", self.context), ("sessions", self.sessions)):
            if value < 1:
                raise BadField(name, "at least 1", value)
        if not 1 <= self.prompt <= self.context:
            raise BadField("prompt", f"1 to {self.context} tokens, the context", self.prompt)
