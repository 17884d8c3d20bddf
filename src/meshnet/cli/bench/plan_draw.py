"""Which meshes and layouts `bench plan` tries: drawn by a seed, so that nobody chose easy ones.

A mesh is 2 to 4 machines, each slower than this one by a factor and as far away as its proxy
delays. A layout is a choice of them in some order, with cuts, and how answers travel.

Invariant: the same seed draws the same, whatever was measured.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from meshnet.core.vocabulary import LayerRange

MACHINES = (2, 3, 3, 4)
SLOWER = (1.0, 1.0, 1.5, 2.0, 3.0)
DELAYS_MS = (0.0, 0.0, 1.0, 3.0, 8.0, 20.0)


@dataclass(frozen=True, slots=True)
class Machine:
    """`delay_ms` is one way, to and from every other process."""

    slower: float
    delay_ms: float

    def __str__(self) -> str:
        return f"{self.slower:g}x{f' {self.delay_ms:g} ms' if self.delay_ms else ''}"


@dataclass(frozen=True, slots=True)
class Layout:
    """Who runs what, on which of the mesh's machines."""

    name: str
    machines: tuple[int, ...]
    layers: tuple[LayerRange, ...]
    chain: bool = True

    def __str__(self) -> str:
        hops = ", ".join(
            f"{number + 1}: {held}" for number, held in zip(self.machines, self.layers, strict=True)
        )
        return f"{self.name}, {'chain' if self.chain else 'star'}, {hops}"


@dataclass(frozen=True, slots=True)
class DrawnMesh:
    machines: tuple[Machine, ...]
    layouts: tuple[Layout, ...]
    """Of all machines, in some order; then of some of them, two at least."""

    def __str__(self) -> str:
        return " | ".join(map(str, self.machines))


def draw_meshes(seed: int, count: int, layers_total: int) -> tuple[DrawnMesh, ...]:
    """Draw meshes, each with layouts of its machines."""
    source = random.Random(seed)
    return tuple(_mesh(source, layers_total) for _ in range(count))


def _mesh(source: random.Random, layers_total: int) -> DrawnMesh:
    count = min(source.choice(MACHINES), layers_total)
    machines = tuple(Machine(source.choice(SLOWER), source.choice(DELAYS_MS)) for _ in range(count))
    some = source.randint(min(2, count), count)
    layouts = (_layout(source, count, used, layers_total) for used in (count, some))
    return DrawnMesh(machines, tuple(layouts))


def _layout(source: random.Random, count: int, used: int, layers_total: int) -> Layout:
    """Draw `used` of `count` machines and where their layers end."""
    cuts = sorted(source.sample(range(1, layers_total), used - 1))
    machines = tuple(source.sample(range(count), used))
    return Layout("drawn", machines, ranges(cuts, layers_total), chain=source.random() < 0.7)


def ranges(cuts: Sequence[int], layers_total: int) -> tuple[LayerRange, ...]:
    """Return the ranges between ascending cuts."""
    return tuple(LayerRange(*ends) for ends in pairwise((0, *cuts, layers_total)))


def alone(machine: int, layers_total: int) -> Layout:
    return Layout("alone", (machine,), ranges((), layers_total))
