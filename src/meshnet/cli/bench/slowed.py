"""A shard that takes a multiple of its time: a slower machine, played by this one.

It sleeps for the rest, so the core is free meanwhile, as it would be if the machine were another.
What a step takes beside the engine (frames, sockets) stays as it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


class SlowedShard:
    """Stands before a shard; everything but running passes through."""

    def __init__(
        self,
        shard: Any,
        factor: float,
        *,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if factor < 1:
            raise ValueError(f"factor: expected at least 1, got {factor}")
        self._shard, self._factor, self._clock, self._sleep = shard, factor, clock, sleep

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shard, name)

    def run(self, step: Any, state: Any) -> Any:
        return self._slowly(lambda: self._shard.run(step, state))

    def run_batch(self, work: Sequence[tuple[Any, Any]]) -> Any:
        return self._slowly(lambda: self._shard.run_batch(work))

    def _slowly(self, run: Callable[[], T]) -> T:
        began = self._clock()
        result = run()
        self._sleep((self._factor - 1) * (self._clock() - began))
        return result


def slowed(factor: float) -> Callable[[Any], Any]:
    """Return what makes a node's shards so many times slower; at 1 they are left as they are."""
    return (lambda shard: shard) if factor == 1 else (lambda shard: SlowedShard(shard, factor))
