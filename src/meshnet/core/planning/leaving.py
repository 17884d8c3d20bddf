"""Why a plan does without a node: it cannot take part, or it would make answers slower.

The latter is tried: the node is put in the place of a hop, or takes the first or the last layers
of one, and the best of that is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from meshnet.core.planning.predicting import Prediction
from meshnet.core.planning.scoring import Scores
from meshnet.core.vocabulary import Hop, LayerRange, NodeId

TRIED_MAX = 16
"""Of more nodes left out the others are only named."""
HOPS_TRIED = 4
PIECES = 4
"""Sizes of what a node takes of a hop that are tried."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A node that a plan does without."""

    node: NodeId
    reason: str


def left_out(
    scores: Scores,
    hops: Sequence[Hop],
    predicted: Callable[[Sequence[Hop]], Prediction],
) -> tuple[LeftOut, ...]:
    """Say of every node that is in none of the hops why."""
    used = {hop.node for hop in hops}
    cuts = scores.cuts
    pieces = (LayerRange(start, stop) for start, stop in zip((0, *cuts), cuts, strict=False))
    least = min(scores.needs.all_bytes(piece) for piece in pieces)
    others = [node for node in sorted(scores.mesh.nodes) if node not in used]
    reasons = [
        _unable(scores, node, least)
        or (_slower(scores, hops, node, predicted) if at < TRIED_MAX else "it makes nothing faster")
        for at, node in enumerate(others)
    ]
    return tuple(LeftOut(node, reason) for node, reason in zip(others, reasons, strict=True))


def _unable(scores: Scores, node: NodeId, least: int) -> str | None:
    """`least`: bytes of the smallest piece that a plan can be cut into."""
    if scores.mesh.speed(node, scores.shape.weights) is None:
        return f"it has measured nothing in {scores.shape.weights.value}"
    room = scores.place(node, shared=False).room_bytes
    if room < least:
        return f"it has room for {room:,} bytes, and the smallest piece takes {least:,}"
    return None


def _slower(
    scores: Scores,
    hops: Sequence[Hop],
    node: NodeId,
    predicted: Callable[[Sequence[Hop]], Prediction],
) -> str:
    rated = [(score, plan) for plan in _with(scores, hops, node) if (score := scores.score(plan))]
    if not rated:
        return "it has no room beside the others of its machine"
    best = predicted(min(rated, key=lambda each: each[0])[1])
    return (
        f"with it a token would take {best.token_s * 1e3:.2f} ms"
        f" and the first one {best.first_s:.2f} s"
    )


def _with(scores: Scores, hops: Sequence[Hop], node: NodeId) -> Iterator[tuple[Hop, ...]]:
    """Yield plans with the node in them that differ from `hops` at one place, a slow one."""
    slowest = sorted(range(len(hops)), key=lambda at: -_layer_s(scores, hops[at]))
    for at in slowest[:HOPS_TRIED]:
        hop = hops[at]
        before, after = tuple(hops[:at]), tuple(hops[at + 1 :])
        yield (*before, Hop(node, hop.layers), *after)
        start, stop = hop.layers.start, hop.layers.stop
        inside = [cut for cut in scores.cuts if start < cut < stop]
        for cut in inside[:: max(1, len(inside) // PIECES)]:
            first, second = LayerRange(start, cut), LayerRange(cut, stop)
            for one, other in ((node, hop.node), (hop.node, node)):
                yield (*before, Hop(one, first), Hop(other, second), *after)


def _layer_s(scores: Scores, hop: Hop) -> float:
    return scores.hop(scores.place(hop.node, shared=False), hop.layers).sum_s / len(hop.layers)
