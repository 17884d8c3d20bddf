"""Telling members which layers to hold: when, and by one value that is written as a whole.

    members changed ──settled──▶ decide ──differs──▶ compare and set ──refused──▶ again
                                    └──as it is──▶ wait

One gateway does this: the one that keeps the registry, or whose turn it is (placing_turn.py).
Should two of them, the value that is compared lets only one decision stand, never a mixture.

Invariants
    * nothing is decided while members keep coming, `SETTLES_MAX` times the settle time at most;
    * what a member holds counts also when the value was lost: nobody is told to load it again;
    * an epoch is never used twice, also then;
    * no member's word takes the mesh its last epoch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace

from meshnet.core.protocol.members import EPOCH_MAX, decode_assignments, encode_assignments
from meshnet.core.vocabulary import (
    Assignments,
    BadField,
    LayerRange,
    Member,
    MemberState,
    ModelId,
    NodeId,
)
from meshnet.mesh.registry.following import View
from meshnet.mesh.registry.ports import Registry, RegistryLost, RegistryRefused, Versioned
from meshnet.telemetry.events import LayersAssigned, Record

ASSIGNMENTS = "assignments"
"""The key of the value."""
EPOCH_BELIEVED_MAX = EPOCH_MAX // 2
"""Beyond it no placer comes in the life of a mesh: who says such an epoch was not told it here."""
SETTLES_MAX = 4
RETRY_S = 1.0

Decision = tuple[Mapping[NodeId, LayerRange], str]
Decide = Callable[[Collection[Member], Mapping[NodeId, LayerRange]], Awaitable[Decision]]
"""(members, what they hold or were told) -> (who is to hold what, why not all layers are held)."""


class Placer:
    """Of one registry and one model. `reason` says what is missing; empty: nothing."""

    def __init__(
        self,
        registry: Registry,
        model: Assignments,
        decide: Decide,
        *,
        settle_s: float,
        clock: Callable[[], float],
        record: Record,
    ) -> None:
        """`model` says what to load, and nothing of nodes yet."""
        self._registry, self._model, self._decide = registry, model, decide
        self._settle_s, self._clock, self._record = settle_s, clock, record
        self._members: Mapping[NodeId, Member] = {}
        self._news = asyncio.Event()
        self._told: LayersAssigned | None = None
        self.reason = f"no node has joined to serve {model.model}"

    def seen(self, view: View) -> None:
        """Take note of the members as they are now."""
        if _matters(view.members) != _matters(self._members):
            self._news.set()
        self._members = view.members

    async def run(self) -> None:
        """Place until cancelled, and after that when run again. Raises nothing else."""
        try:
            while True:
                await self._news.wait()
                await self._settled()
                try:
                    while not await self._placed():
                        pass
                except (RegistryLost, RegistryRefused) as error:
                    self.reason = f"layers cannot be assigned: {error}"
                    self._news.set()
                    await asyncio.sleep(RETRY_S)
        finally:
            self._news.set()

    async def _settled(self) -> None:
        """Return when members have not changed for a while, or have changed for long."""
        until = self._clock() + SETTLES_MAX * self._settle_s
        while self._news.is_set() and self._clock() < until:
            self._news.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settle_s):
                    await self._news.wait()
        self._news.clear()

    async def _placed(self) -> bool:
        """Decide and write; False: the value was written meanwhile."""
        members = list(self._members.values())
        held = await self._registry.get(ASSIGNMENTS)
        known = _readable(held)
        same = replace(known, epoch=self._model.epoch, held={}) == self._model
        before = replace(known if same else self._model, epoch=_last(known, members))
        self.reason = f"layers are being assigned to {len(members)} nodes"
        anew = held is not None and not same
        members = [_heard(member, before, anew=anew) for member in members]
        ranges, self.reason = await self._decide(members, _present(before, members))
        after = before.changed(ranges)
        if held is None or after.held != before.held:
            expected = None if held is None else held.revision
            value = encode_assignments(after)
            if not await self._registry.compare_and_set(ASSIGNMENTS, expected, value):
                return False
        told = LayersAssigned(len(ranges), after.epoch, self.reason or None)
        if told != self._told:
            self._told = told
            self._record(told)
        return True


def _readable(held: Versioned | None) -> Assignments:
    """Return the value that is there; one of a later version counts as none."""
    nothing = Assignments(ModelId(""), "", "")
    if held is None:
        return nothing
    try:
        return decode_assignments(held.value)
    except BadField:
        return nothing


def _last(known: Assignments, members: Collection[Member]) -> int:
    """Return the last epoch that anybody knows of."""
    said = [member.epoch for member in members if member.epoch <= EPOCH_BELIEVED_MAX]
    return max(known.epoch, *said, 0)


def _heard(member: Member, before: Assignments, *, anew: bool) -> Member:
    """Return the member without a failure that is not of what it is told now."""
    told = before.of(member.node)
    overtaken = anew or (told is not None and told.epoch > member.epoch)
    return replace(member, failure="") if overtaken else member


def _present(before: Assignments, members: Collection[Member]) -> dict[NodeId, LayerRange]:
    """Return what each member was told, or holds by a later word than is known here any more."""
    present = {}
    for member in members:
        told = before.of(member.node)
        if told is not None and told.epoch >= member.epoch:
            present[member.node] = told.layers
        elif member.assigned and member.model == before.model and member.layers is not None:
            present[member.node] = member.layers
    return present


def _matters(members: Mapping[NodeId, Member]) -> dict[NodeId, object]:
    """Return what of the members decides placing: that they load is no news."""
    return {
        node: (
            member.assigned,
            member.state is MemberState.DRAINING,
            bool(member.failure),
            member.capacity.memory_bytes,
            None if member.assigned else (member.model, member.layers),
        )
        for node, member in members.items()
    }
