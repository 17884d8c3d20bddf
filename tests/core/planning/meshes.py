"""Models and meshes for tests of planning: plain ones by hand, and random ones by a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import combinations, permutations

from meshnet.core.planning import LayerShape, Mesh, ModelShape, Wanted
from meshnet.core.planning.scoring import Scores
from meshnet.core.vocabulary import (
    Capacity,
    Hop,
    KVBytes,
    LayerRange,
    Link,
    ModelId,
    NodeId,
    Reading,
    Speed,
    WeightFormat,
)

MB = 10**6
MS = 1e-3


def layer_of(
    weight_bytes: int = 10 * MB, *, per_token: int = 1000, multiplies: int = 10 * MB, **others: int
) -> LayerShape:
    kv_bytes = KVBytes(per_token, grid=256)
    return LayerShape(weight_bytes, multiplies, kv_bytes, position_bytes=per_token, **others)


def shape_of(layers: Sequence[LayerShape], **others: object) -> ModelShape:
    given: dict[str, object] = {
        "embedding_bytes": 0,
        "head_bytes": 0,
        "head_multiplies": 0,
        "activation_bytes": 4000,
        "hidden_size": 1000,
        "context_length": 4096,
        **others,
    }
    return ModelShape(ModelId("m"), WeightFormat.INT8, tuple(layers), **given)  # type: ignore[arg-type]


def speed_of(bytes_per_s: float = 10e9, **others: float) -> Speed:
    given = {
        "multiplies_per_s": 100e9,
        "attention_bytes_per_s": 5e9,
        "together_attention_bytes_per_s": 20e9,
        "layer_s": 0.01 * MS,
        "step_s": 0.1 * MS,
        **others,
    }
    return Speed(WeightFormat.INT8, (Reading(MB, bytes_per_s),), **given)


def node_of(
    machine: str,
    memory_bytes: int = 1000 * MB,
    speed: Speed | None = None,
    links: Sequence[Link] = (),
    *,
    threads: int = 1,
    cores: int = 0,
) -> Capacity:
    return Capacity(
        machine=machine,
        memory_bytes=memory_bytes,
        threads=threads,
        cores=cores,
        speeds=(speed or speed_of(),),
        links=tuple(links),
    )


def mesh_of(*nodes: Capacity, **others: object) -> Mesh:
    """Nodes a, b, c, ..."""
    named = {NodeId("abcdefgh"[at]): node for at, node in enumerate(nodes)}
    return Mesh(named, **others)  # type: ignore[arg-type]


def hops_of(text: str) -> tuple[Hop, ...]:
    """`a 0-2, b 2-5` as hops."""
    words = [part.split() for part in text.split(",")]
    return tuple(Hop(NodeId(node), LayerRange.parse(layers)) for node, layers in words)


def shown(hops: Sequence[Hop]) -> str:
    return ", ".join(f"{hop.node} {hop.layers}" for hop in hops)


def whole_chunks(past: int, length: int, hops: int) -> Iterator[int]:
    """Chunks of 128 positions, however many hops."""
    yield from (*range(past + 128, length, 128), length)


def every_plan(mesh: Mesh, shape: ModelShape) -> Iterator[tuple[Hop, ...]]:
    """Each order of each choice of nodes, with each choice of cuts."""
    *inner, total = shape.cuts()
    for count in range(1, len(mesh.nodes) + 1):
        for nodes in permutations(mesh.nodes, count):
            for cuts in combinations(inner, count - 1):
                ends = (*cuts, total)
                starts = (0, *cuts)
                yield tuple(
                    Hop(node, LayerRange(start, stop))
                    for node, start, stop in zip(nodes, starts, ends, strict=True)
                )


def best_score(scores: Scores) -> float | None:
    """The lowest of every plan that fits, by trying each."""
    rated = (scores.score(hops) for hops in every_plan(scores.mesh, scores.shape))
    return min((score for score in rated if score is not None), default=None)


class Draw:
    """A random small planning problem, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        draw = self._draw
        self.shape = self._shape(draw.randint(1, 7))
        self.mesh = self._mesh(draw.randint(1, 5 if len(self.shape.layers) < 6 else 4))
        context = draw.choice([300, 2000])
        prompt = draw.choice([1, 100, 300])
        self.wanted = Wanted(context, sessions=draw.choice([1, 4]), prompt=prompt)
        self.chain = draw.random() < 0.7

    def scores(self) -> Scores:
        return Scores(self.shape, self.mesh, self.wanted, chain=self.chain)

    def _shape(self, total: int) -> ModelShape:
        draw = self._draw
        alike = draw.random() < 0.4
        layers = [self._layer() for _ in range(total)]
        start = draw.randint(0, total - 1)
        run = LayerRange(start, draw.randint(start + 1, total))
        return shape_of(
            layers[:1] * total if alike else layers,
            embedding_bytes=draw.choice([0, 20 * MB]),
            head_bytes=draw.choice([0, 15 * MB]),
            head_multiplies=draw.choice([0, 30 * MB]),
            common_bytes=draw.choice([0, MB]),
            activation_bytes=draw.choice([2000, 100_000]),
            inseparable=(run,) if draw.random() < 0.3 else (),
        )

    def _layer(self) -> LayerShape:
        draw = self._draw
        weights = draw.randint(1, 30) * MB
        routed = draw.random() < 0.2
        return LayerShape(
            weight_bytes=weights,
            multiplies=weights,
            kv_bytes=KVBytes(draw.choice([0, 500, 2000]), fixed=draw.choice([0, MB]), grid=256),
            position_bytes=draw.choice([0, 500, 5000]),
            window=draw.choice([None, 64]),
            routed_bytes=weights // 2 if routed else 0,
            routed_share=0.25 if routed else 1.0,
        )

    def _mesh(self, count: int) -> Mesh:
        draw = self._draw
        names = [NodeId("abcdefgh"[at]) for at in range(count)]
        machines = [draw.choice("xy") if draw.random() < 0.5 else name for name in names]
        plenty = draw.choice([0.8, 0.8, 2.0]) * self.shape.weight_bytes
        nodes = {
            name: Capacity(
                machine=machine,
                memory_bytes=round(draw.uniform(0.25, 1) * plenty) * machines.count(machine),
                threads=draw.choice([1, 2]),
                cores=draw.choice([0, 2]),
                speeds=(self._speed(),),
                links=self._links([each for each in names if each != name]),
            )
            for name, machine in zip(names, machines, strict=True)
        }
        head = self._links(names)
        return Mesh(nodes, head, head_machine=draw.choice(["", "x", "a"]), head_s=0.1 * MS)

    def _speed(self) -> Speed:
        draw = self._draw
        slow = draw.choice([1e9, 10e9]) * draw.uniform(1, 3)
        reading = (Reading(MB, slow * draw.uniform(1, 8)), Reading(100 * MB, slow))
        return Speed(
            weights=WeightFormat.INT8,
            reading=reading[draw.randint(0, 1) :],
            multiplies_per_s=draw.uniform(10e9, 500e9),
            attention_bytes_per_s=draw.uniform(1e9, 10e9),
            together_attention_bytes_per_s=draw.uniform(1e9, 90e9),
            layer_s=draw.uniform(0, 0.1) * MS,
            step_s=draw.uniform(0, 0.5) * MS,
        )

    def _links(self, names: Sequence[NodeId]) -> tuple[Link, ...]:
        draw = self._draw
        return tuple(
            Link(name, draw.choice([0.0, 0.1, 0.5, 5.0]) * MS, draw.choice([1e8, 1e9]))
            for name in names
            if draw.random() < 0.6
        )
