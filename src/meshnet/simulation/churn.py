"""Nodes that die, stop, drain, join and come back, and a registry that is away now and then.

Every layer is placed by the real code; clients chat meanwhile. At the healing time nothing breaks
any more, and from then on everything must finish, as in every history.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from meshnet.core.planning import LayerShape, ModelShape, Wanted
from meshnet.core.routing.placement import ModelSize
from meshnet.core.vocabulary import (
    Capacity,
    KVBytes,
    NodeId,
    Reading,
    Speed,
    WeightFormat,
)
from meshnet.node.service import NodeService
from meshnet.simulation.faults import Faults
from meshnet.simulation.history import History
from meshnet.simulation.living import LOOK_S, WHOLE, LivingPlan, LivingWorld
from meshnet.simulation.members import MemberPlan
from meshnet.simulation.plan import (
    LAYERS_TOTAL,
    START_MAX_S,
    STEP_MAX_S,
    ClusterPlan,
    NodePlan,
    plan,
)
from meshnet.simulation.toy_shard import TOY_MODEL
from meshnet.simulation.world import REAL_PARTS, Parts, World, simulate_plan

LAYER_BYTES = 1_000_000
ROOMS = (2, 4)
"""Layers that the smallest and the largest node can hold."""
CONTEXT = 64


@dataclass(frozen=True, slots=True)
class Churn:
    """Mean seconds between two events of a kind, anywhere in the mesh, and how long each lasts."""

    death_every_s: float = 5.0
    down_max_s: float = 8.0
    gone_for_good: float = 0.3
    """Of the dead, those in whose place another node joins."""
    drain_every_s: float = 12.0
    stop_every_s: float = 10.0
    stop_max_s: float = 6.0
    away_every_s: float = 12.0
    away_max_s: float = 6.0
    forgets: float = 0.3
    """Of the registry's absences, those after which it knows nothing."""


CHURN = Churn()
SPACINGS = (1.0, 4.0, 16.0)
NETWORK = Faults(lost=0.01, duplicated=0.02, slow=0.01, cancelled=0.1, head_crash=0.1)


def spaced(churn: Churn, spacing: float) -> Churn:
    """Return `churn` with its events that many times as far apart."""
    return replace(
        churn,
        death_every_s=churn.death_every_s * spacing,
        drain_every_s=churn.drain_every_s * spacing,
        stop_every_s=churn.stop_every_s * spacing,
        away_every_s=churn.away_every_s * spacing,
    )


def churn_plan(seed: int, faults: Faults) -> tuple[ClusterPlan, LivingPlan]:
    """Draw a mesh of five to eight members, with room for the model and one or two nodes more."""
    drawn = plan(seed, faults)
    rng = random.Random(f"churn {seed}")
    members = tuple(member_of(NodeId(f"http://n{at}:1"), rng) for at in range(rng.randint(5, 8)))
    replays = rng.random() < 0.8
    nodes = tuple(NodePlan(each.node, WHOLE, replays=replays) for each in members)
    shape = shape_of(LAYERS_TOTAL, LAYER_BYTES)
    mesh = LivingPlan(
        members,
        shape,
        Wanted(CONTEXT, prompt=8),
        ModelSize(TOY_MODEL, LAYERS_TOTAL, layer_bytes=LAYER_BYTES),
    )
    late = mesh.heal_at_s / START_MAX_S
    chats = tuple(
        chat if chat.follows else replace(chat, starts_s=chat.starts_s * late)
        for chat in drawn.chats
    )
    cluster = replace(
        drawn, nodes=nodes, chats=chats, legacy_heads=frozenset(), drains=(),
        reserved_tokens_max=512, step_max_s=STEP_MAX_S[-1],
    )  # fmt: skip
    return cluster, mesh


def member_of(node: NodeId, rng: random.Random) -> MemberPlan:
    """Draw a machine: half of its memory is for weights."""
    room = rng.randint(*ROOMS)
    speed = Speed(
        WeightFormat.INT8, (Reading(1, rng.uniform(2e9, 20e9)),), 1e11, 5e9, 2e10, 0, 1e-4
    )
    return MemberPlan(node, Capacity(node, 2 * room * LAYER_BYTES, 1, speeds=(speed,)))


