"""Owners take turns: each gives its oldest step, then it is behind the others.

    a a a . b . c c     served in the order  a b c a c a

Whoever comes joins at the end, so an owner waits for one step of every other owner at most, however
many steps those have waiting.
"""

from __future__ import annotations

from collections.abc import Iterator

from meshnet.core.scheduling.steps import StepId, WaitingStep


class Turns:
    """Waiting steps by owner: first come, first served within one, in turns between them."""

    def __init__(self) -> None:
        self._owners: dict[str, dict[StepId, WaitingStep]] = {}

    def __bool__(self) -> bool:
        return bool(self._owners)

    def add(self, step_id: StepId, step: WaitingStep) -> None:
        self._owners.setdefault(step.owner, {})[step_id] = step

    def remove(self, step_id: StepId, step: WaitingStep) -> None:
        """Let a step leave that was not served: its owner keeps its turn."""
        steps = self._owners[step.owner]
        del steps[step_id]
        if not steps:
            del self._owners[step.owner]

    def serve(self, step_id: StepId, step: WaitingStep) -> None:
        """Let a step leave that runs now: its owner goes behind the others."""
        steps = self._owners.pop(step.owner)
        del steps[step_id]
        if steps:
            self._owners[step.owner] = steps

    def clear(self) -> None:
        self._owners.clear()

    def in_order(self) -> Iterator[tuple[StepId, WaitingStep]]:
        """Yield every step in the order in which they would be served."""
        queues = [iter(steps.items()) for steps in self._owners.values()]
        while queues:
            going_on = []
            for queue in queues:
                first = next(queue, None)
                if first is not None:
                    yield first
                    going_on.append(queue)
            queues = going_on
