"""A mesh whose nodes come and go: real registry, leases, planner and placing, under virtual time.

    MemberProcess ──announces──▶ RegistryHost ──members──▶ Placer ──assignments──▶ MemberProcess
                                      └────────members──▶ Directory of each head ──▶ routes

What the first layout is the planner decides, and then `core.routing.placement`, as in a gateway.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from meshnet.core.generation.chunking import Chunking
from meshnet.core.generation.machine import Generation
from meshnet.core.generation.transcript import Emit, Refilling
from meshnet.core.planning import Mesh, ModelShape, NoPlan, Wanted, plan
from meshnet.core.routing.placement import ModelSize, place
from meshnet.core.vocabulary import Assignments, LayerRange, Member, NodeId
from meshnet.head import Directory
from meshnet.mesh.placing import Decision, Placer
from meshnet.mesh.registry.following import Following, View
from meshnet.node.service import NodeService
from meshnet.node.shards import NodeLimits
from meshnet.simulation.history import Costs
from meshnet.simulation.machine import Machine, SimCompute
from meshnet.simulation.members import Habits, MemberPlan, MemberProcess
from meshnet.simulation.old_node import NodeBeforeReplays
from meshnet.simulation.plan import NodePlan
from meshnet.simulation.registry import RegistryHost, SimRegistry
from meshnet.simulation.toy_shard import CACHING, TOY_MODEL, ToyShard, ToyState
from meshnet.simulation.wire import Service, SimHopClient
from meshnet.simulation.world import TTL_S, SimHead, World
from meshnet.telemetry.events import record_nothing

REGISTRY = NodeId("registry")
LOOK_S = 0.25
WHOLE = LayerRange(0, 1)
"""Stands for the layers of a member, which nobody knows beforehand."""


@dataclass(frozen=True, slots=True)
class LivingPlan:
    """The mesh of a seed beside its heads and chats."""

    members: tuple[MemberPlan, ...]
    shape: ModelShape
    wanted: Wanted
    size: ModelSize
    habits: Habits = Habits()  # noqa: RUF009
    heal_at_s: float = 30.0


class LivingWorld(World):
    """Its cluster's nodes are those of the members, and whoever joins later."""

    def __init__(self, *given: Any, mesh: LivingPlan) -> None:
        super().__init__(*given)
        self.mesh, self.heal_at_s = mesh, mesh.heal_at_s
        self.host = RegistryHost(self.rng)
        self.capacities = {each.node: each for each in mesh.members}
        self._beside: list[asyncio.Task[None]] = []
        self._looks = self._routes = 0
        self.gaps_s: list[float] = []
        self._over = self._placed = False

    async def live(self) -> None:
        async with asyncio.TaskGroup() as self._group:
            placer = Placer(
                SimRegistry(self.host, _at_once),
                Assignments(TOY_MODEL, TOY_MODEL, self.mesh.shape.weights.value),
                self._decide,
                settle_s=self.mesh.habits.settle_s,
                clock=asyncio.get_running_loop().time,
                record=record_nothing,
            )
            self._run(placer.run())
            self._follow(REGISTRY, placer.seen)
            await super().live()

    def join(self, member: MemberPlan) -> None:
        """Start a node that was never there before."""
        self.capacities[member.node] = member
        node = NodePlan(member.node, WHOLE, replays=self.cluster.nodes[0].replays)
        self.machines[member.node] = self._machine(node, self._machines_group)

    def look(self) -> None:
        """Ask the first head for a route."""
        self._looks += 1
        self._routes += self.heads[0].directory.ready(TOY_MODEL)

    def generation(self) -> type[Generation]:
        return timed(self.parts.generation, self.gaps_s)

    def costs(self) -> Costs:
        gaps_s = tuple(round(gap, 3) for gap in self.gaps_s)
        return Costs(looks=self._looks, routes=self._routes, gaps_s=gaps_s)

    def _run(self, work: Any) -> None:
        self._beside.append(self._group.create_task(work))

    def _follow(self, who: str, seen: Callable[[View], None]) -> None:
        registry = SimRegistry(self.host, self._way(who))
        following = Following(
            registry, seen, resync_s=self.mesh.habits.resync_s, jitter=self.rng.random,
            record=record_nothing,
        )  # fmt: skip
        self._run(following.run())

    def _way(self, who: str) -> Callable[[], Awaitable[None]]:
        """What a message of a process takes to the registry, or back; a stopped one waits."""

        async def way() -> None:
            machine = self.machines.get(NodeId(who))
            if machine is not None:
                await machine.going()
            await asyncio.sleep(self.network.delay_s(who, REGISTRY))

        return way

    async def _decide(
        self, members: Collection[Member], present: Mapping[NodeId, LayerRange]
    ) -> Decision:
        if not present:
            able = {each.node: each.capacity for each in members if each.assigned}
            if not self._placed and len(able) < len(self.mesh.members):
                return {}, "not all have joined yet"
            present, self._placed = planned_by(self.mesh, Mesh(able)), True
        placement = place(members, self.mesh.size, present)
        return placement.ranges, placement.reason

    def _listed(self) -> list[NodeId]:
        return []

    async def _head(self, index: int, stack: AsyncExitStack) -> SimHead:
        made = await super()._head(index, stack)
        self._follow(made.name, partial(_know, made.directory))
        return made

    def _machine(self, node: NodePlan, tasks: asyncio.TaskGroup) -> Machine[Service]:
        self._machines_group = tasks
        return super()._machine(node, tasks)

    def _boot(self, node: NodePlan, compute: SimCompute) -> Service:
        build = NodeService[ToyState] if node.replays else NodeBeforeReplays
        service = build(
            node=node.node,
            pid=1,
            shards=[],
            compute=compute,
            limits=NodeLimits(
                kv_bytes_max=node.kv_bytes_max,
                sessions_max=node.sessions_max,
                ttl_s=TTL_S,
                keep_activations=node.replays,
            ),
            clock=asyncio.get_running_loop().time,
            givers=SimHopClient(node.node, self.network, self.machines),
        )
        service.ready = False
        asyncio.get_running_loop().call_soon(self._enter, node, service)
        return service

    def _enter(self, node: NodePlan, service: NodeService[ToyState]) -> None:
        if self._over:
            return
        machine = self.machines[node.node]
        member = MemberProcess(
            self.capacities[node.node],
            SimRegistry(self.host, self._way(node.node)),
            service,
            partial(self._shard, node),
            habits=self.mesh.habits,
            rng=self.rng,
            life=machine.boots,
        )
        machine.beside(self._belong(machine, member))

    async def _belong(self, machine: Machine[Service], member: MemberProcess) -> None:
        """Be a member; a node that has left ends."""
        await member.run()
        machine.kill(math.inf)

    def _shard(self, node: NodePlan, layers: LayerRange) -> ToyShard:
        return self.parts.shard(
            layers,
            layers_total=self.mesh.size.layers_total,
            capabilities=replace(CACHING, batch=node.batches),
            fail_after=partial(self._fails_after, layers),
        )

    def _judge_heads(self) -> None:
        """All chats are over: nobody needs the mesh any more, and the nodes have only to forget."""
        super()._judge_heads()
        self._over = True
        for task in self._beside:
            task.cancel()
        for machine in self.machines.values():
            machine.end_beside()


def planned_by(living: LivingPlan, mesh: Mesh) -> Mapping[NodeId, LayerRange]:
    """Return what the planner would have everybody hold; empty: there is no plan."""
    made = plan(living.shape, mesh, living.wanted, cutting=Chunking().ends)
    return {} if isinstance(made, NoPlan) else {hop.node: hop.layers for hop in made.hops}


async def _at_once() -> None:
    """The registry is in the same process."""


def _know(directory: Directory, view: View) -> None:
    directory.joined(
        {node: f"{each.state} {each.description}" for node, each in view.members.items()}
    )


def timed(generation: type[Generation], gaps_s: list[float]) -> type[Generation]:
    """Return `generation`, noting each time from the last token before a loss to the next one."""

    class Timed(generation):  # type: ignore[misc, valid-type]
        _emitted_at: float | None = None
        _refilled = False

        def handle(self, event: Any, now: float) -> Any:
            actions = super().handle(event, now)
            for action in actions:
                if isinstance(action, Refilling):
                    self._refilled = True
                elif isinstance(action, Emit):
                    if self._refilled and self._emitted_at is not None:
                        gaps_s.append(now - self._emitted_at)
                    self._emitted_at, self._refilled = now, False
            return actions

    return Timed
