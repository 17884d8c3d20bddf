"""What happens to a message between a head and a node: lost, doubled, late, cut off.

Every message, request or reply, meets its fate on its own. The seed decides.
A partition is a set of (head, node) pairs that hear nothing from each other.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable

from meshnet.core.vocabulary import NodeId
from meshnet.simulation.faults import Faults


class Network:
    """Carries callables after virtual delays. `faults` may be replaced at any time."""

    def __init__(self, rng: random.Random, faults: Faults) -> None:
        self.faults = faults
        self.delivered = 0
        self._rng = rng
        self._loop = asyncio.get_running_loop()
        self._cut: dict[tuple[str, NodeId], int] = {}

    def send(self, head: str, node: NodeId, deliver: Callable[[], None]) -> None:
        """Call `deliver` never, once or twice, at times the seed draws."""
        copies = 0 if self._rng.random() < self.faults.lost else 1
        copies += self._rng.random() < self.faults.duplicated
        for _ in range(copies):
            self._loop.call_later(self.delay_s(head, node), self._arrive, head, node, deliver)

    def in_order(
        self, head: str, node: NodeId, not_before: float, deliver: Callable[[], None]
    ) -> float:
        """Call `deliver` at the time that is returned, behind what was sent there before.

        A stream loses and doubles nothing; cut off, it falls silent.
        """
        # A loop calls what is due at one time in any order: so nothing is.
        at = max(self._loop.time() + self.delay_s(head, node), math.nextafter(not_before, math.inf))
        self._loop.call_at(at, self._arrive, head, node, deliver)
        return at

    def breaks(self) -> str | None:
        """Whether a stream breaks at this step: `before` the node has it, `after`, or not."""
        if self._rng.random() >= self.faults.stream_breaks:
            return None
        return self._rng.choice(("before", "after"))

    def cut(self, head: str, node: NodeId, seconds: float) -> None:
        """Let nothing pass between `head` and `node`, both ways, for a while."""
        pair = (head, node)
        self._cut[pair] = self._cut.get(pair, 0) + 1
        self._loop.call_later(seconds, self._mend, pair)

    def _mend(self, pair: tuple[str, NodeId]) -> None:
        self._cut[pair] -= 1
        if not self._cut[pair]:
            del self._cut[pair]

    def _arrive(self, head: str, node: NodeId, deliver: Callable[[], None]) -> None:
        if (head, node) not in self._cut:
            self.delivered += 1
            deliver()

    def delay_s(self, head: str, node: NodeId) -> float:
        """Draw what one message takes between these two."""
        longest = self.faults.delay_max_s
        if self._rng.random() < self.faults.slow:
            longest = self.faults.slow_max_s
        return self._rng.uniform(0.0003, longest)
