"""What goes on beside a head's generations: owned by its task group, and never longer than it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine


class Background:
    """Tasks of one task group that all end when it is about to close."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self._tasks = tasks
        self._running: set[asyncio.Task[None]] = set()
        self._stopped = False

    def start(self, work: Callable[[], Coroutine[None, None, None]]) -> asyncio.Task[None] | None:
        """Run `work` until it is cancelled; None: nothing is started any more."""
        if self._stopped:
            return None
        task = self._tasks.create_task(work())
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    def stop(self) -> None:
        """Cancel all, and start no more."""
        self._stopped = True
        for task in self._running:
            task.cancel()
