"""Nodes as they measured themselves, and the ways between them, also those nobody measured.

    measured by either end          that
    both on one machine             next to nothing
    both measured by the gateway    over the gateway: no way is longer than that
    else                            a common wired network

Nodes of equal `machine` share its memory, its cores and its caches. While a plan uses one of them
alone it has all of it; of several each has its part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from meshnet.core.vocabulary import Capacity, Link, NodeId, Speed, WeightFormat

HEAD = NodeId("")
"""Stands for the gateway where the ends of ways are named."""


@dataclass(frozen=True, slots=True)
class Way:
    """From one process to another, one way."""

    latency_s: float
    bytes_per_s: float

    def seconds(self, size: float) -> float:
        return self.latency_s + size / self.bytes_per_s

    def then(self, onward: Way) -> Way:
        """One after the other; between them all of a message waits for its last byte."""
        rate = 1.0 / (1.0 / self.bytes_per_s + 1.0 / onward.bytes_per_s)
        return Way(self.latency_s + onward.latency_s, rate)


LOCAL = Way(0.0, 2e9)
"""Within a machine. What a message costs at its ends is in the steps of nodes."""
UNKNOWN = Way(250e-6, 1e8)


@dataclass(frozen=True, slots=True)
class Mesh:
    """What a plan can be made of."""

    nodes: Mapping[NodeId, Capacity]
    head: tuple[Link, ...] = ()
    """From the gateway to nodes."""
    head_machine: str = ""
    """Where the gateway runs; empty: on none of the nodes' machines."""
    head_s: float = 0.0
    """What the gateway adds to a token."""

    def speed(self, node: NodeId, weights: WeightFormat) -> Speed | None:
        return next((each for each in self.nodes[node].speeds if each.weights is weights), None)


class Ways:
    """How messages go, between any two of the nodes and the gateway."""

    def __init__(self, mesh: Mesh, *, chain: bool) -> None:
        """`chain`: from node to node; else over the gateway."""
        self._chain = chain
        self._machines = {node: capacity.machine for node, capacity in mesh.nodes.items()}
        self._machines[HEAD] = mesh.head_machine
        self._measured: dict[tuple[NodeId, NodeId], Way] = {}
        for node, capacity in mesh.nodes.items():
            self._note(node, capacity.links)
        self._note(HEAD, mesh.head)

    def _note(self, source: NodeId, links: Collection[Link]) -> None:
        for link in links:
            self._measured[source, link.node] = Way(link.round_trip_s / 2, link.bytes_per_s)

    def between(self, source: NodeId, target: NodeId) -> Way:
        if self._chain or HEAD in (source, target):
            return self._straight(source, target)
        return self._straight(source, HEAD).then(self._straight(HEAD, target))

    def _straight(self, source: NodeId, target: NodeId) -> Way:
        measured = self._either(source, target)
        if measured is not None:
            return measured
        machine = self._machines[source]
        if machine and machine == self._machines[target]:
            return LOCAL
        if HEAD in (source, target):
            return UNKNOWN
        there, back = self._either(source, HEAD), self._either(HEAD, target)
        if there is None or back is None:
            return UNKNOWN
        return there.then(back)

    def _either(self, source: NodeId, target: NodeId) -> Way | None:
        return self._measured.get((source, target)) or self._measured.get((target, source))


@dataclass(frozen=True, slots=True)
class Share:
    """What a node has of its machine."""

    memory_bytes: int
    slower: float
    """How many times as long work takes while all nodes there work at once."""


class Machines:
    """What nodes have of their machines, alone or beside others that a plan uses there."""

    def __init__(self, mesh: Mesh) -> None:
        self._nodes = mesh.nodes
        self._counts = Counter(each.machine for each in mesh.nodes.values())
        self._threads: Counter[str] = Counter()
        for each in mesh.nodes.values():
            self._threads[each.machine] += each.threads

    def has_neighbours(self, node: NodeId) -> bool:
        """Whether other nodes are on the machine of this one."""
        return self._counts[self._nodes[node].machine] > 1

    def shared(self, used: Iterable[NodeId]) -> frozenset[NodeId]:
        """Return those of the nodes that are on one machine with others of them."""
        used = tuple(used)
        counts = Counter(self._nodes[node].machine for node in used)
        return frozenset(node for node in used if counts[self._nodes[node].machine] > 1)

    def share(self, node: NodeId, *, shared: bool) -> Share:
        """If shared, with all nodes there: which of them a plan will use is not known yet."""
        own = self._nodes[node]
        if not shared:
            return Share(own.memory_bytes, 1.0)
        threads = self._threads[own.machine]
        return Share(
            own.memory_bytes // self._counts[own.machine],
            max(1.0, threads / (own.cores or threads)),
        )
