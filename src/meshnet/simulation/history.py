"""What one seed's cluster did, and which promises it broke.

Values only. A history with no complaint kept every promise: right tokens, an
end for every generation, nothing emitted twice, nothing left behind.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Costs:
    """What churn cost the clients of one seed."""

    spacing: float = 0.0
    """How many times as far apart events were as in the wildest churn; 0: there was none."""
    looks: int = 0
    """Times that a head was asked for a route, at even distances while nodes came and went."""
    routes: int = 0
    """Those of them at which it had one."""
    gaps_s: tuple[float, ...] = ()
    """From the last token before a loss to the next one."""


@dataclass(frozen=True, slots=True)
class History:
    """One seed's verdict. Each complaint is a sentence that names the chat or the node."""

    seed: int
    generations: int
    tokens: int
    refills: int
    events: int
    virtual_s: float
    wrong: tuple[str, ...]
    unfinished: tuple[str, ...]
    violations: tuple[str, ...]
    partial_refills: int = 0
    """Those of the refills in which some hops kept what they held."""
    refilled_positions: int = 0
    """What hops ran again for refills, those of each hop counted."""
    costs: Costs = Costs()

    @property
    def complaints(self) -> tuple[str, ...]:
        return (*self.wrong, *self.unfinished, *self.violations)


def broken(seed: int, error: Exception) -> History:
    """The history of a seed that ended in an error nobody handled: a bug, or a deadlock."""
    innermost: BaseException = error
    while isinstance(innermost, BaseExceptionGroup):
        innermost = innermost.exceptions[0]
    frames = traceback.extract_tb(innermost.__traceback__)
    where = f" in {frames[-1].name}, line {frames[-1].lineno}" if frames else ""
    complaint = f"{type(innermost).__name__}: {innermost}{where}"
    return History(seed, 0, 0, 0, 0, 0.0, wrong=(), unfinished=(), violations=(complaint,))
