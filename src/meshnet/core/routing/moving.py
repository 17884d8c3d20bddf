"""Who takes a session's layers over from the hops that drain, and whether that pays.

    old    n0 [0, 4)    n1 [4, 8) drains       n2 [8, 12)
    new    n0 [0, 4)    s0 [4, 6)  s1 [6, 8)   n2 [8, 12)      s0 and s1 take over from n1

The other hops stay as they are. A hop that drains is replaced by the fewest nodes that hold its
layers and nothing of the session yet (a node has one state of it), whose arithmetic is that hop's:
else what they would go on with is not what they would have computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshnet.core.routing.finding import Inventory, load_of, route_over
from meshnet.core.vocabulary import (
    Hop,
    LayerRange,
    NodeDescription,
    NodeId,
    Route,
    ShardDescription,
)


@dataclass(frozen=True, slots=True)
class Taking:
    """One hop that takes its layers over: about so many bytes."""

    hop: Hop
    giver: NodeId
    bytes: int
    bytes_per_s: float | None = None
    """Of the way there, if one of the two has measured it."""


def find_move(
    inventory: Inventory, old: Route, length: int
) -> tuple[Route, tuple[Taking, ...]] | None:
    """Return where a session of `length` positions can move from the hops of `old` that drain, and
    who takes what over; None: nowhere."""
    holders = {hop.node for hop in old.hops}
    hops: list[Hop] = []
    takings: list[Taking] = []
    for hop in old.hops:
        node, shard = inventory.nodes.get(hop.node), _shard(inventory, hop.node, old)
        if node is None or shard is None:
            return None
        if not node.draining:
            hops.append(hop)
            continue
        instead = _instead(inventory, old, hop, shard, holders)
        if instead is None:
            return None
        holders |= {each.node for each in instead}
        hops += instead
        takings += [
            Taking(
                each,
                hop.node,
                _bytes(shard, each, length),
                _link(inventory, each.node, hop.node) or _link(inventory, hop.node, each.node),
            )
            for each in instead
        ]
    shards = [shard for hop in hops if (shard := _shard(inventory, hop.node, old)) is not None]
    return route_over(old.model, hops, shards, inventory), tuple(takings)


def moving_pays(
    takings: Sequence[Taking],
    *,
    bytes_per_s: float,
    positions: int,
    positions_per_s: float | None,
) -> bool:
    """Whether all bytes come sooner than so many positions are computed again.

    `bytes_per_s` is of ways that nobody measured. `positions_per_s` None: nobody has measured it,
    and bytes at least cost no computing.
    """
    if positions_per_s is None:
        return True
    moved_s = sum(taking.bytes / (taking.bytes_per_s or bytes_per_s) for taking in takings)
    return moved_s <= positions / positions_per_s


def _instead(
    inventory: Inventory,
    old: Route,
    hop: Hop,
    giver: ShardDescription,
    holders: set[NodeId],
) -> list[Hop] | None:
    """Return hops that cover the layers of `hop` without it: at each cut the one that reaches
    furthest, so there are none fewer."""
    able = [
        (node, shard)
        for node in inventory.nodes.values()
        if _takes(node, inventory, holders) and giver.capabilities.moves
        and (shard := _shard(inventory, node.node, old)) is not None
        and shard.capabilities.moves and shard.arithmetic == giver.arithmetic
    ]  # fmt: skip
    instead: list[Hop] = []
    at = hop.layers.start
    while at < hop.layers.stop:
        reached = [
            (_reach(shard, at, hop.layers.stop), -load_of(node), node.node)
            for node, shard in able
            if node.node not in {each.node for each in instead}
        ]
        stop, _, name = max(reached, default=(at, 0.0, ""))
        if stop <= at:
            return None
        instead.append(Hop(NodeId(name), LayerRange(at, stop), inventory.nodes[NodeId(name)].wire))
        at = stop
    return instead


def _takes(node: NodeDescription, inventory: Inventory, holders: set[NodeId]) -> bool:
    known = node.node in holders or node.node in inventory.suspects
    return node.ready and not node.draining and not known


def _reach(shard: ShardDescription, at: int, stop: int) -> int:
    """Return up to where `shard` can run layers from `at` on; `at` if it cannot."""
    if not shard.layers.start <= at < shard.layers.stop:
        return at
    reach = min(shard.layers.stop, stop)
    cut = [run.start for run in shard.inseparable if run.start < reach < run.stop]
    return min(cut, default=reach)


def _bytes(giver: ShardDescription, hop: Hop, length: int) -> int:
    size = giver.kv_bytes.per_token * length + giver.kv_bytes.fixed
    return size * len(hop.layers) // len(giver.layers)


def _link(inventory: Inventory, one: NodeId, other: NodeId) -> float | None:
    """Return the bytes a second that `one` measured to `other`."""
    capacity = inventory.nodes[one].capacity
    links = () if capacity is None else capacity.links
    return next((link.bytes_per_s for link in links if link.node == other), None)


def _shard(inventory: Inventory, node: NodeId, route: Route) -> ShardDescription | None:
    described = inventory.nodes.get(node)
    kind = (route.model, route.fingerprint)
    shards = () if described is None else described.shards
    return next((each for each in shards if (each.model, each.fingerprint) == kind), None)
