"""A node's place in a mesh: where it announces itself, whom it knows there, what it is told.

    lease ◀── announce(state, layers) ── node process ◀── newer_than(epoch) ── assignments
    peers ◀── members that can come behind it in a route; known: all of them

Invariants
    * the peers of a node are those of its settings and members of the mesh, nobody else;
    * an assignment is told once, and only if its epoch is higher than the last one's.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from meshnet.cli.machine import (
    address_towards,
    cores,
    free_device_bytes,
    machine_id,
    url_here,
)
from meshnet.cli.registries import (
    EtcdPlace,
    check_registry,
    opened_registry,
    reachable,
    registry_place,
)
from meshnet.cli.settings import Settings, SettingsError
from meshnet.core.protocol.members import decode_assignments, node_url
from meshnet.core.vocabulary import (
    WIRE_VERSION,
    Assignment,
    BadField,
    Capacity,
    LayerRange,
    Member,
    MemberState,
    ModelId,
    NodeDescription,
    NodeId,
)
from meshnet.mesh.placing import ASSIGNMENTS
from meshnet.mesh.registry.following import Following, View
from meshnet.mesh.registry.lease import Lease
from meshnet.mesh.registry.ports import Registry, RegistryLost, RegistryRefused
from meshnet.telemetry.events import Record

RETRY_S = 1.0
RESYNC_S = 20.0
WILDCARDS = ("0.0.0.0", "::")


@dataclass(frozen=True, slots=True)
class Joining:
    """Whom a node asks to be let in, and the URL at which others reach it (None: found out)."""

    registry: str | EtcdPlace
    advertise: str | None = None

    @classmethod
    def of(cls, settings: Settings, join: str | None, advertise: str | None) -> Joining | None:
        """Read `--join` and `--advertise`; None: the node joins nobody. Raises SettingsError."""
        if join is not None:
            place = registry_place(join, "--join")
            check_registry(settings, place)
            return cls(place, advertise)
        if advertise is not None:
            raise SettingsError("--advertise: expected --join too")
        return None


def advertised(joining: Joining, settings: Settings, listener: socket.socket) -> NodeId:
    """Return the id of a node that listens there. Raises SettingsError."""
    host, port = listener.getsockname()[:2]
    tls = settings.tls_dir is not None
    if joining.advertise is None and host in WILDCARDS:
        try:
            host = address_towards(reachable(joining.registry))
        except OSError as error:
            raise SettingsError(
                f"--join {reachable(joining.registry)}: {error}. "
                "Say by --advertise how others reach this node"
            ) from None
    try:
        return node_url(joining.advertise or url_here(host, port, tls=tls), "--advertise")
    except BadField as error:
        raise SettingsError(str(error)) from None


class MeshPlace:
    """Lasts as long as `joined` is entered."""

    def __init__(
        self,
        registry: Registry,
        lease: Lease,
        peers: dict[NodeId, str],
        known: dict[NodeId, str],
        record: Record,
    ) -> None:
        """`peers` are kept up to date, and `known`, all members; who is there now stays."""
        self._registry, self._lease = registry, lease
        self._peers, self._known, self._given = peers, known, frozenset(peers)
        self._state, self._draining = lease.member.state, False
        self._members: list[Member] = []
        self._read = asyncio.Event()
        self._assignment: Assignment | None = None
        self._told = asyncio.Event()
        self._following = Following(
            registry,
            self._seen,
            resync_s=RESYNC_S,
            jitter=secrets.SystemRandom().random,
            record=record,
        )

    @property
    def member(self) -> Member:
        return self._lease.member

    def enter(self, measured: Capacity | None, *, assigned: bool) -> None:
        """Say what the node has measured of itself, if it has, and whether it wants layers."""
        capacity = measured or self.member.capacity
        self._lease.update(replace(self.member, capacity=capacity, assigned=assigned))

    def announce(
        self,
        state: MemberState,
        described: NodeDescription,
        held: tuple[ModelId, LayerRange] | None,
        *,
        epoch: int = 0,
        failure: str = "",
    ) -> None:
        """Tell the mesh what this node is now; `held` is what it holds or loads.

        While it drains, that is what others are told, whatever else it is.
        """
        self._state, (model, layers) = state, held or (None, None)
        self._lease.update(
            replace(
                self.member,
                state=MemberState.DRAINING if self._draining else state,
                description=_digest(described),
                model=model,
                layers=layers,
                epoch=epoch,
                failure=failure[:500],
            )
        )
        self._choose_peers()

    def drain(self, *, undo: bool = False) -> None:
        """Tell the mesh that this node drains, or that it is again what it said last."""
        self._draining = not undo
        state = self._state if undo else MemberState.DRAINING
        self._lease.update(replace(self.member, state=state))

    async def newer_than(self, epoch: int) -> Assignment:
        """Return what this node is told, as soon as that is later than `epoch`."""
        while self._assignment is None or self._assignment.epoch <= epoch:
            self._told.clear()
            await self._told.wait()
        return self._assignment

    async def run(self) -> None:
        """Renew, follow and read until cancelled. Raises RegistryRefused at the first answer."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._lease.keep())
            group.create_task(self._following.run())
            group.create_task(self._read_assignments())

    def _seen(self, view: View) -> None:
        self._members = sorted(view.members.values(), key=lambda member: member.node)
        self._choose_peers()
        if view.may_have_written(ASSIGNMENTS):
            self._read.set()

    def _choose_peers(self) -> None:
        own = self.member
        wanted = {
            member.node
            for member in self._members
            if member.node != own.node and own.may_hand_on_to(member)
        }
        self._replace(self._peers, wanted)
        self._replace(self._known, {member.node for member in self._members} - {own.node})

    def _replace(self, urls: dict[NodeId, str], wanted: set[NodeId]) -> None:
        for gone in urls.keys() - wanted - self._given:
            del urls[gone]
        urls.update({node: node for node in sorted(wanted)})

    async def _read_assignments(self) -> None:
        while True:
            await self._read.wait()
            self._read.clear()
            try:
                value = await self._registry.get(ASSIGNMENTS)
                if value is not None:
                    self._assignment = decode_assignments(value.value).of(self.member.node)
                    self._told.set()
            except (RegistryLost, RegistryRefused, BadField):
                await asyncio.sleep(RETRY_S)
                self._read.set()


@asynccontextmanager
async def joined(
    settings: Settings, joining: Joining, node: NodeId, peers: dict[NodeId, str],
    known: dict[NodeId, str], record: Record,
) -> AsyncIterator[MeshPlace]:  # fmt: skip
    """Be a member until the block is left; `run` the place meanwhile. Then the member leaves.

    It is told no layers before it has entered.
    """
    capacity = Capacity(
        machine_id(), free_device_bytes(settings.device), settings.threads or cores(), cores()
    )
    async with opened_registry(settings, joining.registry) as registry:
        member = Member(node, WIRE_VERSION, MemberState.JOINING, capacity)
        lease = Lease(
            registry,
            member,
            ttl_s=settings.lease_seconds,
            clock=time.monotonic,
            jitter=secrets.SystemRandom().random,
            record=record,
        )
        try:
            yield MeshPlace(registry, lease, peers, known, record)
        finally:
            await lease.leave()


def _digest(described: NodeDescription) -> str:
    """Sum up what a gateway should ask again for, once it is different."""
    said = repr((described.ready, described.pid, described.shards))
    return hashlib.blake2b(said.encode(), digest_size=8).hexdigest()
