"""Which member of the mesh is told to hold which layers.

    layers that nobody holds? ──no──▶ spare members double what is held by the fewest
            │
            └──yes──▶ spare members take them ──too few──▶ the neighbours of a gap widen into it
                                                    └──no room──▶ all is divided anew
                                                                        └──no room──▶ a reason

Who serves keeps what it serves: nobody moves while all layers are held, and a spare is moved
before anybody whose layers are needed. A member that drains is replaced by who is not needed, or
once it has left: whoever is needed would lose its own chats, and those that the other still has.
Members that were told by their operators count as they are, and are told nothing. Equal members
give equal placements.

Invariants
    * a range never ends inside an inseparable run, and never exceeds its member's room;
    * without a reason, all layers are held once everybody holds what it is told.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from meshnet.core.routing.partition import partition
from meshnet.core.vocabulary import BadField, LayerRange, Member, MemberState, ModelId, NodeId

WEIGHTS_SHARE = 0.5
"""Of a member's free memory; the rest is for sessions and for loading."""


@dataclass(frozen=True, slots=True)
class ModelSize:
    """What placing needs to know of a model."""

    model: ModelId
    layers_total: int
    inseparable: tuple[LayerRange, ...] = ()
    layer_bytes: int = 0
    """Weights of the average layer in memory; 0: not known, and any number fits."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Ranges of the members that are told theirs, and why not all layers are held; empty: they are.

    A member without a range has no room for any, or would be of no use.
    """

    ranges: Mapping[NodeId, LayerRange]
    reason: str = ""


Ranges = dict[NodeId, LayerRange]


def place(
    members: Collection[Member],
    size: ModelSize,
    present: Mapping[NodeId, LayerRange],
) -> Placement:
    """Return who is to hold what.

    `present` is what members were told before, or what a planner would tell them first.
    """
    return _Placing(members, size, present).placement()


def rooms_of(members: Collection[Member], size: ModelSize) -> dict[NodeId, float]:
    """Return how many layers each has room for; members on one machine share its memory."""
    machines = Counter(member.capacity.machine for member in members)
    rooms = {}
    for member in members:
        memory = member.capacity.memory_bytes / machines[member.capacity.machine]
        rooms[member.node] = memory * WEIGHTS_SHARE / max(1, size.layer_bytes)
    return rooms


def uncovered(ranges: Iterable[LayerRange], total: int) -> tuple[LayerRange, ...]:
    """Return the layers of [0, total) that no range holds."""
    gaps, covered = [], 0
    for layers in [*sorted(ranges), LayerRange(total, total + 1)]:
        if layers.start > covered:
            gaps.append(LayerRange(covered, layers.start))
        covered = max(covered, layers.stop)
    return tuple(gaps)


