"""Virtual time: an asyncio event loop whose clock jumps to the next timer.

The loop never blocks and reads no socket. When nothing is ready it sets its
clock to the earliest timer, so an hour of a cluster costs what its events
cost. Everything that happens is decided by the order of `call_soon` and
`call_at`, so one seed is one history.

Invariants
    * `time()` starts at 0, moves only between callbacks, and never backwards;
    * tasks hash by their number, so sets of tasks iterate alike in every run;
    * a main task that waits for something that can never happen raises `Deadlock`.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Generator, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


class Deadlock(Exception):
    """No timer and no ready callback is left, and the main task is unfinished."""


class Unhandled(Exception):
    """Something failed in the loop and no task was told."""


class _JumpingSelector(selectors.BaseSelector):
    """Reports no file as ready; waiting means moving the loop's clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self._keys: dict[Any, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = selectors.SelectorKey(fileobj, 0, events, data)
        self._keys[fileobj] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Deadlock(f"nothing is scheduled at {self.now:.6f} s and the main task waits")
        if timeout > 0:
            self.now += timeout
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys

    def close(self) -> None:
        self._keys.clear()


class _NumberedTask(asyncio.Task[T]):
    """A task that hashes by its number; asyncio keeps tasks in sets and cancels in set order."""

    def __init__(self, coro: Any, *, loop: VirtualLoop, context: Any) -> None:
        loop.tasks_started += 1
        self.number = loop.tasks_started  # before the base constructor, which already hashes
        super().__init__(coro, loop=loop, context=context)

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other


class VirtualLoop(asyncio.SelectorEventLoop):
    """An asyncio loop under virtual time. `tasks_started` counts what ran in it."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        self.tasks_started = 0
        super().__init__(self._jumping)
        self.set_task_factory(_numbered)

    def time(self) -> float:
        return self._jumping.now


def _numbered(
    loop: asyncio.AbstractEventLoop,
    coro: Coroutine[Any, Any, T] | Generator[Any, None, T],
    context: Any = None,
) -> asyncio.Task[T]:
    assert isinstance(loop, VirtualLoop)
    return _NumberedTask(coro, loop=loop, context=context)


def run(main: Callable[[], Coroutine[Any, Any, T]], seed: int) -> T:
    """Run `main` to its end in virtual time; what goes wrong names the seed that replays it.

    Raises:
        Deadlock: the main task waits for something that can no longer happen.
        Unhandled: a callback or a forgotten future failed where nobody looked.
    """
    unhandled: list[str] = []
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.get_loop().set_exception_handler(
            lambda _, context: unhandled.append(repr(context.get("exception") or context))
        )
        try:
            result = runner.run(main())
        except Deadlock as deadlock:
            raise Deadlock(f"seed {seed}: {deadlock}") from None
    if unhandled:
        raise Unhandled(f"seed {seed}: {unhandled[0]}")
    return result
