"""Meshes of ten to a thousand nodes: what planning, membership and losses cost, by their number.

The planner, placing, registry, leases, heads and generations are the real ones. Links, machines
and how long they stay are drawn from what others measured (docs/scale.md names the sources). A mesh
begins whole: how it is built up is not simulated.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any

from meshnet.core.planning import Mesh, Wanted
from meshnet.core.protocol.members import encode_assignments
from meshnet.core.routing.placement import ModelSize, place
from meshnet.core.vocabulary import (
    WIRE_VERSION,
    Assignments,
    Capacity,
    Link,
    Member,
    MemberState,
    NodeId,
    Reading,
    SamplingParams,
    Speed,
    WeightFormat,
)
from meshnet.mesh.placing import ASSIGNMENTS
from meshnet.mesh.registry.messages import (
    Announcement,
    encode_announcement,
    encode_changes,
    encode_snapshot,
    encode_value,
)
from meshnet.simulation.churn import shape_of
from meshnet.simulation.clients import Outcome
from meshnet.simulation.faults import Faults
from meshnet.simulation.history import History
from meshnet.simulation.living import LOOK_S, WHOLE, LivingPlan, LivingWorld, planned_by
from meshnet.simulation.machine import SimCompute
from meshnet.simulation.members import Habits, MemberPlan
from meshnet.simulation.network import Network
from meshnet.simulation.plan import ChatPlan, ClusterPlan, NodePlan
from meshnet.simulation.toy_drawing import VOCABULARY
from meshnet.simulation.toy_shard import TOY_MODEL
from meshnet.simulation.wire import Service
from meshnet.simulation.world import LIMIT_S, World, simulate_plan

LAYERS = 128
LAYER_BYTES = 500_000_000
CARDS = (
    (12e9, 360e9), (12e9, 360e9), (11e9, 616e9), (11e9, 616e9), (11e9, 616e9), (11e9, 616e9),
    (24e9, 936e9), (24e9, 936e9), (16e9, 448e9), (16e9, 448e9),
    (24e9, 768e9), (24e9, 768e9), (24e9, 768e9), (24e9, 768e9),
)  # fmt: skip
"""Memory and bytes read a second of RTX 3060, 2080 Ti, 3090, A4000, A5000, as Petals had them."""
REGIONS = 4
NEAR_S, FAR_S = 0.0025, 0.05
"""One way, within a region and between two."""
BYTES_PER_S = 100e6 / 8
STAYS_SCALE_S, STAYS_SHAPE = 246 * 60.0, 0.67
"""Weibull."""
BACK_MAX_S = 60.0
"""After so long at most another machine joins in the place of one that left."""
HABITS = Habits(
    ttl_s=10.0, settle_s=5.0, resync_s=20.0, load_s=(10.0, 60.0), drain_s=30.0, follow_after_s=5.0
)


@dataclass(frozen=True, slots=True)
class ScaleCosts:
    """Of one mesh."""

    nodes: int
    virtual_s: float
    left: int
    planning_s: float
    """Processor time of the first plan; `placing_s`: of placing after it."""
    placing_s: float
    routing_s: float
    hops: int
    availability: float
    chats: int
    wrong: int
    unfinished: int
    tokens: int
    tokens_per_s: float
    """Of a chat alone, between its first token and its last, the median."""
    gaps_s: tuple[float, ...]
    calls_per_s: Mapping[str, float]
    """Of the registry."""
    bytes_per_s: Mapping[str, float]
    cpu_s: float


class Traffic:
    """Counts the bytes that the registry's messages would have, each encoded once."""

    def __init__(self) -> None:
        self.bytes: Counter[str] = Counter()
        self._sizes: dict[object, int] = {}

    def answered(self, kind: str, asked: Any, answer: Any) -> None:
        if kind == "announce":
            self.bytes[kind] += self._size(
                asked, lambda: encode_announcement(Announcement(asked, 10))
            )
        elif kind == "snapshot":
            key = answer.revision
            self.bytes[kind] += self._size(key, lambda: encode_snapshot(answer))
        elif kind == "changes":
            for change in answer or ():
                self.bytes[kind] += self._size(change, partial(encode_changes, [change]))
        elif kind == "get" and answer is not None:
            self.bytes[kind] += self._size(answer.revision, lambda: encode_value(answer))

    def _size(self, key: object, encode: Callable[[], bytes]) -> int:
        if key not in self._sizes:
            self._sizes[key] = len(encode())
        return self._sizes[key]


