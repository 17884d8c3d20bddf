"""Which nodes run which layers, in which order, and who is better left out.

    few nodes     exact: every order, every cut, and whether to split at all
    many          those that add least to a layer's time, twice as many as could hold the model;
                  a narrow search over them, then an exact one over what it chose

"Few" is not a number: the exact search bounds its own work, and a plan says if it came to its end.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from meshnet.core.planning.leaving import LeftOut, left_out
from meshnet.core.planning.mesh import HEAD, Mesh
from meshnet.core.planning.predicting import Cutting, Prediction, predict
from meshnet.core.planning.scoring import Scores
from meshnet.core.planning.search import Found, Search
from meshnet.core.planning.shape import ModelShape, Wanted
from meshnet.core.vocabulary import Hop, LayerRange, NodeId

NODES_FEW = 12
"""All of so many nodes are looked at."""
CUTS_FEW = 48
"""Among more, a first search looks at every second one, or fourth."""
ROOM = 2.0
"""Of many nodes so many are looked at that they could hold the model as often as this."""
WIDTH = 8
NARROW_MAX = 150_000
EXTENSIONS_MAX = 1_000_000
"""Work of a narrow and of an exact search: half a second, and one or two."""
SLOWER_MOST = 1.1
"""A token's time may grow by so much before layers move that are in their places."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Who runs what, and what is to be expected of it."""

    hops: tuple[Hop, ...]
    prediction: Prediction
    left_out: tuple[LeftOut, ...]
    best: bool
    """Whether no other plan scores better; else better ones may have been missed."""


@dataclass(frozen=True, slots=True)
class NoPlan:
    """Why the model cannot run."""

    reason: str

    def __str__(self) -> str:
        return self.reason


def plan(
    shape: ModelShape,
    mesh: Mesh,
    wanted: Wanted,
    *,
    cutting: Cutting,
    chain: bool = True,
    fixed: Mapping[NodeId, LayerRange] | None = None,
) -> Plan | NoPlan:
    """Find the plan that scores best (scoring.py).

    Args:
        cutting: how prompts are cut into chunks.
        chain: nodes hand steps on to each other; else each answers the gateway.
        fixed: layers that these nodes hold already: they run these, or a part of them, and other
            nodes run what none of them holds.
    """
    scores = Scores(shape, mesh, wanted, chain=chain)
    able = [node for node in sorted(mesh.nodes) if mesh.speed(node, shape.weights)]
    found = _found(scores, able, fixed or {}) if able else None
    if found is None:
        return NoPlan(_why(scores, able, wanted))

    def predicted(hops: Sequence[Hop]) -> Prediction:
        return predict(hops, shape, mesh, wanted, cutting=cutting, chain=chain)

    others = left_out(scores, found.hops, predicted)
    return Plan(found.hops, predicted(found.hops), others, found.complete)


def _found(
    scores: Scores, able: Sequence[NodeId], fixed: Mapping[NodeId, LayerRange]
) -> Found | None:
    cuts = scores.cuts
    if len(able) <= NODES_FEW:
        first = Search(scores, able, cuts, fixed).run(width=WIDTH, extensions_max=NARROW_MAX)
        return Search(scores, able, cuts, fixed).run(best=first, extensions_max=EXTENSIONS_MAX)
    chosen = shortlist(scores, able, fixed)
    few = _thinned(cuts, fixed)
    first = Search(scores, chosen, few, fixed).run(width=WIDTH, extensions_max=NARROW_MAX)
    if first is None:
        first = Search(scores, chosen, cuts, fixed).run(width=1, extensions_max=NARROW_MAX)
    if first is None:
        return None
    used = [hop.node for hop in first.hops]
    others = [node for node in chosen if node not in used][: max(0, NODES_FEW - len(used))]
    last = Search(scores, [*used, *others], cuts, fixed)
    found = last.run(width=WIDTH, best=first, extensions_max=NARROW_MAX)
    return found and Found(found.hops, found.score, complete=False)


def shortlist(
    scores: Scores, able: Sequence[NodeId], fixed: Mapping[NodeId, LayerRange]
) -> list[NodeId]:
    """Return the nodes that add least to a layer's time, enough of them, the best first."""
    rated = sorted((*_rating(scores, node), node) for node in able if node not in fixed)
    total = len(scores.shape.layers)
    chosen, layers = [node for node in able if node in fixed], 0
    for _, held, node in rated:
        if held and (layers < ROOM * total or len(chosen) < NODES_FEW):
            chosen.append(node)
            layers += held
    return chosen


def _rating(scores: Scores, node: NodeId) -> tuple[float, int]:
    """Seconds for each layer of as many as fit, ways included; and how many fit."""
    place = scores.place(node, shared=scores.machines.has_neighbours(node))
    cuts = scores.cuts
    fitting = bisect_right(cuts, False, key=lambda c: not scores.fits(place, LayerRange(0, c)))
    if not fitting:
        return float("inf"), 0
    layers = LayerRange(0, cuts[fitting - 1])
    ways_s = scores.way(HEAD, node).sum_s + scores.way(node, HEAD).sum_s
    return (scores.hop(place, layers).sum_s + ways_s) / len(layers), len(layers)


def _thinned(cuts: Sequence[int], fixed: Mapping[NodeId, LayerRange]) -> list[int]:
    """Every n-th cut, the last one, and those of ranges that are fixed."""
    stride = -(-len(cuts) // CUTS_FEW)
    ends = {end for layers in fixed.values() for end in (layers.start, layers.stop)}
    last = len(cuts) - 1
    return [cut for at, cut in enumerate(cuts) if (last - at) % stride == 0 or cut in ends]


def _why(scores: Scores, able: Collection[NodeId], wanted: Wanted) -> str:
    shape, mesh = scores.shape, scores.mesh
    if not able:
        return f"no node has measured how fast it is in {shape.weights.value}"
    whole = LayerRange(0, len(shape.layers))
    needed, room = scores.needs.all_bytes(whole), 0
    for machine in {mesh.nodes[node].machine for node in able}:
        room += max(mesh.nodes[n].memory_bytes for n in able if mesh.nodes[n].machine == machine)
    asked = f"{wanted.sessions} session(s) of {wanted.context} tokens"
    kv = scores.needs.kv_bytes(whole)
    takes = f"{shape.model} in {shape.weights.value} takes {needed:,} bytes, {kv:,} of them for"
    if needed > room:
        return f"{takes} {asked}; the nodes have {room:,}"
    return f"{takes} {asked}; the nodes have {room:,}, but in pieces that its layers do not fit"


def assignments(
    shape: ModelShape,
    mesh: Mesh,
    wanted: Wanted,
    present: Mapping[NodeId, LayerRange],
    *,
    cutting: Cutting,
    chain: bool = True,
) -> Mapping[NodeId, LayerRange] | NoPlan:
    """Tell each node its layers; who is told none is a spare.

    Layers that are in their places stay there where that costs less than `SLOWER_MOST`; then only
    holes are filled. Nodes that the plan does without keep what they have in any case.
    """
    here = {node: layers for node, layers in present.items() if node in mesh.nodes}
    best = plan(shape, mesh, wanted, cutting=cutting, chain=chain)
    if isinstance(best, NoPlan):
        return best
    kept = plan(shape, mesh, wanted, cutting=cutting, chain=chain, fixed=here)
    if isinstance(kept, NoPlan) or _slower(kept, best) > SLOWER_MOST:
        return here | {hop.node: hop.layers for hop in best.hops}
    return {hop.node: hop.layers for hop in kept.hops} | here


def _slower(one: Plan, other: Plan) -> float:
    return one.prediction.token_s / other.prediction.token_s
