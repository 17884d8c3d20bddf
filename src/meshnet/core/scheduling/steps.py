"""What a scheduler knows of a step that waits for the device, and what it says of it. Values only.

A **light** step adds few positions to a session, as a decode does; every other one is a **chunk**
of a prefill. The line is drawn by positions alone, since only they decide how long a step takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

from meshnet.core.vocabulary import LayerRange, ModelId, SessionId

StepId = NewType("StepId", int)
Group = tuple[ModelId, LayerRange]
"""Steps of one group may run together."""

LIGHT_POSITIONS_MAX = 17
"""A decode, and the most drafts that it verifies."""


@dataclass(frozen=True, slots=True)
class WaitingStep:
    """A step as the scheduler sees it."""

    model: ModelId
    layers: LayerRange
    session: SessionId | None
    """Steps of one session run in the order they came, and never two in one batch."""
    owner: str
    """Whose step it is: owners take turns."""
    positions: int
    merges: bool = True
    """False: it runs by itself, because its shard cannot batch or nothing is cached."""
    stages: int = 1
    """Over how many nodes of equal work its route leads, as far as this node knows."""
    deadline: float | None = None

    def __post_init__(self) -> None:
        if self.positions < 1 or self.stages < 1:
            raise ValueError(f"step: expected positions and stages, got {self}")

    @property
    def is_light(self) -> bool:
        return self.positions <= LIGHT_POSITIONS_MAX

    @property
    def group(self) -> Group:
        return self.model, self.layers


@dataclass(frozen=True, slots=True)
class Batch:
    """What to run now, in this order, and what left because its deadline had passed."""

    run: tuple[StepId, ...] = ()
    spent: tuple[StepId, ...] = ()


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """How much runs together, and how much may wait.

    On the reference machine a batch of 8 int8 rows costs 1.2-1.6 times one row, so 16 steps are
    nearly free, and all of them fit beside one chunk of the size that heads send (512): decodes
    then ride with the chunk, where they would else wait for it. More would only hold them up.
    """

    positions_max: int = 576
    steps_max: int = 16
    waiting_max: int = 64

    def __post_init__(self) -> None:
        if min(self.positions_max, self.steps_max, self.waiting_max) < 1:
            raise ValueError(f"batch limits: expected at least 1 of each, got {self}")
