"""What a node can do, as it measured itself when it joined.

A decode step reads all weights of its layers once, so it takes bytes over a rate; a prefill
multiplies, so it takes multiply-adds over a rate. Both rates are those of the operators that
serve, in one weight format, on all threads of the node.

Invariant: every rate is above zero and no time is below it, so whoever predicts may divide.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from meshnet.core.vocabulary.formats import WeightFormat
from meshnet.core.vocabulary.identity import NodeId


@dataclass(frozen=True, slots=True)
class Reading:
    """How fast one position runs through weights, when a node holds so many bytes of them.

    What fits a processor's caches is read several times as fast as what does not.
    """

    held_bytes: int
    bytes_per_s: float

    def __post_init__(self) -> None:
        _check_above_zero(held_bytes=self.held_bytes, bytes_per_s=self.bytes_per_s)


@dataclass(frozen=True, slots=True)
class Speed:
    """Of steps in one weight format."""

    weights: WeightFormat
    reading: tuple[Reading, ...]
    """Ascending by what is held; between two of them rates change evenly with its logarithm."""
    multiplies_per_s: float
    """Multiply-adds a second of each further position of a step of many, attention apart."""
    attention_bytes_per_s: float
    """Keys and values read a second by one position."""
    together_attention_bytes_per_s: float
    """The same in a step of many positions of one session, counted for each of them: as they share
    what is read, this may be many times as much."""
    layer_s: float
    """Of each layer of a step, whatever its size."""
    step_s: float
    """Of each step, beside its layers: queue, lease, frames, the way back to the peer's socket."""

    def __post_init__(self) -> None:
        held = [each.held_bytes for each in self.reading]
        if not held or any(more <= less for less, more in pairwise(held)):
            raise ValueError(f"reading: expected one or more, ascending by bytes held, got {held}")
        _check_above_zero(
            multiplies_per_s=self.multiplies_per_s,
            attention_bytes_per_s=self.attention_bytes_per_s,
            together_attention_bytes_per_s=self.together_attention_bytes_per_s,
        )
        _check_not_below_zero(layer_s=self.layer_s, step_s=self.step_s)


@dataclass(frozen=True, slots=True)
class Link:
    """The way to another node, or to the head that measured it."""

    node: NodeId
    round_trip_s: float
    """Of the smallest message, beyond what the same takes between processes of one machine."""
    bytes_per_s: float

    def __post_init__(self) -> None:
        _check_above_zero(bytes_per_s=self.bytes_per_s)
        _check_not_below_zero(round_trip_s=self.round_trip_s)


@dataclass(frozen=True, slots=True)
class Capacity:
    """Of one node. Nodes of equal `machine` share its cores and its memory."""

    machine: str
    memory_bytes: int
    """Free for weights and K/V before any were loaded."""
    threads: int
    cores: int = 0
    """Of the machine, shared by all nodes on it; 0 is unknown."""
    speeds: tuple[Speed, ...] = ()
    """At most one of a format."""
    links: tuple[Link, ...] = ()
    """At most one to a node; none to a node that was not measured yet."""

    def __post_init__(self) -> None:
        _check_above_zero(threads=self.threads)
        _check_not_below_zero(memory_bytes=self.memory_bytes, cores=self.cores)
        formats = [speed.weights for speed in self.speeds]
        nodes = [link.node for link in self.links]
        for name, keys in (("speeds", formats), ("links", nodes)):
            if len(set(keys)) < len(keys):
                raise ValueError(f"{name}: expected different ones, got {keys}")


def _check_above_zero(**values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise ValueError(f"{name}: expected more than 0, got {value}")


def _check_not_below_zero(**values: float) -> None:
    for name, value in values.items():
        if not value >= 0:
            raise ValueError(f"{name}: expected at least 0, got {value}")
