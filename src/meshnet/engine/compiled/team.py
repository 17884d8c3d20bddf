"""The threads of a shard's steps: each runs the same compiled call with its own part.

    caller   run ──part 0──────────────┐
    helper   ···wakes──part 1──sleeps··┘   they meet within the step (meeting.py)

Helpers sleep between steps, so that nothing spins while a node waits for its peers.

Invariants
    * a step returns, or raises, after all parts are through;
    * one step at a time: callers wait for each other, unless a caller has no helpers.
"""

from __future__ import annotations

import os
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
        self._failures: list[BaseException] = []
        self._start()

    def run(self, step: Callable[..., Any], *arguments: int) -> None:
        """Call `step(*arguments, part, parts)` in every thread; it holds no lock of Python's."""
        if self.parts == 1:
            step(*arguments, 0, 1)
            return
        if self._process != os.getpid():
            self._start()  # a forked process has none of the threads
        with self._turn:
            self._failures.clear()
            for orders in self._orders:
                orders.put((step, arguments))
            try:
                step(*arguments, 0, self.parts)
            finally:
                for _ in self._orders:
                    self._through.acquire()
            if self._failures:
                raise self._failures[0]

    def _start(self) -> None:
        self._process = os.getpid()
        self._turn, self._through = threading.Lock(), threading.Semaphore(0)
        self._orders = [SimpleQueue() for _ in range(1, self.parts)]
        for part, orders in enumerate(self._orders, 1):
            given = part, orders, self._through
            name = f"meshnet-step-{part}"
            threading.Thread(target=self._serve, args=given, name=name, daemon=True).start()

    def _serve(self, part: int, orders: SimpleQueue[Any], through: threading.Semaphore) -> None:
        while True:
            step, arguments = orders.get()
            try:
                step(*arguments, part, self.parts)
            except BaseException as error:  # noqa: BLE001  # boundary: the caller raises it
                self._failures.append(error)
            through.release()


ALONE = Team(1)


@cache
def team_of(threads: int) -> Team:
    """The process's team of so many, whose threads all layers share."""
    return Team(threads)
