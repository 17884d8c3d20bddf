"""What makes one plan better than another, hop by hop, so that a search can add it up.

    score = time of a token + (time to the first token of the prompt) / ANSWER_TOKENS

The first token of a prompt cut into equal chunks takes the sum of all hops' times for one, and
once for each further chunk the longest of them. So of plans with equally fast tokens the more
even one is better. What a hop adds depends on its node, its layers, the hop before it, and on
whether the plan uses other nodes of its machine; nothing else.

Invariant: a hop on a shared machine never scores better than the same with the machine alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from meshnet.core.planning.holding import Needs
from meshnet.core.planning.mesh import HEAD, Machines, Mesh, Ways
from meshnet.core.planning.predicting import TOKEN_BYTES, speed_of
from meshnet.core.planning.shape import ModelShape, Wanted
from meshnet.core.planning.times import StepRows, StepTimes
from meshnet.core.vocabulary import Hop, LayerRange, NodeId, Speed

ANSWER_TOKENS = 1000
"""A second until the first token weighs as much as a thousandth in each of so many."""
CHUNK = 128


class Part(NamedTuple):
    """What a hop, or the way to one, adds to a score."""

    sum_s: float
    stage_s: float
    """Of one chunk: a plan's longest counts once for each further chunk."""


@dataclass(frozen=True, slots=True)
class Place:
    """What a node offers a plan, with its machine alone or shared."""

    node: NodeId
    shared: bool
    speed: Speed
    room_bytes: int
    slower: float


class Scores:
    """Of plans for one model, mesh and wish."""

    def __init__(
        self, shape: ModelShape, mesh: Mesh, wanted: Wanted, *, chain: bool = True
    ) -> None:
        self.shape, self.mesh = shape, mesh
        self.needs = Needs(shape, wanted)
        self.cuts = shape.cuts()
        self.machines = Machines(mesh)
        self._ways = Ways(mesh, chain=chain)
        self._places: dict[tuple[NodeId, bool], Place] = {}
        self._parts: dict[tuple[NodeId, NodeId], Part] = {}
        self._hops: dict[tuple[NodeId, bool, int, int], Part] = {}
        self._rows = min(CHUNK, wanted.prompt)
        past = (wanted.prompt - self._rows) // 2
        self._token = StepTimes(shape, StepRows.decode(wanted.prompt))
        self._chunk = StepTimes(shape, StepRows.chunk(past, past + self._rows))
        self.stage_weight = (-(-wanted.prompt // self._rows) - 1) / ANSWER_TOKENS

    def score(self, hops: Sequence[Hop]) -> float | None:
        """Score a plan; lower is better, None: it does not fit. Raises BadField: no speed known."""
        shared = self.machines.shared(hop.node for hop in hops)
        sum_s, stage_s, before = 0.0, 0.0, HEAD
        for hop in hops:
            place = self.place(hop.node, shared=hop.node in shared)
            if not self.fits(place, hop.layers):
                return None
            for part in (self.way(before, hop.node), self.hop(place, hop.layers)):
                sum_s, stage_s = sum_s + part.sum_s, max(stage_s, part.stage_s)
            before = hop.node
        sum_s += self.way(before, HEAD).sum_s
        return sum_s + self.stage_weight * stage_s

    def place(self, node: NodeId, *, shared: bool) -> Place:
        key = node, shared
        if key not in self._places:
            share = self.machines.share(node, shared=shared)
            self._places[key] = Place(
                node=node,
                shared=shared,
                speed=speed_of(self.mesh, node, self.shape),
                room_bytes=share.memory_bytes,
                slower=share.slower if self.stage_weight else 1.0,
            )
        return self._places[key]

    def fits(self, place: Place, layers: LayerRange) -> bool:
        return self.needs.all_bytes(layers) <= place.room_bytes

    def hop(self, place: Place, layers: LayerRange) -> Part:
        key = place.node, place.shared, layers.start, layers.stop
        part = self._hops.get(key)
        if part is None:
            part = self._hops[key] = self._hop(place, layers)
        return part

    def _hop(self, place: Place, layers: LayerRange) -> Part:
        speed = place.speed
        rate = self.needs.rate(speed, layers, shared=place.shared)
        token_s = self._token.on(speed, layers, rate, draws=1).total_s
        chunk_s = self._chunk.on(speed, layers, rate).total_s * place.slower
        return Part(token_s + chunk_s / ANSWER_TOKENS, chunk_s)

    def way(self, source: NodeId, target: NodeId) -> Part:
        part = self._parts.get((source, target))
        if part is None:
            part = self._parts[source, target] = self._way(source, target)
        return part

    def _way(self, source: NodeId, target: NodeId) -> Part:
        way = self._ways.between(source, target)
        if HEAD in (source, target):
            return Part(way.seconds(TOKEN_BYTES) * (1 + 1 / ANSWER_TOKENS), 0.0)
        size = self.shape.activation_bytes
        chunk_s = way.seconds(size * self._rows)
        # A chunk keeps the next one waiting only as long as its bytes take.
        stage_s = chunk_s - way.latency_s
        return Part(way.seconds(size) + chunk_s / ANSWER_TOKENS, stage_s)

    def floor(self, place: Place) -> list[float]:
        """What each layer adds to a score there at the least, but for reading it."""
        return [self._least(place.speed, layer) for layer in range(len(self.shape.layers))]

    def _least(self, speed: Speed, layer: int) -> float:
        layers = LayerRange(layer, layer + 1)
        token, chunk = (times.on(speed, layers, math.inf) for times in (self._token, self._chunk))
        token_s, chunk_s = (time.total_s - speed.step_s for time in (token, chunk))
        return token_s + chunk_s / ANSWER_TOKENS

    def read_bytes(self) -> list[float]:
        """What is read of each layer for a score: for a token, and a share of a chunk."""
        return [
            layer.read_bytes(1) + layer.read_bytes(self._rows) / ANSWER_TOKENS
            for layer in self.shape.layers
        ]
