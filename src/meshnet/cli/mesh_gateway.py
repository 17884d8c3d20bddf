"""A gateway's part in the mesh: it keeps the registry, or asks another gateway's; it follows its
members, and where it keeps them it tells them what to hold.

    registry ──members──▶ Directory ──▶ routes
        ▲ └──────────────▶ Placer ──assignments──┐
        └────────────────────────────────────────┘

Invariants
    * no registry is kept beyond loopback without a mesh token or mutual TLS;
    * only who keeps a registry places, or of several gateways over etcd the one whose turn it is:
      two would undo each other's work.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp

from meshnet.cli.composition import Composition
from meshnet.cli.credentials import token_of
from meshnet.cli.mesh_mount import MeshMount
from meshnet.cli.mesh_planning import mesh_of_members, planned
from meshnet.cli.registries import EtcdPlace, opened_registry
from meshnet.cli.report_members import member_values
from meshnet.cli.settings import Settings, Weights
from meshnet.core.routing.placement import ModelSize, place
from meshnet.core.vocabulary import (
    Assignments,
    Capacity,
    LayerRange,
    Member,
    MemberState,
    NodeId,
)
from meshnet.engine.models.depth import depth
from meshnet.engine.models.pull import LocalModel
from meshnet.gateway.ports import Readiness
from meshnet.mesh.grouped import unwrapped
from meshnet.mesh.placing import Decision, Placer
from meshnet.mesh.placing_turn import PlacingTurn
from meshnet.mesh.registry.following import Following, View
from meshnet.mesh.registry.http_server import registry_app
from meshnet.mesh.registry.ports import Registry, RegistryLost, RegistryRefused
from meshnet.mesh.registry.sqlite import SqliteRegistry
from meshnet.telemetry.events import MemberSeen, Record

SNAPSHOT_S = 2.0
BORN_BITS = 48
"""Of the revision at which a registry begins: nobody who saw another history is inside it."""
BYTES_OF_INT8 = 1.1
"""A weight with its part of the scales."""


class MeshGateway:
    """What one gateway knows of its mesh."""

    def __init__(
        self,
        settings: Settings,
        composition: Composition,
        registry: Registry,
        record: Record,
        placer: Placer | None,
        kept: SqliteRegistry | None,
        turn: PlacingTurn | None = None,
    ) -> None:
        """`kept` is the registry, if it is kept here; `placer` tells what to hold, or waits for
        its `turn` to.
        """
        self._kept, self._token = kept, token_of(settings)
        self._certified = settings.tls_dir is not None
        self._composition, self._registry, self._placer = composition, registry, placer
        self._record, self._turn = record, turn
        self._members: Mapping[NodeId, Member] = {}
        self._closing = asyncio.Event()
        self._following = Following(
            registry,
            self._seen,
            resync_s=2 * settings.lease_seconds,
            jitter=secrets.SystemRandom().random,
            record=record,
        )

    def mounted(self, api: ASGIApp) -> ASGIApp:
        """Return the API with the registry beside it, if it is kept here."""
        if self._kept is None:
            return api
        registry = registry_app(self._kept, token=self._token)
        locked = self._token is not None
        return MeshMount(api, registry, locked=locked, certified=self._certified)

    def close(self) -> None:
        """Stop, and let go of everybody who waits for news, so that the server can end."""
        self._closing.set()
        if self._kept is not None:
            self._kept.close()

    def readiness(self) -> Readiness:
        """Say whether every layer is served, and what the mesh is waiting for if not."""
        state = self._composition.readiness()
        if state.ready or (self._composition.names and not self._members):
            return state
        return Readiness(False, f"{state.detail}; {self._detail()}")

    async def report(self) -> dict[str, Any]:
        """Return the members, states and leases as `GET /mesh` shows them."""
        left_s: dict[NodeId, float] = {}
        trouble = self._following.trouble or ("" if self._kept is None else self._kept.failure)
        try:
            async with asyncio.timeout(SNAPSHOT_S):
                snapshot = await self._registry.snapshot()
            left_s = {node: leased.left_s for node, leased in snapshot.members.items()}
        except (RegistryLost, RegistryRefused, TimeoutError) as error:
            trouble = str(error) or f"no answer within {SNAPSHOT_S:g} s"
        reached = {described.node for described in self._composition.directory.snapshot()}
        return {
            "registry": {"here": self._kept is not None, "trouble": trouble},
            "missing": self._missing(),
            "members": [
                member_values(member, left_s.get(node), reachable=node in reached)
                for node, member in sorted(self._members.items())
            ],
        }

    async def run(self) -> None:
        """Follow and place until closed or cancelled."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._following.run())]
            if self._placer is not None and self._turn is not None:
                tasks.append(group.create_task(self._turn.run(self._placer.run)))
            elif self._placer is not None:
                tasks.append(group.create_task(self._placer.run()))
            await self._closing.wait()
            for task in tasks:
                task.cancel()

    def _seen(self, view: View) -> None:
        for node, member in view.members.items():
            if _told(member) != _told(self._members.get(node)):
                self._record(MemberSeen(node, *_told(member)))
        for node in self._members.keys() - view.members.keys():
            self._record(MemberSeen(node, "left"))
        if view.members != self._members:
            self._members = view.members
            self._composition.know(
                {node: f"{each.state} {each.description}" for node, each in view.members.items()}
            )
        if self._placer is not None:
            self._placer.seen(view)

    def _missing(self) -> str:
        """Say why not all layers are held, if this gateway is who knows."""
        if self._placer is None or (self._turn is not None and not self._turn.held):
            return ""
        return self._placer.reason

    def _detail(self) -> str:
        if missing := self._missing():
            return missing
        states = Counter(member.state.value for member in self._members.values())
        said = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
        return f"members: {said}" if said else "no node has joined"


