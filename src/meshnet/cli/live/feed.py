"""What happens in a mesh, handed to everybody who watches it.

    steps, happenings, the mesh ──▶ Feed ──▶ one bounded queue a follower ──▶ batches

Invariants
    * nobody waits for a follower: of what it does not take in time it gets the latest, and the
      number of steps that it missed;
    * followers, what waits for each, and what is remembered for the next one are bounded;
    * steps are told only while somebody follows.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

FOLLOWERS_MAX = 32
STEPS_MAX = 256
"""Steps that wait for one follower."""
HAPPENINGS_MAX = 64
GATHER_S = 0.05
"""News of so long go together."""

Values = Mapping[str, Any]


class Crowded(Exception):
    """As many follow as may."""


@dataclass(frozen=True, slots=True)
class Happening:
    """Something worth a line: `level` is note, good, warn or bad."""

    what: str
    level: str
    text: str
    node: str | None = None
    """The name of the node that it is about."""


@dataclass(slots=True)
class _Follower:
    steps: deque[Values] = field(default_factory=lambda: deque(maxlen=STEPS_MAX))
    happenings: deque[tuple[float, Happening]] = field(
        default_factory=lambda: deque(maxlen=HAPPENINGS_MAX)
    )
    mesh: Values | None = None
    missed: int = 0
    news: asyncio.Event = field(default_factory=asyncio.Event)


class Feed:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._followers: list[_Follower] = []
        self._past: deque[tuple[float, Happening]] = deque(maxlen=HAPPENINGS_MAX)
        self._mesh: Values | None = None
        self._somebody, self._closed = asyncio.Event(), False

    @property
    def followed(self) -> bool:
        return bool(self._followers)

    async def somebody(self) -> None:
        """Wait until somebody follows."""
        await self._somebody.wait()

    def step(self, values: Values) -> None:
        for each in self._followers:
            each.missed += len(each.steps) == STEPS_MAX
            each.steps.append(values)
            each.news.set()

    def happened(self, happening: Happening) -> None:
        dated = (self._clock(), happening)
        self._past.append(dated)
        for each in self._followers:
            each.happenings.append(dated)
            each.news.set()

    def mesh(self, values: Values) -> None:
        """Tell how the mesh is now; the latest is what a new follower begins with."""
        self._mesh = values
        for each in self._followers:
            each.mesh = values
            each.news.set()

    def close(self) -> None:
        """End what everybody follows, so that the server can end."""
        self._closed = True
        for each in self._followers:
            each.news.set()

    def follow(self) -> AsyncGenerator[Values, None]:
        """Return what happens from now on, and what happened lately. Raises Crowded."""
        if self._closed or len(self._followers) >= FOLLOWERS_MAX:
            raise Crowded
        return self._batches()

    async def _batches(self) -> AsyncGenerator[Values, None]:
        if len(self._followers) >= FOLLOWERS_MAX:
            return  # others came between the question and this
        follower = _Follower(happenings=self._past.copy(), mesh=self._mesh)
        self._followers.append(follower)
        self._somebody.set()
        try:
            while not self._closed:
                yield self._batch(follower)
                await follower.news.wait()
                await asyncio.sleep(GATHER_S)
        finally:
            self._followers.remove(follower)
            if not self._followers:
                self._somebody.clear()
                self._mesh = None  # nobody keeps it true any more

    def _batch(self, follower: _Follower) -> Values:
        """Return what waits for a follower, which then waits for nothing."""
        now = self._clock()
        happenings = [
            {
                "what": each.what,
                "level": each.level,
                "text": each.text,
                "node": each.node,
                "ago_s": round(now - at, 3),
            }
            for at, each in follower.happenings
        ]
        batch = {
            "mesh": follower.mesh,
            "steps": [*follower.steps],
            "missed": follower.missed,
            "happenings": happenings,
        }
        follower.steps.clear()
        follower.happenings.clear()
        follower.mesh, follower.missed = None, 0
        follower.news.clear()
        return batch