class _Placing:
    def __init__(
        self,
        members: Collection[Member],
        size: ModelSize,
        present: Mapping[NodeId, LayerRange],
    ) -> None:
        self._size = size
        told = sorted((each for each in members if _tellable(each)), key=lambda each: each.node)
        self._told = {member.node: member for member in told}
        self._rooms = rooms_of(told, size)
        self._failed = sorted(f"{each.node}: {each.failure}" for each in members if each.failure)
        self._fixed = [layers for each in members if (layers := _fixed(each, size)) is not None]
        self._leaving = [layers for each in members if (layers := _left_soon(each, size, present))]
        self._ranges: Ranges = {
            node: layers
            for node, layers in present.items()
            if node in self._told and layers.stop <= size.layers_total
        }

    def placement(self) -> Placement:
        gaps = self._gaps()
        if gaps and not self._ranges and not self._fixed:
            self._ranges = self._divided()
        elif gaps and not self._fill(gaps):
            gaps = self._gaps(*self._leaving)
            if gaps and not (self._fill(gaps) or self._widen(gaps)):
                self._ranges = self._divided() or self._ranges
        gaps = self._gaps()
        if not gaps:
            self._double()
        return Placement(self._ranges, self._reason(gaps))

    def _divided(self) -> Ranges:
        """Share the whole model, each member by its memory; empty: it does not fit."""
        whole = LayerRange(0, self._size.layers_total)
        return _shared([*self._told], self._rooms, whole, self._size)

    def _gaps(self, *besides: LayerRange) -> tuple[LayerRange, ...]:
        held = [*self._ranges.values(), *self._fixed, *besides]
        return uncovered(held, self._size.layers_total)

    def _copies(self) -> list[int]:
        """Return how many hold each layer."""
        copies = [0] * self._size.layers_total
        for layers in (*self._ranges.values(), *self._fixed):
            _count(layers, copies)
        return copies

    def _free(self) -> list[NodeId]:
        """Return who holds nothing, most room first."""
        free = [node for node in self._told if node not in self._ranges]
        return sorted(free, key=lambda node: (-self._rooms[node], node))

    def _spares(self) -> list[NodeId]:
        """Return who may leave without a layer becoming nobody's, one after the other."""
        copies, spares = self._copies(), []
        for node in sorted(self._ranges, reverse=True):
            held = _slice(self._ranges[node])
            if min(copies[held]) > 1:
                copies[held] = [count - 1 for count in copies[held]]
                spares.append(node)
        return spares

    def _fill(self, gaps: Sequence[LayerRange]) -> bool:
        """Let members take the gaps that hold nothing, or nothing that is needed."""
        helpers, taken = [*self._free(), *self._spares()], Ranges()
        for gap in sorted(gaps, key=len, reverse=True):
            for count in range(1, len(helpers) + 1):
                shared = _shared(helpers[:count], self._rooms, gap, self._size)
                if shared:
                    taken |= shared
                    helpers = [node for node in helpers if node not in shared]
                    break
            else:
                return False
        self._ranges |= taken
        return True

    def _widen(self, gaps: Sequence[LayerRange]) -> bool:
        """Let the members before and behind each gap take it too."""
        ranges = dict(self._ranges)
        for gap in gaps:
            before = _where(ranges, lambda layers: layers.stop, gap.start)
            behind = _where(ranges, lambda layers: layers.start, gap.stop)
            cut = self._best_cut(ranges, before, behind, gap)
            if cut is None:
                return False
            if before is not None and cut > gap.start:
                ranges[before] = LayerRange(ranges[before].start, cut)
            if behind is not None and cut < gap.stop:
                ranges[behind] = LayerRange(cut, ranges[behind].stop)
        self._ranges = ranges
        return True

    def _best_cut(
        self, ranges: Ranges, before: NodeId | None, behind: NodeId | None, gap: LayerRange
    ) -> int | None:
        """Return where the gap parts between its neighbours, the fuller as empty as can be."""

        def fill(node: NodeId | None, more: int) -> float:
            if more == 0:
                return 0.0
            room = 0.0 if node is None else self._rooms[node]
            return (len(ranges[node]) + more) / room if node is not None and room else 2.0

        inside = _inside(self._size.inseparable)
        cuts = [cut for cut in range(gap.start, gap.stop + 1) if cut not in inside]
        fills = {
            cut: max(fill(before, cut - gap.start), fill(behind, gap.stop - cut)) for cut in cuts
        }
        best = min(cuts, key=lambda cut: (fills[cut], cut), default=None)
        return best if best is not None and fills[best] <= 1 else None

    def _double(self) -> None:
        """Give each free member what the fewest others hold: what one of them has, or a part."""
        ranges = {*self._ranges.values(), *self._fixed}
        copies = self._copies()
        for node in self._free():
            fitting = [layers for layers in ranges if len(layers) <= self._rooms[node]]
            chosen = min(fitting, key=lambda each: (min(copies[_slice(each)]), each), default=None)
            if chosen is None or min(copies[_slice(chosen)]) > min(copies):
                chosen = self._part(int(self._rooms[node]), copies) or chosen
            if chosen is not None:
                self._ranges[node] = chosen
                _count(chosen, copies)

    def _part(self, room: int, copies: Sequence[int]) -> LayerRange | None:
        """Return a range of so many layers at most, of which there are the fewest copies."""
        inside = _inside(self._size.inseparable)
        cuts = [cut for cut in range(self._size.layers_total + 1) if cut not in inside]
        before = [*accumulate(copies, initial=0)]
        parts = [
            LayerRange(start, cuts[bisect_right(cuts, start + room) - 1])
            for start in cuts[:-1]
            if cuts[bisect_right(cuts, start + room) - 1] > start
        ]
        rated = [((before[part.stop] - before[part.start]) / len(part), part) for part in parts]
        return min(rated, key=lambda each: (each[0], -len(each[1]), each[1]))[1] if rated else None

    def _reason(self, gaps: Sequence[LayerRange]) -> str:
        if not gaps:
            return ""
        missing = ", ".join(map(str, gaps))
        if not self._gaps(*self._leaving):
            return f"layers {missing} of {self._size.model} are held by a node that drains"
        if self._failed:
            return f"layers {missing} of {self._size.model}: {self._failed[0]}"
        if not self._told:
            return f"layers {missing} of {self._size.model} wait for a node to join"
        needed = sum(map(len, gaps)) * self._size.layer_bytes / WEIGHTS_SHARE
        room = sum(self._rooms[node] for node in self._told) * self._size.layer_bytes
        return (
            f"layers {missing} of {self._size.model} do not fit the nodes that joined: "
            f"{len(self._told)} nodes offer {_gigabytes(room / WEIGHTS_SHARE)}, "
            f"these layers take {_gigabytes(needed)}"
        )


