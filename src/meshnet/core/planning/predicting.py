"""How fast a plan will be, before anything is loaded.

    one token, chain   head -> hop 0 -> hop 1 -> ... -> tail -> head: a sum of ways and steps
    one token, star    head -> hop 0 -> head -> hop 1 -> ... -> head
    a prompt           chunks follow each other through the hops, each as soon as hop, chunk and
                       as many cores as the node has threads are free
    several sessions   as many groups as hops, each a batch; a node, a machine's cores or the
                       longest way round bounds how often a group comes by

Invariant: the parts of a prediction add up to its time of a token.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from meshnet.core.planning.holding import Needs
from meshnet.core.planning.mesh import HEAD, Machines, Mesh, Ways
from meshnet.core.planning.shape import ModelShape, Wanted
from meshnet.core.planning.times import HopTime, StepRows, StepTimes
from meshnet.core.vocabulary import BadField, Hop, LayerRange, NodeId, Speed, check_cover

Cutting = Callable[[int, int, int], Iterable[int]]
"""(past, length, hops) -> where each chunk of a prompt ends (`generation.Chunking.ends`)."""
TOKEN_BYTES = 256
"""A message without an activation: ids, and what a frame has besides."""


@dataclass(frozen=True, slots=True)
class HopPrediction:
    """A hop's bytes, and what it has of a token's time."""

    node: NodeId
    layers: LayerRange
    weight_bytes: int
    kv_bytes: int
    room_bytes: int
    """What the node has for both."""
    way_s: float
    """Of the message to it."""
    time: HopTime

    @property
    def token_s(self) -> float:
        return self.way_s + self.time.total_s


@dataclass(frozen=True, slots=True)
class Prediction:
    """Of one plan and what is wanted of it."""

    hops: tuple[HopPrediction, ...]
    back_s: float
    """From the last hop to the gateway."""
    head_s: float
    """In the gateway."""
    first_s: float
    """From the prompt to its answer's first token, one session alone."""
    together_tokens_per_s: float
    """Of all sessions wanted, at the same time."""

    @property
    def token_s(self) -> float:
        """Of one session alone, right behind its prompt."""
        return sum(hop.token_s for hop in self.hops) + self.back_s + self.head_s

    @property
    def tokens_per_s(self) -> float:
        return 1.0 / self.token_s


def predict(
    hops: Sequence[Hop],
    shape: ModelShape,
    mesh: Mesh,
    wanted: Wanted,
    *,
    cutting: Cutting,
    chain: bool = True,
) -> Prediction:
    """Predict the times of a plan from what its nodes measured alone.

    Raises:
        BadField: the hops do not cover the layers, or a node of theirs is not in the mesh or has
            measured nothing in this weight format.
    """
    return _Run(hops, shape, mesh, wanted, chain=chain).prediction(cutting)