@asynccontextmanager
async def mesh_gateway(
    settings: Settings,
    composition: Composition,
    source: LocalModel,
    record: Record,
    *,
    elsewhere: str | EtcdPlace | None,
) -> AsyncIterator[MeshGateway]:
    """Take part in the mesh until the block is left; its registry is here (None) or elsewhere.

    Raises MeshnetError.
    """
    async with AsyncExitStack() as stack:
        placer = kept = turn = None
        if elsewhere is None:
            kept = SqliteRegistry(
                registry_path(settings), clock=time.monotonic, born=secrets.randbits(BORN_BITS)
            )
            stack.callback(kept.close)
            registry: Registry = kept
            placer = _placer(settings, composition, source, kept, record)
        else:
            registry = await stack.enter_async_context(opened_registry(settings, elsewhere))
            if isinstance(elsewhere, EtcdPlace):
                placer = _placer(settings, composition, source, registry, record)
                turn = PlacingTurn(
                    registry,
                    secrets.token_hex(16),
                    ttl_s=settings.lease_seconds,
                    clock=time.monotonic,
                )
        mesh = MeshGateway(settings, composition, registry, record, placer, kept, turn)
        with unwrapped():
            async with asyncio.TaskGroup() as group:
                running = group.create_task(mesh.run())
                try:
                    yield mesh
                finally:
                    running.cancel()


def registry_path(settings: Settings) -> Path | None:
    """Return the registry's file. A port that was chosen by chance finds no node again: no file."""
    return settings.state_dir / f"registry-{settings.port}.sqlite" if settings.port else None


def _placer(
    settings: Settings,
    composition: Composition,
    source: LocalModel,
    registry: Registry,
    record: Record,
) -> Placer:
    size = size_of(composition, source, settings.weights)

    async def decide(members: Collection[Member], present: Mapping[NodeId, LayerRange]) -> Decision:
        static = _static(composition)
        if not present and not static:
            able = [each for each in members if each.assigned or each.layers is not None]
            if len(able) < settings.nodes_min:
                wanted = f"{settings.nodes_min} nodes to wait for have joined"
                return {}, f"{len(able)} of the {wanted}"
            if all(each.assigned for each in able):  # a plan would move who has layers of its own
                present = await planned(settings, mesh_of_members(composition, able))
        placement = place([*members, *static], size, present)
        return placement.ranges, placement.reason

    return Placer(
        registry,
        Assignments(composition.model, settings.model, settings.weights.value),
        decide,
        settle_s=settings.settle_seconds,
        clock=time.monotonic,
        record=record,
    )


def size_of(composition: Composition, source: LocalModel, weights: Weights) -> ModelSize:
    """Estimate a model by its files, which are taken to be in 16 bits. Raises ModelError."""
    total, runs = depth(source.path)
    stored = sum(file.stat().st_size for file in source.path.glob("*.safetensors"))
    wide = {Weights.FP32: 4.0, Weights.BF16: 2.0, Weights.FP16: 2.0}.get(weights, BYTES_OF_INT8)
    return ModelSize(composition.model, total, runs, round(stored / 2 * wide / total))


def _static(composition: Composition) -> list[Member]:
    """Return the nodes of the command line as members whose layers their operator chose."""
    return [
        Member(
            node=described.node,
            wire=described.wire,
            state=MemberState.READY,
            capacity=Capacity("", 0, 1),
            model=shard.model,
            layers=shard.layers,
        )
        for described in composition.directory.snapshot()
        if described.node in composition.names and described.ready
        for shard in described.shards
        if shard.model == composition.model
    ]


def _told(member: Member | None) -> tuple[str, str | None, str | None]:
    """Return what of a member is worth a line in the log."""
    if member is None:
        return "", None, None
    layers = None if member.layers is None else str(member.layers)
    return member.state.value, layers, member.failure or None
