"""Where the time of one token goes, in lines that add up to it.

    total ─┬─ head                      what the head does between two calls
           └─ per hop ─┬─ attention     ┐
                       ├─ sampling      ├ the node's own count of model compute, cut by the
                       ├─ layers        ┘ profile of the same shard alone in a process
                       ├─ exchange      a call that computes nothing: wire, HTTP, parsing
                       └─ rest          what is left: queue, thread, commit, and what we do not know

Invariant: the lines of a budget sum to its total exactly; `rest` and `head` take what is left and
may be negative where a part was measured too large. Nothing is cut off or hidden.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

HEAD = "head"


@dataclass(frozen=True, slots=True)
class HopTimes:
    """Of one token on one node, seconds."""

    node: str
    compute_s: float
    """As the node counts it."""
    call_s: float | None
    """From the head's call to its answer; None where the head calls once for several nodes."""
    exchange_s: float
    """A call that computes nothing."""


@dataclass(frozen=True, slots=True)
class Shares:
    """Parts of a shard's compute, 0 to 1, from its profile."""

    attention: float = 0.0
    sampling: float = 0.0

    def __post_init__(self) -> None:
        if min(self.attention, self.sampling) < 0.0 or self.attention + self.sampling > 1.0:
            raise ValueError(f"shares: expected parts of one, got {self}")


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


COMPUTE = ("attention", "sampling", "layers")


def budget(total_s: float, hops: Sequence[HopTimes], shares: Mapping[str, Shares]) -> Budget:
    """Divide the time of a token. Where the head's calls are not known, `rest` is the head's."""
    lines: list[Line] = []
    called_s = 0.0
    for hop in hops:
        share = shares.get(hop.node, Shares())
        attention, sampling = share.attention * hop.compute_s, share.sampling * hop.compute_s
        parts = {
            "attention": attention,
            "sampling": sampling,
            "layers": hop.compute_s - attention - sampling,
            "exchange": hop.exchange_s,
        }
        if hop.call_s is not None:
            parts["rest"] = hop.call_s - hop.compute_s - hop.exchange_s
        called_s += math.fsum(parts.values())
        lines += [Line(hop.node, what, 1e3 * seconds) for what, seconds in parts.items()]
    whole = all(hop.call_s is not None for hop in hops)
    lines.append(Line(HEAD, "between calls" if whole else "rest", 1e3 * (total_s - called_s)))
    return Budget(1e3 * total_s, tuple(lines))


def middle_half(rows: Sequence[Mapping[str, float]], by: str) -> dict[str, float]:
    """Return the means of each column over the middle half of `rows`, in the order of `by`.

    Means of the same rows add up where medians do not; the outer quarters are interruptions.
    """
    ordered = sorted(rows, key=lambda row: row[by])
    cut = len(ordered) // 4
    kept = ordered[cut : len(ordered) - cut]
    return {name: math.fsum(row[name] for row in kept) / len(kept) for name in kept[0]}
