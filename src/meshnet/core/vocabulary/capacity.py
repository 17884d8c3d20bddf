"""What a node can do, as it measured itself when it joined.

A decode step reads all weights of its layers once, so it takes bytes over a rate; a prefill
multiplies, so it takes multiply-adds over a rate. Both rates are those of the operators that
serve, in one weight format, on all threads of the node.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshnet.core.vocabulary.descriptions import WeightFormat
from meshnet.core.vocabulary.identity import NodeId


@dataclass(frozen=True, slots=True)
class Reading:
    """How fast one position runs through weights, when a node holds so many bytes of them.

    What fits a processor's caches is read several times as fast as what does not.
    """

    held_bytes: int
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Speed:
    """Of steps in one weight format."""

    weights: WeightFormat
    reading: tuple[Reading, ...]
    """Ascending by what is held; between two of them rates change evenly with its logarithm."""
    multiplies_per_s: float
    """Multiply-adds a second in a step of many positions."""
    attention_bytes_per_s: float
    """Keys and values read a second by one position."""
    layer_s: float
    """Of each layer of a step, whatever its size."""
    step_s: float
    """Of each step, beside its layers: queue, lease, frames, the way back to the peer's socket."""


@dataclass(frozen=True, slots=True)
class Link:
    """The way to another node, or to the head that measured it."""

    node: NodeId
    round_trip_s: float
    """Of the smallest message."""
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Capacity:
    """Of one node. Nodes of equal `machine` share its cores and its memory."""

    machine: str
    memory_bytes: int
    """Free for weights and K/V before any were loaded."""
    threads: int
    speeds: tuple[Speed, ...] = ()
    links: tuple[Link, ...] = ()