class _Run:
    """A plan at work."""

    def __init__(
        self,
        hops: Sequence[Hop],
        shape: ModelShape,
        mesh: Mesh,
        wanted: Wanted,
        *,
        chain: bool,
    ) -> None:
        check_hops(hops, shape, mesh)
        self._hops, self._shape, self._mesh, self._wanted = hops, shape, mesh, wanted
        self._needs = Needs(shape, wanted)
        machines = Machines(mesh)
        shared = machines.shared(hop.node for hop in hops)
        self._shared = [hop.node in shared for hop in hops]
        self._room_bytes = [
            machines.share(hop.node, shared=hop.node in shared).memory_bytes for hop in hops
        ]
        self._speeds = [speed_of(mesh, hop.node, shape) for hop in hops]
        ways = Ways(mesh, chain=chain)
        places = [HEAD, *(hop.node for hop in hops), HEAD]
        self._ways = [ways.between(*ends) for ends in pairwise(places)]

    def prediction(self, cutting: Cutting) -> Prediction:
        wanted, hops = self._wanted, self._hops
        times = self._times(StepRows.decode(wanted.prompt), draws=1)
        ways_s = self._ways_s(rows=1)
        return Prediction(
            hops=tuple(self._hop(at, ways_s[at], times[at]) for at in range(len(hops))),
            back_s=ways_s[-1],
            head_s=self._mesh.head_s,
            first_s=self._first_s([*cutting(0, wanted.prompt, len(hops))]),
            together_tokens_per_s=self._together(),
        )

    def _hop(self, at: int, way_s: float, time: HopTime) -> HopPrediction:
        hop = self._hops[at]
        return HopPrediction(
            node=hop.node,
            layers=hop.layers,
            weight_bytes=self._needs.weight_bytes(hop.layers),
            kv_bytes=self._needs.kv_bytes(hop.layers),
            room_bytes=self._room_bytes[at],
            way_s=way_s,
            time=time,
        )

    def _times(self, step: StepRows, *, draws: int) -> list[HopTime]:
        times = StepTimes(self._shape, step)
        every = zip(self._hops, self._speeds, self._shared, strict=True)
        return [
            times.on(
                speed,
                hop.layers,
                self._needs.rate(speed, hop.layers, shared=shared),
                draws=draws,
            )
            for hop, speed, shared in every
        ]

    def _sizes(self, rows: int) -> list[int]:
        """Bytes of a message to each hop and back to the head: ids in and out, else activations."""
        between = [rows * self._shape.activation_bytes] * (len(self._hops) - 1)
        return [TOKEN_BYTES, *between, TOKEN_BYTES]

    def _ways_s(self, rows: int) -> list[float]:
        return [way.seconds(size) for way, size in zip(self._ways, self._sizes(rows), strict=True)]

    def _first_s(self, ends: Sequence[int]) -> float:
        """Let the chunks go over the ways and through the hops, each in its turn."""
        ways_s, hops_s = [0.0] * len(self._ways), [0.0] * len(self._hops)
        cores = _Cores(self._mesh)
        past, ready_s = 0, 0.0
        for end in ends:
            sizes = self._sizes(end - past)
            times = self._times(StepRows.chunk(past, end), draws=int(end == ends[-1]))
            ready_s = 0.0
            for at, time in enumerate(times):
                way, size = self._ways[at], sizes[at]
                ways_s[at] = max(ready_s, ways_s[at]) + size / way.bytes_per_s
                ready_s = max(ways_s[at] + way.latency_s, hops_s[at])
                ready_s = hops_s[at] = cores.work(self._hops[at].node, ready_s, time.total_s)
            past = end
        return ready_s + self._ways[-1].seconds(TOKEN_BYTES) + self._mesh.head_s

    def _together(self) -> float:
        """Tokens a second of all sessions wanted, once each has its prompt behind it."""
        sessions = self._wanted.sessions
        groups = min(sessions, len(self._hops))
        batch = -(-sessions // groups)
        step = StepRows.decode(self._wanted.prompt, batch)
        times_s = [time.total_s for time in self._times(step, draws=batch)]
        round_s = sum(times_s) + sum(self._ways_s(batch)) + self._mesh.head_s
        busiest_s = max(*times_s, self._busiest_machine_s(times_s), batch * self._mesh.head_s)
        return sessions / max(round_s, groups * busiest_s)

    def _busiest_machine_s(self, times_s: Sequence[float]) -> float:
        """How long the cores of a machine work for one group, at the least."""
        work_s: dict[str, float] = defaultdict(float)
        for hop, time_s in zip(self._hops, times_s, strict=True):
            own = self._mesh.nodes[hop.node]
            if own.cores:
                work_s[own.machine] += time_s * min(1.0, own.threads / own.cores)
        return max(work_s.values(), default=0.0)


class _Cores:
    """Until when the cores of each machine are taken."""

    def __init__(self, mesh: Mesh) -> None:
        self._nodes = mesh.nodes
        self._free_s = {own.machine: [0.0] * own.cores for own in mesh.nodes.values() if own.cores}

    def work(self, node: NodeId, ready_s: float, lasts_s: float) -> float:
        """Take a core for each of the node's threads from `ready_s`, or later; return the end.

        A machine that does not tell its cores has enough of them.
        """
        own = self._nodes[node]
        free_s = self._free_s.get(own.machine, [])
        free_s.sort()
        threads = min(own.threads, len(free_s))
        # Those that became free last before it, so that others may begin earlier.
        first = max(0, sum(at_s <= ready_s for at_s in free_s) - threads)
        taken = slice(first, first + threads)
        end_s = max([ready_s, *free_s[taken]]) + lasts_s
        free_s[taken] = [end_s] * threads
        return end_s


def speed_of(mesh: Mesh, node: NodeId, shape: ModelShape) -> Speed:
    """Raise BadField: the node has measured nothing in the format of the model."""
    speed = mesh.speed(node, shape.weights)
    if speed is None:
        known = [each.weights.value for each in mesh.nodes[node].speeds]
        raise BadField(f"{node}: speeds", f"one of {shape.weights.value}", known)
    return speed


def check_hops(hops: Sequence[Hop], shape: ModelShape, mesh: Mesh) -> None:
    """Raise BadField unless the hops are a plan for this model on this mesh."""
    shown = ", ".join(f"{hop.node} {hop.layers}" for hop in hops)
    try:
        check_cover([hop.layers for hop in hops])
    except ValueError as error:
        raise BadField("plan", f"a cover of the layers ({error})", shown) from None
    if hops[-1].layers.stop != len(shape.layers):
        raise BadField("plan", f"a cover of {len(shape.layers)} layers", shown)
    if len({hop.node for hop in hops}) < len(hops):
        raise BadField("plan", "each node once", shown)
    for hop in hops:
        if hop.node not in mesh.nodes:
            raise BadField("plan", f"nodes of {', '.join(mesh.nodes)}", hop.node)
