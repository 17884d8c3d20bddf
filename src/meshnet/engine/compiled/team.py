"""The threads of a shard's steps: each runs the same compiled call with its own part.

    caller   run ──part 0──────────────┐
    helper   ···wakes──part 1──sleeps··┘   they meet within the step (meeting.py)

Helpers sleep between steps, so that nothing spins while a node waits for its peers.

Invariants
    * a step returns after all parts are through;
    * one step at a time: callers wait for each other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache
from queue import SimpleQueue
from typing import Any


class Team:
    def __init__(self, parts: int) -> None:
        """`parts`: threads that share a step, with the caller's."""
        self.parts = parts
        self._orders: list[SimpleQueue[tuple[Callable[..., Any], tuple[int, ...]]]] = []
        self._turn, self._through = threading.Lock(), threading.Semaphore(0)
        for part in range(1, parts):
            orders: SimpleQueue[tuple[Callable[..., Any], tuple[int, ...]]] = SimpleQueue()
            self._orders.append(orders)
            name = f"meshnet-step-{part}"
            thread = threading.Thread(target=self._serve, args=(part, orders), name=name)
            thread.daemon = True
            thread.start()

    def run(self, step: Callable[..., Any], *arguments: int) -> None:
        """Call `step(*arguments, part, parts)` in every thread; it holds no lock of Python's."""
        with self._turn:
            for orders in self._orders:
                orders.put((step, arguments))
            step(*arguments, 0, self.parts)
            for _ in self._orders:
                self._through.acquire()

    def _serve(self, part: int, orders: SimpleQueue[Any]) -> None:
        while True:
            step, arguments = orders.get()
            step(*arguments, part, self.parts)
            self._through.release()


ALONE = Team(1)


@cache
def team_of(threads: int) -> Team:
    """The process's team of so many, whose threads all layers share."""
    return Team(threads)
