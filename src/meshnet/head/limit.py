"""An end to the waits of one task, at a time that may move, by one timer for all of them.

`asyncio.timeout_at` does the same for one wait and makes its timer anew each time: a generation
waits once per token and hop, and nearly every wait is over long before.

Invariant: a wait is cancelled at most once from here, and only while it lasts; a cancellation that
comes from elsewhere at the same time stays one (`Task.uncancel` tells them apart).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class WaitLimit:
    """`deadline` says when the present wait has lasted too long; None: never."""

    def __init__(self, deadline: Callable[[], float | None], clock: Callable[[], float]) -> None:
        self._deadline, self._clock = deadline, clock
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._waiting: asyncio.Task[object] | None = None
        self._cancelling = 0
        self._reached = False

    @property
    def reached(self) -> bool:
        """Whether the present wait has been cancelled from here."""
        return self._reached

    def begin(self, at_least_s: float) -> None:
        """A wait of this task begins, whose deadline is no sooner than so far from now."""
        task = asyncio.current_task()
        assert task is not None, "only a task can be cancelled"
        self._waiting, self._cancelling, self._reached = task, task.cancelling(), False
        when = self._loop.time() + at_least_s
        if self._timer is None or when < self._timer_at:  # else it looks sooner, and then again
            self._look_at(when)

    def end(self) -> bool:
        """The wait is over. True: it was cancelled, from here and from nowhere else."""
        task, self._waiting = self._waiting, None
        if not self._reached or task is None:
            return False
        self._reached = False
        return task.uncancel() <= self._cancelling

    def close(self) -> None:
        """There will be no further wait."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_at(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = when
        self._timer = self._loop.call_at(when, self._look)

    def _look(self) -> None:
        self._timer = None
        deadline = self._deadline()
        if self._waiting is None or deadline is None or self._reached:
            return
        left_s = deadline - self._clock()
        if left_s > 0.0:
            self._look_at(self._loop.time() + left_s)
        else:
            self._reached = True
            self._waiting.cancel()
