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

from meshnet.simulation.churn import simulate_churn
from meshnet.simulation.faults import PRESETS
from meshnet.simulation.history import History
from meshnet.simulation.world import simulate

Progress = Callable[[int, int], None]
"""Called with (seeds done, seeds asked for)."""

_CHUNK = 5
CHURN = "churn"


@dataclass(frozen=True, slots=True)
class ChurnCosts:
    """What it cost clients that nodes came and went, over seeds with events equally far apart."""

    spacing: float
    seeds: int
    tokens: int
    availability: float
    """Of the times a head was asked for a route, those at which it had one."""
    refilled_per_thousand: float
    """Positions that hops ran again, those of each hop counted, for each thousand new tokens."""
    losses: int
    """Between two tokens of a chat."""
    gap_median_s: float
    gap_p95_s: float
    gap_max_s: float


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
    churn: tuple[ChurnCosts, ...] = ()
    """By spacing; empty: no node came or went."""

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
    """Run one history per seed. `faults` is a preset's name: calm, storm or churn."""
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
    return simulate_churn(seed) if faults == CHURN else simulate(seed, PRESETS[faults])


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
        churn=churn_costs(histories),
    )


def churn_costs(histories: Sequence[History]) -> tuple[ChurnCosts, ...]:
    """Sum up what churn cost, by how far apart its events were."""
    spacings = sorted({each.costs.spacing for each in histories} - {0.0})
    return tuple(
        _costs(spacing, [each for each in histories if each.costs.spacing == spacing])
        for spacing in spacings
    )


def _costs(spacing: float, histories: Sequence[History]) -> ChurnCosts:
    gaps_s = sorted(gap for each in histories for gap in each.costs.gaps_s)
    looks = sum(each.costs.looks for each in histories)
    tokens = sum(each.tokens for each in histories)
    return ChurnCosts(
        spacing=spacing,
        seeds=len(histories),
        tokens=tokens,
        availability=sum(each.costs.routes for each in histories) / max(1, looks),
        refilled_per_thousand=1000
        * sum(each.refilled_positions for each in histories)
        / max(1, tokens),
        losses=len(gaps_s),
        gap_median_s=_quantile(gaps_s, 0.5),
        gap_p95_s=_quantile(gaps_s, 0.95),
        gap_max_s=_quantile(gaps_s, 1.0),
    )


def _quantile(ascending: Sequence[float], share: float) -> float:
    """Return 0 of nothing."""
    return ascending[min(int(share * len(ascending)), len(ascending) - 1)] if ascending else 0.0


def _seeds(histories: Iterable[History]) -> tuple[int, ...]:
    return tuple(each.seed for each in histories)
