"""Who takes which layers of a session over when it leaves a route, and whether that pays.

    old    n0 [0, 4)    n1 [4, 8)              n2 [8, 12)
    new    n0 [0, 4)    s0 [4, 6)  s1 [6, 8)   n2 [8, 12)
    takings             s0, s1 from n1

A hop that is the same on both keeps what it has. Every other one takes its layers from the one old
hop that holds them all; its arithmetic must be that hop's, or what it would go on with is not what
it would have computed itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshnet.core.routing.finding import Inventory
from meshnet.core.vocabulary import Hop, NodeId, Route, ShardDescription


@dataclass(frozen=True, slots=True)
class Taking:
    """One hop that takes its layers over: about so many bytes."""

    hop: Hop
    giver: NodeId
    bytes: int


def takings(inventory: Inventory, old: Route, new: Route, length: int) -> tuple[Taking, ...] | None:
    """Return who takes what over of a session of `length` positions; None: it cannot be moved."""
    holders = {hop.node for hop in old.hops}
    found: list[Taking] = []
    for hop in new.hops:
        if hop in old.hops:
            continue
        taking = _taking(inventory, old, hop, length)
        # A node has one state of a session: it cannot take more layers beside those.
        if taking is None or hop.node in holders:
            return None
        holders.add(hop.node)
        found.append(taking)
    return tuple(found)


def moving_pays(
    moved_bytes: int, *, bytes_per_s: float, positions: int, positions_per_s: float | None
) -> bool:
    """Whether so many bytes come sooner than so many positions are computed again.

    `positions_per_s` None: nobody has measured it, and bytes at least cost no computing.
    """
    if positions_per_s is None:
        return True
    return moved_bytes / bytes_per_s <= positions / positions_per_s


def _taking(inventory: Inventory, old: Route, hop: Hop, length: int) -> Taking | None:
    giver = next((each for each in old.hops if each.layers.holds(hop.layers)), None)
    if giver is None:
        return None
    there, here = _shard(inventory, giver, old), _shard(inventory, hop, old)
    if there is None or here is None or there.arithmetic != here.arithmetic:
        return None
    if not (there.capabilities.moves and here.capabilities.moves):
        return None
    size = there.kv_bytes.per_token * length + there.kv_bytes.fixed
    return Taking(hop, giver.node, size * len(hop.layers) // len(there.layers))


def _shard(inventory: Inventory, hop: Hop, route: Route) -> ShardDescription | None:
    node = inventory.nodes.get(hop.node)
    kind = (route.model, route.fingerprint)
    shards = () if node is None else node.shards
    return next((each for each in shards if (each.model, each.fingerprint) == kind), None)
