"""Which nodes a step visits, in which order, and which layers each runs.

A route is an exact cover of [0, total): every layer once, in order. A hop may run a sub-range of
what its node holds (an ADR-0022 node runs all of it). All shards of a route are of one
fingerprint, and no inseparable run is cut.
Where a running generation keeps some hops (ADR-0041), the best route has the fewest other hops that
cannot cache, then of other arithmetic than theirs, then the fewest layers on other hops.
Among the routes possible: fewest hops, then fewest suspects, then fewest hops that cannot
cache, then the least load; ties fall by node id, so equal inventories give equal routes.

Only some cuts need trying: a cut can always be moved right until its left shard ends or an
inseparable run begins, which never adds a hop. A shard is visited once, since it holds one part
of a session: the fewest hops never do otherwise, but those kept may leave it the parts around them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from meshnet.core.vocabulary import (
    Hop,
    LayerRange,
    ModelId,
    NodeDescription,
    NodeId,
    Route,
    ShardDescription,
)


@dataclass(frozen=True, slots=True)
class Inventory:
    """Snapshot of who serves what; `suspects` failed lately and are the second choice."""

    nodes: Mapping[NodeId, NodeDescription]
    suspects: frozenset[NodeId] = frozenset()


@dataclass(frozen=True, slots=True)
class NoRoute:
    """Why a model cannot be run now. `missing` is empty if no node knows the model at all."""

    model: ModelId
    missing: tuple[LayerRange, ...]
    parted: tuple[NodeId, ...] = ()
    """There is a way, but these nodes cannot hand steps on to the next on it."""

    def __str__(self) -> str:
        if self.parted:
            nodes = ", ".join(self.parted)
            return f"no chain for {self.model}: {nodes} cannot hand on to the next node"
        if not self.missing:
            return f"no ready node serves {self.model}"
        layers = ", ".join(map(str, self.missing))
        return f"no ready node serves layers {layers} of {self.model}"


@dataclass(frozen=True, slots=True)
class _Holding:
    """A shard with what its choice costs."""

    node: NodeId
    shard: ShardDescription
    suspect: bool
    load: float
    wire: int

    def runs(self, layers: LayerRange) -> bool:
        """An ADR-0022 node knows no layers field: it runs all it holds, whatever is asked."""
        held = self.shard.layers
        return held == layers if self.wire == 0 else held.holds(layers)


Change = tuple[int, int, int]
"""Of the hops that are not kept: how many cannot cache, are of other arithmetic; their layers."""
NO_CHANGE: Change = (0, 0, 0)
Cost = tuple[Change, int, int, int, float, tuple[tuple[NodeId, int], ...]]


@dataclass(frozen=True, slots=True)
class _Way:
    """The best hops from layer 0 to some cut."""

    cost: Cost = (NO_CHANGE, 0, 0, 0, 0.0, ())
    holdings: tuple[_Holding, ...] = ()
    hops: tuple[Hop, ...] = field(default=())

    def visits(self, node: NodeId) -> bool:
        return any(hop.node == node for hop in self.hops)

    def extended(self, holding: _Holding, layers: LayerRange, kept: _Kept) -> _Way:
        hop = Hop(holding.node, layers, holding.wire)
        change, hops, suspects, uncached, load, names = self.cost
        cost = (
            kept.change(change, hop, holding.shard),
            hops + 1,
            suspects + holding.suspect,
            uncached + (not holding.shard.capabilities.kv_cache),
            load + holding.load,
            (*names, (holding.node, holding.shard.layers.start)),
        )
        return _Way(cost, (*self.holdings, holding), (*self.hops, hop))


class _Kept:
    """The hops that a running generation would keep, and of what arithmetic they are."""

    def __init__(self, hops: Collection[Hop], inventory: Inventory, model: ModelId) -> None:
        self.hops = frozenset(hops)
        self._arithmetic = {
            shard.arithmetic
            for hop in hops
            if (node := inventory.nodes.get(hop.node)) is not None
            for shard in node.shards
            if shard.model == model
        }

    def change(self, before: Change, hop: Hop, shard: ShardDescription) -> Change:
        if not self.hops or hop in self.hops:
            return before
        uncached, unlike, layers = before
        return (
            uncached + (not shard.capabilities.kv_cache),
            unlike + (bool(self._arithmetic) and shard.arithmetic not in self._arithmetic),
            layers + len(hop.layers),
        )


def find_route(
    inventory: Inventory,
    model: ModelId,
    avoid: Collection[NodeId] = (),
    fingerprint: str | None = None,
    *,
    chained: bool = False,
    keep: Collection[Hop] = (),
) -> Route | NoRoute:
    """Return the best route over ready nodes outside `avoid`, or what is missing for one.

    Nodes that drain take no new sessions, and are on no route.

    `fingerprint`: only shards of exactly these weights and this tokenizer. `chained`: only if a
    step can go from the first hop to the last without the head. `keep`: hops that hold something
    of the generation that asks.
    """
    kept = _Kept(keep, inventory, model)
    kinds = [
        holdings
        for holdings in _by_kind(_holdings(inventory, model, avoid))
        if fingerprint in (None, holdings[0].shard.fingerprint)
    ]
    ways = [way for holdings in kinds if (way := _best_way(holdings, kept)) is not None]
    if not ways and keep:
        return find_route(inventory, model, avoid, fingerprint, chained=chained)
    if not ways:
        missing = [_missing(holdings) for holdings in kinds]
        return NoRoute(model, min(missing, key=_layers_in, default=()))
    best = min(ways, key=lambda way: way.cost)
    shards = [holding.shard for holding in best.holdings]
    route = route_over(model, best.hops, shards, inventory)
    if chained and len(route.segments) > 1:
        return NoRoute(model, (), tuple(run[-1].node for run in route.segments[:-1]))
    return route


def route_over(
    model: ModelId,
    hops: Sequence[Hop],
    shards: Sequence[ShardDescription],
    inventory: Inventory,
) -> Route:
    """Return the route over `hops`, which run these shards."""
    capabilities = [shard.capabilities for shard in shards]
    return Route(
        model=model,
        hops=tuple(hops),
        kv_cache=all(capability.kv_cache for capability in capabilities),
        multi_token=all(capability.multi_token for capability in capabilities),
        truncate=all(capability.truncate for capability in capabilities),
        marks=all(capability.shortens for capability in capabilities),
        onward=_onward(hops, inventory),
        fingerprint=shards[0].fingerprint,
        replay=frozenset(hop.node for hop in hops if inventory.nodes[hop.node].replay),
        arithmetic=frozenset(shard.arithmetic for shard in shards),
    )


def _onward(hops: Sequence[Hop], inventory: Inventory) -> frozenset[NodeId]:
    """Say which nodes can hand steps on to the next: both know how, and the one knows the other."""
    able = {hop.node for hop in hops if (node := inventory.nodes[hop.node]).stream and node.chain}
    return frozenset(
        hop.node
        for hop, after in pairwise(hops)
        if hop.node in able and after.node in able & {*inventory.nodes[hop.node].peers}
    )


def _holdings(inventory: Inventory, model: ModelId, avoid: Collection[NodeId]) -> list[_Holding]:
    return [
        _Holding(node, shard, node in inventory.suspects, load_of(description), description.wire)
        for node, description in sorted(inventory.nodes.items())
        if description.ready and not description.draining and node not in avoid
        for shard in description.shards
        if shard.model == model
    ]


def load_of(node: NodeDescription) -> float:
    """Return how full a node is, 0 to 1, by the scarcer of places and bytes."""
    return max(node.sessions / max(node.sessions_max, 1), node.kv_bytes / max(node.kv_bytes_max, 1))


def _by_kind(holdings: Iterable[_Holding]) -> list[list[_Holding]]:
    """Group what may meet in one route: equal fingerprint and depth, in a fixed order."""
    kinds: dict[tuple[str, int], list[_Holding]] = {}
    for holding in holdings:
        key = (holding.shard.fingerprint, holding.shard.layers_total)
        kinds.setdefault(key, []).append(holding)
    return [kinds[key] for key in sorted(kinds)]


def _best_way(holdings: Sequence[_Holding], kept: _Kept) -> _Way | None:
    total = holdings[0].shard.layers_total
    best: dict[int, _Way] = {0: _Way()}
    cuts = _cuts(holdings, total, kept.hops)
    choices = _choices(holdings, kept)
    for at, stop in enumerate(cuts):
        for start in (0, *cuts[:at]):
            if start not in best:
                continue
            layers = LayerRange(start, stop)
            for holding in choices:
                if holding.runs(layers) and not (kept.hops and best[start].visits(holding.node)):
                    way = best[start].extended(holding, layers, kept)
                    if stop not in best or way.cost < best[stop].cost:
                        best[stop] = way
    return best.get(total)


def _choices(holdings: Sequence[_Holding], kept: _Kept) -> list[_Holding]:
    """Return those that may be on a best way: of many alike the best few, and all that are kept.

    A way visits nobody twice, so behind and between kept hops it may need one more of a kind.
    """
    nodes = {hop.node for hop in kept.hops}
    alike: dict[tuple[LayerRange, bool, str], list[_Holding]] = {}
    for holding in holdings:
        arithmetic = holding.shard.arithmetic if nodes else ""
        key = (holding.shard.layers, holding.wire == 0, arithmetic)
        alike.setdefault(key, []).append(holding)
    chosen = [holding for holding in holdings if holding.node in nodes]
    for each in alike.values():
        others = [holding for holding in each if holding.node not in nodes]
        chosen += sorted(others, key=_rank_beside_kept if nodes else _rank)[: len(nodes) + 1]
    return chosen


def _rank(holding: _Holding) -> tuple[bool, bool, float, NodeId]:
    uncached = not holding.shard.capabilities.kv_cache
    return holding.suspect, uncached, holding.load, holding.node


def _rank_beside_kept(holding: _Holding) -> tuple[bool, bool, float, NodeId]:
    """As costs count beside hops that are kept: a hop without a cache ends theirs."""
    suspect, uncached, load, node = _rank(holding)
    return uncached, suspect, load, node


def _cuts(holdings: Sequence[_Holding], total: int, kept: Collection[Hop]) -> list[int]:
    """Return the cuts worth trying, ascending, `total` last."""
    runs = _runs(holdings)
    cuts = {total, *(holding.shard.layers.stop for holding in holdings)}
    cuts |= {run.start for run in runs}
    cuts |= {holding.shard.layers.start for holding in holdings if holding.wire == 0}
    cuts |= {cut for hop in kept for cut in (hop.layers.start, hop.layers.stop)}
    inside = {cut for cut in cuts for run in runs if run.start < cut < run.stop}
    return sorted(cut for cut in cuts - inside if 0 < cut <= total)


def _runs(holdings: Iterable[_Holding]) -> set[LayerRange]:
    return {run for holding in holdings for run in holding.shard.inseparable}


def _missing(holdings: Sequence[_Holding]) -> tuple[LayerRange, ...]:
    """Return the layers nobody holds, or else the inseparable runs that no shard holds whole."""
    total = holdings[0].shard.layers_total
    held = [holding.shard.layers for holding in holdings]
    missing = []
    covered = 0
    for layers in [*sorted(held), LayerRange(total, total + 1)]:
        if layers.start > covered:
            missing.append(LayerRange(covered, layers.start))
        covered = max(covered, layers.stop)
    if missing:
        return tuple(missing)
    runs = sorted(_runs(holdings))
    return tuple(run for run in runs if not any(layers.holds(run) for layers in held))


def _layers_in(ranges: Sequence[LayerRange]) -> tuple[int, Sequence[LayerRange]]:
    return sum(map(len, ranges)), ranges
