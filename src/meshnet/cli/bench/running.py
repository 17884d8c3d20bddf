"""A paired scenario from start to result: sides up, rounds, samples, ratios, a dictionary.

Invariant: this process is pinned before anything is started, so all processes of all sides share
the same cores, and so does the client that measures them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any

from meshnet.cli.bench.load import LoadProbe
from meshnet.cli.bench.paired import Rules, Sample, Values, ratios, spread, take_turns
from meshnet.cli.bench.prompts import Prompts
from meshnet.cli.bench.results import format_told, provenance
from meshnet.cli.bench.scenarios import Metric, Scenario, Subject
from meshnet.cli.bench.side import Side
from meshnet.cli.settings import Settings, SettingsError


def pin(cores: str | None) -> list[int]:
    """Keep this process and its children to come on `cores`, e.g. `0,1`; return their numbers.

    Raises SettingsError.
    """
    if not hasattr(os, "sched_setaffinity"):
        if cores is not None:
            raise SettingsError("--cores: this system cannot pin processes")
        return []
    allowed = os.sched_getaffinity(0)
    if cores is not None:
        try:
            chosen = {int(core) for core in cores.split(",")}
        except ValueError:
            raise SettingsError(f"--cores: expected numbers like 0,1, got {cores!r}") from None
        if not chosen <= allowed:
            raise SettingsError(f"--cores: expected some of {sorted(allowed)}, got {cores}")
        os.sched_setaffinity(0, chosen)
    return sorted(os.sched_getaffinity(0))


async def run_paired(
    scenario: Scenario, sides: Mapping[str, Side], prompts: Prompts, rules: Rules
) -> dict[str, list[Sample]]:
    """Start all sides, let them take turns, stop them. Raises MeshnetError."""

    async def measure(name: str, number: int) -> Values:
        return await scenario.measure(sides[name], prompts, number)

    def probe(name: str) -> LoadProbe:
        return LoadProbe(sides[name].pids())

    async with started(sides.values()):
        return await take_turns(list(sides), measure, probe, rules, tell)


@asynccontextmanager
async def started(sides: Iterable[Side]) -> AsyncIterator[None]:
    """Start the sides one after the other; stop all of them however the block is left."""
    up: list[Side] = []
    try:
        for side in sides:
            up.append(side)
            await side.start()
        yield
    finally:
        for side in up:
            await side.stop()


def tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def result_of(
    subject: Subject,
    settings: Settings,
    model: str,
    samples: Mapping[str, Sequence[Sample]],
    rules: Rules,
) -> dict[str, Any]:
    """Return the whole result: what was done, all samples, and what follows from them."""
    return {
        **provenance(model, format_told(settings)),
        "scenario": subject.name,
        "title": subject.title,
        "rules": asdict(rules),
        "metrics": [asdict(metric) for metric in subject.metrics],
        "summary": {side: summary(taken, subject.metrics) for side, taken in samples.items()},
        "ratios": all_ratios(samples, subject.metrics),
        "disturbed": {side: sum(s.disturbed for s in taken) for side, taken in samples.items()},
        "samples": {side: [asdict(sample) for sample in taken] for side, taken in samples.items()},
    }


def summary(samples: Sequence[Sample], metrics: Sequence[Metric]) -> dict[str, dict[str, float]]:
    return {
        metric.name: spread([sample.values[metric.name] for sample in samples])
        for metric in metrics
        if all(metric.name in sample.values for sample in samples)
    }


def all_ratios(
    samples: Mapping[str, Sequence[Sample]], metrics: Sequence[Metric]
) -> dict[str, dict[str, dict[str, float]]]:
    """Return, by metric, each side over each that was named after it."""
    names = list(samples)
    pairs = [(our, their) for at, our in enumerate(names) for their in names[at + 1 :]]
    return {
        metric.name: {
            f"{our} / {their}": spread(found)
            for our, their in pairs
            if (found := ratios(samples[our], samples[their], metric.name))
        }
        for metric in metrics
    }