def shape_of(layers: int, layer_bytes: int) -> ModelShape:
    """A model of equal layers, whose vocabulary weighs nothing."""
    layer = LayerShape(layer_bytes, layer_bytes, KVBytes(1000), position_bytes=1000)
    return ModelShape(
        TOY_MODEL, WeightFormat.INT8, (layer,) * layers, embedding_bytes=0, head_bytes=0,
        head_multiplies=0, activation_bytes=4000, hidden_size=1000, context_length=4096,
    )  # fmt: skip


class Churning:
    """Breaks one mesh until it is healed."""

    def __init__(self, world: LivingWorld, churn: Churn) -> None:
        self._world, self._churn = world, churn
        self._rng = random.Random(f"churning {world.seed}")
        self._loop = asyncio.get_running_loop()
        self._joined = 0

    async def run(self) -> None:
        churn = self._churn
        await self._built()
        async with asyncio.TaskGroup() as kinds:
            for every_s, strike in (
                (churn.death_every_s, self._die),
                (churn.drain_every_s, self._drain),
                (churn.stop_every_s, self._stop),
                (churn.away_every_s, self._registry_away),
            ):
                if math.isfinite(every_s):
                    kinds.create_task(self._strike(every_s, strike))
            kinds.create_task(self._look())

    async def _strike(self, every_s: float, strike: Callable[[], None]) -> None:
        while True:
            wait_s = self._rng.expovariate(1.0 / every_s)
            if self._loop.time() + wait_s >= self._world.heal_at_s:
                return
            await asyncio.sleep(wait_s)
            strike()

    async def _built(self) -> None:
        """Return once there is a route: what came before is no loss."""
        directory = self._world.heads[0].directory
        while not directory.ready(TOY_MODEL):  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(LOOK_S)

    async def _look(self) -> None:
        while self._loop.time() < self._world.heal_at_s:
            await asyncio.sleep(LOOK_S)
            self._world.look()

    def _up(self) -> list[NodeId]:
        return [node for node, machine in self._world.machines.items() if machine.up]

    def _die(self) -> None:
        if not (up := self._up()):
            return
        node = self._rng.choice(up)
        down_s = self._rng.uniform(0.5, self._churn.down_max_s)
        if self._rng.random() < self._churn.gone_for_good:
            self._world.machines[node].kill(math.inf)
            self._loop.call_later(down_s, self._replace, node)
        else:
            self._world.machines[node].kill(down_s)

    def _drain(self) -> None:
        if not (up := self._up()):
            return
        node = self._rng.choice(up)
        service = self._world.machines[node].service
        assert isinstance(service, NodeService)
        if not service.moves.draining:
            service.moves.drain()
            self._loop.call_later(
                self._rng.uniform(0.5, self._churn.down_max_s), self._replace, node
            )

    def _replace(self, node: NodeId) -> None:
        """Let another node of the same size join."""
        self._joined += 1
        capacity = self._world.capacities[node].capacity
        name = NodeId(f"http://j{self._joined}:1")
        self._world.join(MemberPlan(name, replace(capacity, machine=name)))

    def _stop(self) -> None:
        if up := self._up():
            self._world.machines[self._rng.choice(up)].stop(
                self._rng.uniform(0.1, self._churn.stop_max_s)
            )

    def _registry_away(self) -> None:
        self._world.host.leave(
            self._rng.uniform(0.5, self._churn.away_max_s),
            forgets=self._rng.random() < self._churn.forgets,
        )


def simulate_churn(seed: int, faults: Faults = NETWORK, parts: Parts = REAL_PARTS) -> History:
    """Run the history of one seed, which also draws how fast nodes come and go."""
    cluster, mesh = churn_plan(seed, faults)
    spacing = random.Random(f"spacing {seed}").choice(SPACINGS)
    history = simulate_plan(
        seed,
        cluster,
        faults,
        parts,
        partial(_churned, spaced(CHURN, spacing)),
        partial(LivingWorld, mesh=mesh),
    )
    return replace(history, costs=replace(history.costs, spacing=spacing))


async def _churned(churn: Churn, world: World) -> None:
    assert isinstance(world, LivingWorld)
    await Churning(world, churn).run()