class RegionNetwork(Network):
    """Delays by regions: a name hashes to one, the same in every run."""

    def delay_s(self, head: str, node: NodeId) -> float:
        way = NEAR_S if region(head) == region(node) else FAR_S
        return way * self._rng.uniform(0.95, 1.15)


def region(name: str) -> int:
    return sum(name.encode()) % REGIONS


class ScaleWorld(LivingWorld):
    """A mesh that begins whole, of machines with unlike speeds."""

    def __init__(self, *given: Any, mesh: LivingPlan) -> None:
        super().__init__(*given, mesh=mesh)
        self.network = RegionNetwork(self.rng, self.faults)
        self.traffic = Traffic()
        self.host.answered = self.traffic.answered
        self.limit_s = self.heal_at_s + LIMIT_S
        self.left = 0
        self.placing_s = self.routing_s = 0.0
        self._placed = True
        self._joined = 0

    async def live(self) -> None:
        told = {each.node: each.told for each in self.mesh.members if each.told is not None}
        held = {node: (each.layers, each.epoch) for node, each in told.items()}
        first = Assignments(TOY_MODEL, TOY_MODEL, self.mesh.shape.weights.value, 1, held)
        await self.host.registry.compare_and_set(ASSIGNMENTS, None, encode_assignments(first))
        await super().live()

    async def _decide(self, *given: Any) -> Any:
        began = time.process_time()
        decided = await super()._decide(*given)
        self.placing_s = max(self.placing_s, time.process_time() - began)
        return decided

    def look(self) -> None:
        began = time.process_time()
        super().look()
        self.routing_s = max(self.routing_s, time.process_time() - began)

    def _boot(self, node: NodePlan, compute: SimCompute) -> Service:
        service = super()._boot(node, compute)
        capacity = self.capacities[node.node].capacity
        rate = capacity.speeds[0].reading[0].bytes_per_s

        def step_s() -> float:
            layers = [len(shard.layers) for shard in service.describe().shards]
            return capacity.speeds[0].step_s + sum(layers) * LAYER_BYTES / rate

        compute.step_s = step_s
        return service

    async def come_and_go(self) -> None:
        """Let every node stay as long as is drawn, and another come in its place."""
        async with asyncio.TaskGroup() as leaving:
            for member in self.mesh.members:
                leaving.create_task(self._stay(member, residual_s(self.rng)))
            leaving.create_task(self._look_often())

    async def _look_often(self) -> None:
        """Ask for a route as often as is cheap."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(2 * HABITS.follow_after_s)
        every_s = max(LOOK_S, self.heal_at_s / 200)
        while loop.time() < self.heal_at_s:
            self.look()
            await asyncio.sleep(every_s)

    async def _stay(self, member: MemberPlan, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        while loop.time() + seconds < self.heal_at_s:
            await asyncio.sleep(seconds)
            self.left += 1
            self.machines[member.node].kill(math.inf)
            await asyncio.sleep(self.rng.uniform(0.0, BACK_MAX_S))
            self._joined += 1
            name = NodeId(f"http://j{self._joined}:1")
            member = MemberPlan(name, replace(member.capacity, machine=name))
            self.join(member)
            seconds = self.rng.weibullvariate(STAYS_SCALE_S, STAYS_SHAPE)


def residual_s(rng: random.Random) -> float:
    """Draw how long one that is there now still stays: long stays are met more often."""
    whole: float = STAYS_SCALE_S * rng.gammavariate(1 + 1 / STAYS_SHAPE, 1.0) ** (1 / STAYS_SHAPE)
    return whole * rng.random()


def machine_of(node: NodeId, rng: random.Random) -> Capacity:
    memory, rate = rng.choice(CARDS)
    speed = Speed(
        WeightFormat.INT8, (Reading(1, rate),), 2e12, rate, rate, layer_s=0.0, step_s=0.0005
    )
    return Capacity(node, int(memory), 1, speeds=(speed,))


def scale_plan(
    nodes: int, seconds: float, chats: int, seed: int
) -> tuple[ClusterPlan, LivingPlan, float, int]:
    """Draw a mesh and plan it; also tell the processor time that took, and the plan's hops."""
    rng = random.Random(f"scale {seed} {nodes}")
    names = [NodeId(f"http://n{at}:1") for at in range(nodes)]
    capacities = {node: machine_of(node, rng) for node in names}
    shape = shape_of(LAYERS, LAYER_BYTES)
    wanted = Wanted(1024, prompt=64)
    size = ModelSize(TOY_MODEL, LAYERS, layer_bytes=LAYER_BYTES)
    links = tuple(
        Link(node, 2 * (NEAR_S if region(node) == region("h0") else FAR_S), BYTES_PER_S)
        for node in names
    )
    mesh = LivingPlan((), shape, wanted, size, HABITS, seconds)
    began = time.process_time()
    planned = planned_by(mesh, Mesh(capacities, links))
    planning_s = time.process_time() - began
    joined = [
        Member(node, WIRE_VERSION, MemberState.JOINING, each, assigned=True)
        for node, each in capacities.items()
    ]
    placed = place(joined, size, planned)
    assert not placed.reason, placed.reason
    told = Assignments(
        TOY_MODEL, TOY_MODEL, shape.weights.value, 1, {n: (r, 1) for n, r in placed.ranges.items()}
    )
    members = tuple(MemberPlan(node, each, told.of(node)) for node, each in capacities.items())
    cluster = _cluster(names, seconds, chats, rng)
    return cluster, replace(mesh, members=members), planning_s, len(planned)


