"""What a simulated node process does for its mesh: it joins, holds what it is told, and leaves.

    joining ──told──▶ loading ──load_s──▶ ready ──told otherwise──▶ loading
                                            └──drained──▶ left

The rules are `mesh`'s own: lease, following, assignments. What `cli` adds to them in a real
process, reading what is told and loading it, is here in few lines and over virtual time.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache

from meshnet.core.protocol.members import decode_assignments
from meshnet.core.vocabulary import (
    WIRE_VERSION,
    Assignment,
    Assignments,
    Capacity,
    LayerRange,
    Member,
    MemberState,
    NodeId,
)
from meshnet.mesh.placing import ASSIGNMENTS
from meshnet.mesh.registry.following import Following, View
from meshnet.mesh.registry.lease import Lease
from meshnet.mesh.registry.ports import Registry, RegistryLost, RegistryRefused
from meshnet.node.service import NodeService
from meshnet.simulation.toy_shard import TOY_MODEL, ToyShard, ToyState
from meshnet.telemetry.events import record_nothing

RETRY_S = 1.0
DRAIN_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Habits:
    """How long things take in a mesh; the defaults are short, for short histories."""

    ttl_s: float = 3.0
    settle_s: float = 0.5
    resync_s: float = 6.0
    load_s: tuple[float, float] = (0.2, 1.5)
    drain_s: float = 5.0
    follow_after_s: float = 0.0
    """When a node begins to follow the registry, so that a large mesh can begin as a whole."""


@dataclass(frozen=True, slots=True)
class MemberPlan:
    node: NodeId
    capacity: Capacity
    told: Assignment | None = None
    """What it holds from the start."""


class MemberProcess:
    """The part of one life of a node process."""

    def __init__(
        self,
        plan: MemberPlan,
        registry: Registry,
        service: NodeService[ToyState],
        shard: Callable[[LayerRange], ToyShard],
        *,
        habits: Habits,
        rng: random.Random,
        life: int,
    ) -> None:
        """`life` tells this process from earlier ones of the node."""
        self._registry, self._service, self._shard = registry, service, shard
        self._habits, self._rng, self._life = habits, rng, life
        self._clock = asyncio.get_running_loop().time
        member = Member(plan.node, WIRE_VERSION, MemberState.JOINING, plan.capacity, assigned=True)
        self._lease = Lease(
            registry, member, ttl_s=habits.ttl_s, clock=self._clock, jitter=rng.random,
            record=record_nothing,
        )  # fmt: skip
        self._read, self._told = asyncio.Event(), asyncio.Event()
        self._assignment = plan.told
        self._held: LayerRange | None = None
        if plan.told is not None:
            self._hold(plan.told.layers)

    async def run(self) -> None:
        """Be a member until cancelled, or until drained: then it has left."""
        following = Following(
            self._registry, self._seen, resync_s=self._habits.resync_s, jitter=self._rng.random,
            record=record_nothing,
        )  # fmt: skip
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(work)
                for work in (
                    self._lease.keep(),
                    self._later(following),
                    self._reading(),
                    self._obeying(),
                )
            ]
            await self._drained()
            for task in tasks:
                task.cancel()
        await self._lease.leave()

    async def _later(self, following: Following) -> None:
        await asyncio.sleep(self._habits.follow_after_s)
        await following.run()

    def _seen(self, view: View) -> None:
        if view.may_have_written(ASSIGNMENTS):
            self._read.set()

    async def _reading(self) -> None:
        while True:
            await self._read.wait()
            self._read.clear()
            try:
                value = await self._registry.get(ASSIGNMENTS)
            except (RegistryLost, RegistryRefused):
                await asyncio.sleep(RETRY_S)
                self._read.set()
                continue
            if value is not None:
                self._assignment = _decoded(value.value).of(self._lease.member.node)
                self._told.set()

    async def _obeying(self) -> None:
        epoch = 0
        while True:
            while self._assignment is None or self._assignment.epoch <= epoch:
                self._told.clear()
                await self._told.wait()
            told = self._assignment
            epoch = told.epoch
            if self._held != told.layers:
                self._service.ready = False
                self._announce(MemberState.LOADING, told)
                await self._load(told.layers)
            self._announce(MemberState.READY, told)

    async def _load(self, layers: LayerRange) -> None:
        if self._held is not None:
            self._service.remove(TOY_MODEL)
        self._held = None
        await asyncio.sleep(self._rng.uniform(*self._habits.load_s))
        self._hold(layers)

    def _hold(self, layers: LayerRange) -> None:
        self._service.add(self._shard(layers))
        self._held, self._service.ready = layers, True

    def _announce(self, state: MemberState, told: Assignment) -> None:
        if self._service.moves.draining:
            state = MemberState.DRAINING
        said = f"{self._life} {self._held} {self._service.ready}"
        self._lease.update(
            replace(
                self._lease.member, state=state, description=said, model=told.model,
                layers=told.layers, epoch=told.epoch,
            )
        )  # fmt: skip

    async def _drained(self) -> None:
        """Return once the node was told to drain, and nobody has a chat there, or for long."""
        moves = self._service.moves
        await moves.closing.wait()
        self._lease.update(replace(self._lease.member, state=MemberState.DRAINING))
        with suppress(TimeoutError):
            async with asyncio.timeout(self._habits.drain_s):
                while moves.busy:  # noqa: ASYNC110 - it is a count, nobody tells of it
                    await asyncio.sleep(DRAIN_POLL_S)


@lru_cache(maxsize=4)
def _decoded(value: bytes) -> Assignments:
    """Read once what a thousand nodes of one process read each for itself."""
    return decode_assignments(value)
