"""Where the time of one token goes, in lines that add up to it.

    total ─┬─ head                      the head's Python between two calls
           └─ per hop ─┬─ attention     ┐
                       ├─ sampling      ├ the node's own count of model compute, cut by the
                       ├─ layers        ┘ profile of the same shard alone in a process
                       ├─ queue         from being handed over until the compute thread begins
                       ├─ node          the node's Python around it: checks, lease, commit
                       ├─ exchange      Python of both ends: HTTP or stream, encoding, parsing
                       └─ wire          as many bytes there and back by plain sockets

Invariant: the lines of a budget sum to its total exactly; `node`, `exchange` and `head` take what
is left at their level and may be negative where a part was measured too large. Nothing is cut off
or hidden. Where the engine runs a whole step in one call, attention is within `layers`, and that
line says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

HEAD = "head"
LAYERS, LAYERS_WHOLE = "layers", "layers with attention"
COMPUTE = ("attention", "sampling", LAYERS, LAYERS_WHOLE)


@dataclass(frozen=True, slots=True)
class HopTimes:
    """Of one token on one node, seconds."""

    node: str
    compute_s: float
    """As the node counts it, like the next two."""
    queue_s: float
    step_s: float
    """All of a step within the node's service."""
    wire_s: float
    call_s: float
    """From the head's call to its answer."""


@dataclass(frozen=True, slots=True)
class Shares:
    """Parts of a shard's compute, 0 to 1, from its profile."""

    attention: float | None = None
    """None: it cannot be told apart."""
    sampling: float = 0.0

    def __post_init__(self) -> None:
        attention = self.attention or 0.0
        if min(attention, self.sampling) < 0.0 or attention + self.sampling > 1.0:
            raise ValueError(f"shares: expected parts of one, got {self}")

    def parts(self, compute_s: float) -> dict[str, float]:
        """Cut a time into parts that add up to it."""
        sampling_s = self.sampling * compute_s
        if self.attention is None:
            return {"sampling": sampling_s, LAYERS_WHOLE: compute_s - sampling_s}
        attention_s = self.attention * compute_s
        return {
            "attention": attention_s,
            "sampling": sampling_s,
            LAYERS: compute_s - attention_s - sampling_s,
        }


@dataclass(frozen=True, slots=True)
class Line:
    where: str
    what: str
    ms: float


@dataclass(frozen=True, slots=True)
class Budget:
    total_ms: float
    lines: tuple[Line, ...]

    @property
    def compute_ms(self) -> float:
        """Model compute on all nodes."""
        return math.fsum(line.ms for line in self.lines if line.what in COMPUTE)

    @property
    def own_ms(self) -> float:
        """What meshnet itself costs: everything but model compute."""
        return self.total_ms - self.compute_ms


def budget(total_s: float, hops: Sequence[HopTimes], shares: Mapping[str, Shares]) -> Budget:
    """Divide the time of a token."""
    lines: list[Line] = []
    for hop in hops:
        parts = {
            **shares.get(hop.node, Shares()).parts(hop.compute_s),
            "queue": hop.queue_s,
            "node": hop.step_s - hop.compute_s - hop.queue_s,
            "exchange": hop.call_s - hop.step_s - hop.wire_s,
            "wire": hop.wire_s,
        }
        lines += [Line(hop.node, what, 1e3 * seconds) for what, seconds in parts.items()]
    called_s = math.fsum(hop.call_s for hop in hops)
    lines.append(Line(HEAD, "between calls", 1e3 * (total_s - called_s)))
    return Budget(1e3 * total_s, tuple(lines))


def middle_half(rows: Sequence[Mapping[str, float]], by: str) -> dict[str, float]:
    """Return the means of each column over the middle half of `rows`, in the order of `by`.

    Means of the same rows add up where medians do not; the outer quarters are interruptions.
    """
    ordered = sorted(rows, key=lambda row: row[by])
    cut = len(ordered) // 4
    kept = ordered[cut : len(ordered) - cut]
    return {name: math.fsum(row[name] for row in kept) / len(kept) for name in kept[0]}
