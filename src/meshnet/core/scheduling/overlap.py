"""How many sessions of a pipeline step together, so that no node of it idles.

Sessions that arrive together leave together: without a bound, all sessions of a route end up in
one batch, which visits one node after the other while the others wait.

    all in one batch     node 0  aaaaaaaa........aaaaaaaa........
                         node 1  ........aaaaaaaa........aaaaaaaa
    two groups of half   node 0  aaaaaabbbbbbaaaaaabbbbbb
                         node 1  ......aaaaaabbbbbbaaaaaabbbbbb

So a node takes at most its share of the sessions that step here: their number divided by that of
the stages. Those that stepped here lately count, as they are in another stage and come back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from meshnet.core.scheduling.steps import Group, WaitingStep
from meshnet.core.vocabulary import SessionId

RECENT_BATCHES = 16
"""A session comes back within as many batches as its route has stages, which are few."""


class RecentSessions:
    """Which sessions made light steps in the last batches."""

    def __init__(self) -> None:
        self._batches: deque[tuple[Group, frozenset[SessionId]]] = deque(maxlen=RECENT_BATCHES)

    def note(self, batch: Sequence[WaitingStep]) -> None:
        sessions = _sessions(batch)
        if sessions:
            self._batches.append((batch[0].group, sessions))

    def note_one(self, step: WaitingStep) -> None:
        """Note a batch of one light step."""
        if step.session is not None:
            self._batches.append((step.group, frozenset((step.session,))))

    def share(self, waiting: Sequence[WaitingStep]) -> int:
        """Return how many of the waiting light steps, all of one group, may run together."""
        first = waiting[0]
        active = set(_sessions(waiting))
        for group, sessions in self._batches:
            if group == first.group:
                active |= sessions
        return max(1, -(-len(active) // first.stages))


def _sessions(steps: Sequence[WaitingStep]) -> frozenset[SessionId]:
    return frozenset(step.session for step in steps if step.is_light and step.session is not None)
