"""What a running mesh was predicted to do, beside what its last answers did.

Its layout is what its nodes hold now: at each layer the one that gets furthest, as routes go. The
prediction is of one session alone; answers that came side by side were slower for that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from meshnet.core.planning import Cutting, Mesh, ModelShape, Wanted, predict
from meshnet.core.protocol.fields import Fields
from meshnet.core.vocabulary import BadField, Hop, LayerRange, NodeId

NODES_MAX = 4096
LAYERS_MAX = 2**20


@dataclass(frozen=True, slots=True)
class Running:
    """Tokens a second, predicted of the present layout, and of the last `answers`."""

    predicted_tokens_per_s: float
    tokens_per_s: float
    answers: int

    def __str__(self) -> str:
        return (
            f"running now: {self.predicted_tokens_per_s:.1f} tokens/s predicted,"
            f" {self.tokens_per_s:.1f} in the last {self.answers} answers"
        )


@dataclass(frozen=True, slots=True)
class Live:
    """A mesh that runs: how it does, what its nodes hold, and what they would better hold."""

    running: Running | None
    held: Mapping[NodeId, LayerRange]
    better: Mapping[NodeId, LayerRange]

    @property
    def changes(self) -> dict[NodeId, LayerRange]:
        return {node: to for node, to in self.better.items() if self.held.get(node) != to}

    def values(self) -> dict[str, Any]:
        """Return what `meshnet plan --json` adds for a gateway's nodes."""
        return {
            "running": None if self.running is None else asdict(self.running),
            "changes": {node: [to.start, to.stop] for node, to in self.changes.items()},
        }

    def __str__(self) -> str:
        lines = [] if self.running is None else [str(self.running)]
        lines += [f"to change: {node} to layers {to}" for node, to in self.changes.items()]
        if not self.changes:
            lines.append("what nodes hold may stay: another layout gains less than a tenth")
        return "\n".join(lines)


def running(
    told: Fields, shape: ModelShape, mesh: Mesh, wanted: Wanted, *, cutting: Cutting, chain: bool
) -> Running | None:
    """Read `GET /mesh`; None: no answers yet, or a layout that cannot be predicted.

    Raises BadField.
    """
    if not told.has("answers"):
        return None
    answers = told.object("answers")
    count, rate = answers.integer("answers", low=1), answers.number("tokens_per_s")
    hops = present(held_layers(told), len(shape.layers))
    if hops is None:
        return None
    try:
        predicted = predict(hops, shape, mesh, wanted, cutting=cutting, chain=chain)
    except BadField:  # a node of it has not measured itself
        return None
    return Running(predicted.tokens_per_s, rate, count)


def held_layers(told: Fields) -> dict[NodeId, LayerRange]:
    """Return what each node holds by `GET /mesh`. Raises BadField."""
    held = {}
    for node in told.objects("nodes", count_max=NODES_MAX):
        layers = node.integers("layers", count_max=2, high=LAYERS_MAX)
        if len(layers) == 2 and layers[0] < layers[1]:
            held[NodeId(node.text("url"))] = LayerRange(*layers)
    return held


def present(held: Mapping[NodeId, LayerRange], total: int) -> tuple[Hop, ...] | None:
    """Return who runs what, or None if some layer is held by nobody."""
    hops: list[Hop] = []
    done = 0
    while done < total:
        able = [node for node, layers in held.items() if layers.start <= done < layers.stop]
        if not able:
            return None
        node = max(able, key=lambda each: held[each].stop)
        hops.append(Hop(node, LayerRange(done, min(held[node].stop, total))))
        done = hops[-1].layers.stop
    return tuple(hops)
