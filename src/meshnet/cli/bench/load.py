"""Who else was busy while something was measured.

other load = (busy time of our cores - CPU time of the measured processes) / wall time, in cores

Invariants
    * only the cores this process may use count;
    * a side that merely waits for its turn is other load too: it should be idle;
    * what cannot be known (a process that ended meanwhile took its time along) counts as other
      load, never as quiet.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

import psutil


class LoadProbe:
    """Measures the other load since it was made; `pids` and their children are not other."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._pids = (os.getpid(), *pids)
        self._began = (time.monotonic(), _busy_s(), self._own_s())

    def other_cores(self) -> float:
        """Return the mean number of cores that others kept busy."""
        at, busy_s, own_s = self._began
        elapsed_s = time.monotonic() - at
        others_s = (_busy_s() - busy_s) - (self._own_s() - own_s)
        return max(0.0, others_s / elapsed_s) if elapsed_s > 0 else 0.0

    def _own_s(self) -> float:
        # The bench itself is measured without its children: those may be other sides.
        own, *sides = self._pids
        return _cpu_s([own]) + _cpu_s({pid for side in sides for pid in family(side)})


def family(pid: int) -> set[int]:
    """Return `pid` and all processes below it that are still there."""
    try:
        return {pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))}
    except psutil.NoSuchProcess:
        return set()


def _busy_s() -> float:
    by_core = psutil.cpu_times(percpu=True)
    return sum(_busy_of(by_core[core]) for core in core_numbers(len(by_core)))


def _busy_of(times: object) -> float:
    fields: dict[str, float] = times._asdict()  # type: ignore[attr-defined]
    # Guests' time is already in `user`.
    idle = ("idle", "iowait", "guest", "guest_nice")
    return sum(value for name, value in fields.items() if name not in idle)


def core_numbers(total: int) -> list[int]:
    """Return the numbers of the cores this process may use."""
    if not hasattr(os, "sched_getaffinity"):
        return list(range(total))
    return sorted(core for core in os.sched_getaffinity(0) if core < total)


def _cpu_s(pids: Iterable[int]) -> float:
    total = 0.0
    for pid in pids:
        try:
            times = psutil.Process(pid).cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += float(times.user + times.system)
    return total
