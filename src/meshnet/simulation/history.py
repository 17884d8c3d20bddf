"""What one seed's cluster did, and which promises it broke.

Values only. A history with no complaint kept every promise: right tokens, an
end for every generation, nothing emitted twice, nothing left behind.
"""

from __future__ import annotations

from dataclasses import dataclass


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

    @property
    def complaints(self) -> tuple[str, ...]:
        return (*self.wrong, *self.unfinished, *self.violations)
