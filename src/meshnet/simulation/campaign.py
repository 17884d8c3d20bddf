"""Many seeds, one verdict: which histories broke a promise, and what they cost.

Seeds are independent, so a campaign is a map over seeds and a sum; with more
than one process the sum is the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context

from meshnet.simulation.faults import PRESETS
from meshnet.simulation.history import History
from meshnet.simulation.world import simulate

Progress = Callable[[int, int], None]
"""Called with (seeds done, seeds asked for)."""

_CHUNK = 5


@dataclass(frozen=True, slots=True)
class CampaignResult:
    """Seeds that broke a promise (empty when all is well), and totals over all seeds."""

    faults: str
    seeds: int
    wrong: tuple[int, ...]
    unfinished: tuple[int, ...]
    violated: tuple[int, ...]
    first_complaint: str | None
    generations: int
    tokens: int
    refills: int
    events: int
    virtual_s: float
    wall_s: float

    @property
    def passed(self) -> bool:
        return not (self.wrong or self.unfinished or self.violated)

    @property
    def first_seeds(self) -> tuple[int, ...]:
        """The seeds to replay first, at most five."""
        return tuple(sorted({*self.wrong, *self.unfinished, *self.violated})[:5])


def campaign(
    seeds: range, faults: str, progress: Progress = lambda done, total: None, processes: int = 1
) -> CampaignResult:
    """Run one history per seed. `faults` is a preset's name: calm or storm."""
    started = time.perf_counter()
    histories = []
    for history in _histories(seeds, faults, processes):
        histories.append(history)
        progress(len(histories), len(seeds))
    return summary(faults, histories, wall_s=time.perf_counter() - started)


def _histories(seeds: range, faults: str, processes: int) -> Iterator[History]:
    one = partial(one_seed, faults=faults)
    if processes <= 1:
        yield from map(one, seeds)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        yield from pool.map(one, seeds, chunksize=_CHUNK)


def one_seed(seed: int, faults: str) -> History:
    return simulate(seed, PRESETS[faults])


def summary(faults: str, histories: Sequence[History], *, wall_s: float) -> CampaignResult:
    complaints = [f"seed {each.seed}: {line}" for each in histories for line in each.complaints]
    return CampaignResult(
        faults=faults,
        seeds=len(histories),
        wrong=_seeds(each for each in histories if each.wrong),
        unfinished=_seeds(each for each in histories if each.unfinished),
        violated=_seeds(each for each in histories if each.violations),
        first_complaint=complaints[0] if complaints else None,
        generations=sum(each.generations for each in histories),
        tokens=sum(each.tokens for each in histories),
        refills=sum(each.refills for each in histories),
        events=sum(each.events for each in histories),
        virtual_s=sum(each.virtual_s for each in histories),
        wall_s=wall_s,
    )


def _seeds(histories: Iterable[History]) -> tuple[int, ...]:
    return tuple(each.seed for each in histories)