def _cluster(
    names: Sequence[NodeId], seconds: float, chats: int, rng: random.Random
) -> ClusterPlan:
    return ClusterPlan(
        nodes=tuple(NodePlan(node, WHOLE, kv_bytes_max=1 << 30) for node in names),
        heads=1,
        chats=tuple(_chat(at, seconds * at / chats, rng) for at in range(chats)),
        drafts=0,
        streaming_heads=frozenset({0}),
    )


def _chat(at: int, starts_s: float, rng: random.Random) -> ChatPlan:
    prompt = tuple(rng.randrange(VOCABULARY) for _ in range(8))
    return ChatPlan(
        name=f"c{at}",
        head=0,
        starts_s=2 * HABITS.follow_after_s + starts_s,
        prompt=prompt,
        tokens_max=20,
        sampling=SamplingParams(temperature=1.0, seed=at, prompt_length=len(prompt)),
        layers_total=LAYERS,
    )


def _pace(outcome: Outcome) -> float:
    """Tokens a second behind the first one; 0: there were not two."""
    if outcome.first_token_at is None or outcome.ended_at <= outcome.first_token_at:
        return 0.0
    return (len(outcome.tokens) - 1) / (outcome.ended_at - outcome.first_token_at)


def simulate_scale(nodes: int, *, seconds: float, chats: int, seed: int = 1) -> ScaleCosts:
    """Run a mesh of so many nodes for so long."""
    cluster, mesh, planning_s, hops = scale_plan(nodes, seconds, chats, seed)
    worlds: list[ScaleWorld] = []

    def build(*given: Any) -> World:
        worlds.append(ScaleWorld(*given, mesh=mesh))
        return worlds[0]

    async def beside(world: World) -> None:
        assert isinstance(world, ScaleWorld)
        await world.come_and_go()

    began = time.process_time()
    history = simulate_plan(seed, cluster, Faults(), watch=beside, build=build)
    if history.violations:
        raise AssertionError(history.violations[0])
    cpu_s = time.process_time() - began
    return _costs(worlds[0], history, planning_s=planning_s, hops=hops, cpu_s=cpu_s)


def _costs(
    world: ScaleWorld, history: History, *, planning_s: float, hops: int, cpu_s: float
) -> ScaleCosts:
    lived_s = max(world.heal_at_s, *(each.ended_at for each in world.outcomes))
    return ScaleCosts(
        nodes=len(world.mesh.members),
        virtual_s=lived_s,
        left=world.left,
        planning_s=planning_s,
        placing_s=world.placing_s,
        routing_s=world.routing_s,
        hops=hops,
        availability=history.costs.routes / max(1, history.costs.looks),
        chats=len(world.outcomes),
        wrong=len(history.wrong),
        unfinished=len(history.unfinished),
        tokens=history.tokens,
        tokens_per_s=median(_pace(each) for each in world.outcomes),
        gaps_s=history.costs.gaps_s,
        calls_per_s={kind: count / lived_s for kind, count in world.host.calls.items()},
        bytes_per_s={kind: count / lived_s for kind, count in world.traffic.bytes.items()},
        cpu_s=cpu_s,
    )
