"""When members of one registry must be announced again. Pure: time is an argument.

Invariant: a lease that was granted ends `ttl_s` after it, whatever else happens.
"""

from __future__ import annotations

from meshnet.core.vocabulary import NodeId


class Leases:
    """Who leaves when."""

    def __init__(self) -> None:
        self._ends_at: dict[NodeId, float] = {}

    def grant(self, node: NodeId, ttl_s: float, now: float) -> None:
        self._ends_at[node] = now + ttl_s

    def drop(self, node: NodeId) -> None:
        self._ends_at.pop(node, None)

    def left_s(self, node: NodeId, now: float) -> float:
        return max(0.0, self._ends_at[node] - now)

    def ended(self, now: float) -> list[NodeId]:
        """Return whose lease is over, first ended first."""
        over = [(at, node) for node, at in self._ends_at.items() if at <= now]
        return [node for _, node in sorted(over)]

    def next_end(self) -> float | None:
        return min(self._ends_at.values(), default=None)
