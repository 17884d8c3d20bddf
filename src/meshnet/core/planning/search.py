"""The best order of nodes and cuts: labels pushed through the cuts, from layer 0 to the last.

    cut 0 ──node A──▶ cut 4 ──node B──▶ cut 9 ──...──▶ all layers
      └─────node B──────▶ cut 7 ──node A──▶ ...

A label is a way to cover the layers before a cut: its score so far, its longest stage, which nodes
it used up and which one is last. Of two at the same cut with the same last node one is needless if
the other scores no worse and has used up no other nodes. A node of a machine with several is
offered twice: with the machine alone, which uses its neighbours up, or shared.

Without a width the search is exact, and says whether it came to an end; with one it keeps only the
best labels of each cut.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from meshnet.core.planning.mesh import HEAD
from meshnet.core.planning.scoring import Part, Place, Scores
from meshnet.core.vocabulary import Hop, LayerRange, NodeId

OFFERS_FEW = 32


@dataclass(frozen=True, slots=True)
class Offer:
    """A place a label may go on at, and the nodes that are used up by it, as bits."""

    place: Place
    uses: int


@dataclass(slots=True, eq=False)
class _Label:
    sum_s: float
    stage_s: float
    used: int
    node: NodeId
    stop: int
    before: _Label | None
    value: float = 0.0

    def hops(self) -> tuple[Hop, ...]:
        hops: list[Hop] = []
        label = self
        while label.before is not None:
            hops.append(Hop(label.node, LayerRange(label.before.stop, label.stop)))
            label = label.before
        return tuple(reversed(hops))


@dataclass(frozen=True, slots=True)
class Found:
    """What a search came to. `complete`: there is nothing better within what it was given."""

    hops: tuple[Hop, ...]
    score: float
    complete: bool


def offers(scores: Scores, nodes: Sequence[NodeId]) -> list[Offer]:
    """Offer each node, alone and, where its machine has others of `nodes`, shared."""
    bits = {node: 1 << at for at, node in enumerate(nodes)}
    together: dict[str, int] = {}
    for node in nodes:
        machine = scores.mesh.nodes[node].machine
        together[machine] = together.get(machine, 0) | bits[node]
    made = []
    for node in nodes:
        everybody = together[scores.mesh.nodes[node].machine]
        made.append(Offer(scores.place(node, shared=False), everybody))
        if everybody != bits[node]:
            made.append(Offer(scores.place(node, shared=True), bits[node]))
    return made


class Rests:
    """What the layers from each on add to a score at the least, by the nodes still to be had.

    They are read by the fastest of these, each as far as it has room; whatever else a layer takes,
    it takes where that takes least.
    """

    def __init__(self, scores: Scores, offers: Sequence[Offer]) -> None:
        self._total = len(scores.shape.layers)
        self.nothing = [0.0] * (self._total + 1)
        self._offers = offers
        self._floors = [scores.floor(offer.place) for offer in offers]
        self._read = scores.read_bytes()
        dense = max(
            read / max(1, layer.weight_bytes + scores.needs.kv_bytes(LayerRange(at, at + 1)))
            for at, (read, layer) in enumerate(zip(self._read, scores.shape.layers, strict=True))
        )
        self._rates = [
            (
                max(each.bytes_per_s for each in offer.place.speed.reading),
                offer.place.room_bytes * dense,
            )
            for offer in offers
        ]
        self._back_s = min(scores.way(offer.place.node, HEAD).sum_s for offer in offers)
        self._known: dict[int, list[float]] = {}

    def after(self, used: int) -> list[float]:
        """By the first of the layers; nothing once all have run."""
        if used not in self._known:
            self._known[used] = self._rests(used)
        return self._known[used]

    def _rests(self, used: int) -> list[float]:
        left = [at for at, offer in enumerate(self._offers) if not offer.uses & used]
        if not left:
            return [math.inf] * self._total + [0.0]
        fastest = sorted((self._rates[at] for at in left), reverse=True)
        reads_s = _reads_s(self._read, fastest)
        others = self._back_s + min(self._offers[at].place.speed.step_s for at in left)
        floors = (
            map(min, *(self._floors[at] for at in left)) if len(left) > 1 else self._floors[left[0]]
        )
        rests = [0.0]
        for floor, read_s in zip(reversed([*floors]), reads_s, strict=True):
            others += floor
            rests.append(others + read_s)
        return rests[::-1]


def _reads_s(read: Sequence[float], fastest: Sequence[tuple[float, float]]) -> list[float]:
    """Seconds to read the last layer, the last two, and so on, by rates and rooms.

    More than all rooms together: never.
    """
    rooms = iter(fastest)
    rate, room = next(rooms)
    seconds, reads_s = 0.0, []
    for size in reversed(read):
        while size > room and rate:
            seconds, size = seconds + room / rate, size - room
            rate, room = next(rooms, (0.0, 0.0))
        seconds = seconds + size / rate if rate else math.inf
        room -= size
        reads_s.append(seconds)
    return reads_s


class Search:
    """Over some nodes and cuts; who has fixed layers runs these or a part, others none of them."""

    def __init__(
        self,
        scores: Scores,
        nodes: Sequence[NodeId],
        cuts: Sequence[int],
        fixed: Mapping[NodeId, LayerRange],
    ) -> None:
        """`cuts`: where hops may end, ascending, the last layer's end included."""
        self.extended = 0
        """Labels that were tried."""
        self._scores, self._cuts, self._fixed = scores, cuts, fixed
        self._offers = offers(scores, nodes)
        self._rests = Rests(scores, self._offers)
        self._spans: dict[tuple[int, int], list[tuple[int, Part]]] = {}

    def run(
        self, *, width: int | None = None, best: Found | None = None, extensions_max: int
    ) -> Found | None:
        """Return the best plan, `best` if none is better; None: none fits.

        Gives up after so many extensions, with what it has by then.
        """
        total = self._cuts[-1]
        # What is left is summed up for every choice of nodes: of many there are too many.
        bounded = width is None or (best is not None and len(self._offers) <= OFFERS_FEW)
        waiting: dict[int, list[_Label]] = {0: [_Label(0.0, 0.0, 0, HEAD, 0, None)]}
        score, winner, complete = math.inf if best is None else best.score, None, width is None
        for start in (0, *self._cuts[:-1]):
            for label in self._needed(waiting.pop(start, []), width, score):
                for made in self._extended(label, score, bounded):
                    if made.stop < total:
                        waiting.setdefault(made.stop, []).append(made)
                    elif made.value < score:
                        score, winner = made.value, made
                if self.extended > extensions_max:
                    complete = False
                    break
        if winner is None:
            return best and Found(best.hops, best.score, complete)
        return Found(winner.hops(), score, complete)

    def _extended(self, label: _Label, below: float, bounded: bool) -> Iterable[_Label]:
        """Yield what is made of a label by one hop more, as far as it may become the best."""
        scores, weight, total = self._scores, self._scores.stage_weight, self._cuts[-1]
        for at, offer in enumerate(self._offers):
            if offer.uses & label.used:
                continue
            node, used = offer.place.node, label.used | offer.uses
            way = scores.way(label.node, node)
            sum_s, stage_s = label.sum_s + way.sum_s, max(label.stage_s, way.stage_s)
            spans = self._spans_from(at, label.stop)
            self.extended += len(spans)
            rest = self._rests.after(used) if bounded else self._rests.nothing
            for stop, part in spans:
                total_s, longest_s = sum_s + part.sum_s, max(stage_s, part.stage_s)
                if stop == total:
                    total_s += scores.way(node, HEAD).sum_s
                value = total_s + weight * longest_s + rest[stop]
                if value < below:
                    yield _Label(total_s, longest_s, used, node, stop, label, value)

    def _spans_from(self, at: int, start: int) -> list[tuple[int, Part]]:
        """Where a hop of this offer may end that begins at `start`, and what it adds."""
        key = at, start
        if key not in self._spans:
            self._spans[key] = list(self._new_spans(self._offers[at].place, start))
        return self._spans[key]

    def _new_spans(self, place: Place, start: int) -> Iterable[tuple[int, Part]]:
        fixed = self._fixed.get(place.node)
        for stop in self._cuts[bisect_right(self._cuts, start) :]:
            layers = LayerRange(start, stop)
            free = _apart(layers, self._fixed.values()) if fixed is None else fixed.holds(layers)
            if not free or not self._scores.fits(place, layers):
                break  # more layers take more
            yield stop, self._scores.hop(place, layers)

    def _needed(self, labels: list[_Label], width: int | None, below: float) -> Iterable[_Label]:
        """Yield the labels of a cut that are worth going on with, the best first."""
        labels.sort(key=attrgetter("value"))
        kept: dict[NodeId, list[_Label]] = {}
        count = 0
        for label in labels:
            if label.value >= below or count == width:
                return
            others = kept.setdefault(label.node, [])
            if not any(_no_worse(other, label) for other in others):
                others.append(label)
                count += 1
                yield label


def _apart(layers: LayerRange, others: Iterable[LayerRange]) -> bool:
    return all(layers.stop <= other.start or other.stop <= layers.start for other in others)


def _no_worse(one: _Label, other: _Label) -> bool:
    return (
        one.sum_s <= other.sum_s
        and one.stage_s <= other.stage_s
        and one.used & other.used == one.used
    )