def _tellable(member: Member) -> bool:
    return member.assigned and member.state is not MemberState.DRAINING and not member.failure


def _fixed(member: Member, size: ModelSize) -> LayerRange | None:
    """Return what an operator told the member to hold of this model."""
    serves = member.state in {MemberState.LOADING, MemberState.READY}
    if member.assigned or not serves or member.model != size.model or member.layers is None:
        return None
    return member.layers if member.layers.stop <= size.layers_total else None


def _left_soon(
    member: Member, size: ModelSize, present: Mapping[NodeId, LayerRange]
) -> LayerRange | None:
    """Return what a member that drains still serves."""
    if member.state is not MemberState.DRAINING or member.failure:
        return None
    return present.get(member.node, member.layers if member.model == size.model else None)


def _shared(
    nodes: Sequence[NodeId], rooms: Mapping[NodeId, float], layers: LayerRange, size: ModelSize
) -> Ranges:
    """Divide `layers` over the nodes in this order, by their rooms; empty: they do not fit."""
    runs = [
        LayerRange(run.start - layers.start, run.stop - layers.start)
        for run in size.inseparable
        if layers.holds(run)
    ]
    parts = min(len(nodes), len(layers))
    while parts > 0 and sum(rooms[node] for node in nodes[:parts]) >= len(layers):
        chosen = nodes[:parts]
        try:
            cut = partition(len(layers), parts, [max(rooms[node], 1e-9) for node in chosen], runs)
        except BadField:  # more parts than places to cut
            parts -= 1
            continue
        if any(len(part) > rooms[node] for node, part in zip(chosen, cut, strict=True)):
            return {}
        return {
            node: LayerRange(part.start + layers.start, part.stop + layers.start)
            for node, part in zip(chosen, cut, strict=True)
        }
    return {}


def _where(ranges: Ranges, side: Callable[[LayerRange], int], cut: int) -> NodeId | None:
    """Return the first node whose range begins or ends at `cut`."""
    return next((node for node, layers in sorted(ranges.items()) if side(layers) == cut), None)


def _inside(runs: Iterable[LayerRange]) -> set[int]:
    return {cut for run in runs for cut in range(run.start + 1, run.stop)}


def _slice(layers: LayerRange) -> slice:
    return slice(layers.start, layers.stop)


def _count(layers: LayerRange, copies: list[int]) -> None:
    copies[_slice(layers)] = [count + 1 for count in copies[_slice(layers)]]


def _gigabytes(count: float) -> str:
    return f"{count / 1e9:.1f} GB"
