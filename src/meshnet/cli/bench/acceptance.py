"""`meshnet bench acceptance`: every run of the acceptance table, one by one, and the table.

    <out>/<date>_<commit>_acceptance/        one directory, until its table is complete
        <run>.json .md .svg                  written when the run ends
        acceptance.json .md .svg             the table of all that is there, written anew each time

Interrupted, it goes on: a run whose file is there is not made again, as long as commit and
rules are the same. A run that fails is told and counts as missed; the others go on, and it is
made again the next time.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from meshnet.cli.bench.acceptance_runs import RUNS, Run
from meshnet.cli.bench.acceptance_table import Verdict, acceptance_report, verdicts
from meshnet.cli.bench.arguments import Asked
from meshnet.cli.bench.order import Order
from meshnet.cli.bench.report import page_of
from meshnet.cli.bench.results import commit, provenance, today, write_all
from meshnet.cli.bench.running import pin, tell
from meshnet.cli.options import print_json
from meshnet.cli.settings import Settings, SettingsError, Weights
from meshnet.core.vocabulary import MeshnetError

TABLE = "acceptance"
Results = dict[str, Mapping[str, Any]]


def measure_acceptance(asked: Asked, only: Sequence[str], *, anew: bool) -> None:
    """Make the runs that are missing, write and print the table.

    Raises SettingsError for a run that does not exist.
    """
    if unknown := set(only) - {run.name for run in RUNS}:
        names = ", ".join(run.name for run in RUNS)
        raise SettingsError(f"--only: expected some of {names}, got {', '.join(sorted(unknown))}")
    order = asked.order
    pin(order.cores)
    place = place_of(order.out, commit(), anew=anew)
    results = found_in(place, order)
    wanted = [run for run in RUNS if (run.name in only if only else run.name not in results)]
    tell(f"{place}: {len(results)} of {len(RUNS)} runs are there")
    for run in wanted:
        tell(f"{run.name}: about {run.minutes:g} minutes")
    tell(f"together: about {sum(run.minutes for run in wanted):.0f} minutes")
    for run in wanted:
        tell(f"--- {run.name}")
        results[run.name] = made(run, asked.settings, order, place)
        _write_table(results, order, place)
    _show(_write_table(results, order, place), asked, place)


def place_of(out: Path, at: str | None, *, anew: bool) -> Path:
    """Return the directory of this commit's latest table, or a new one."""
    commit_told = (at or "unknown").replace("+", "-changed")
    found = sorted(out.glob(f"*_{commit_told}_{TABLE}*"), key=lambda path: path.stat().st_mtime)
    if found and not anew:
        return found[-1]
    stem = out / f"{today()}_{commit_told}_{TABLE}"
    place, number = stem, 1
    while place.exists():
        number += 1
        place = stem.with_name(f"{stem.name}-{number}")
    place.mkdir(parents=True)
    return place


def found_in(place: Path, order: Order) -> Results:
    """Read the runs that are there and were made by these rules."""
    results: Results = {}
    for run in RUNS:
        file = place / f"{run.name}.json"
        if file.is_file():
            result = json.loads(file.read_text(encoding="utf-8"))
            if result.get("asked") == asked_of(run, order):
                results[run.name] = result
    return results


def asked_of(run: Run, order: Order) -> dict[str, Any]:
    """Return what a run's result must have been asked for to be this one's."""
    own = run.of(order)
    return {"rules": asdict(own.rules), "cores": own.cores, "sides": [str(s) for s in own.sides]}


def made(run: Run, settings: Settings, order: Order, place: Path) -> Mapping[str, Any]:
    """Make a run and write its files; what is returned says so if it failed."""
    own = settings.model_copy(update={"model": run.model, "weights": Weights.INT8, "threads": 1})
    began = time.monotonic()
    try:
        measured, report = run.result(own, order)
    except MeshnetError as error:
        tell(f"{run.name} failed: {error}")
        return {"error": str(error).splitlines()[0][:200]}
    minutes = round((time.monotonic() - began) / 60, 2)
    result = {**measured, "asked": asked_of(run, order), "minutes": minutes}
    _forget(place / run.name)
    write_all(result, report, place / run.name)
    return result


def _write_table(results: Results, order: Order, place: Path) -> tuple[dict[str, Any], str]:
    found = verdicts(results)
    whole = {
        **provenance("all models", Weights.INT8.value, 1),
        "scenario": TABLE,
        "lines": [_told(each) for each in found],
        "rules": asdict(order.rules),
        "minutes": {name: result.get("minutes") for name, result in results.items()},
    }
    report = acceptance_report(found)
    _forget(place / TABLE)
    write_all(whole, report, place / TABLE)
    return whole, page_of(whole, report)


def _show(table: tuple[dict[str, Any], str], asked: Asked, place: Path) -> None:
    whole, page = table
    if asked.as_json:
        print_json(whole)
    else:
        print(page)
        print(f"written: {place}")


def _told(verdict: Verdict) -> dict[str, Any]:
    return {
        "measure": verdict.line.measure,
        "target": verdict.line.target,
        "run": verdict.line.run,
        "value": verdict.figure.value,
        "spread": verdict.figure.text,
        "met": verdict.met,
    }


def _forget(path: Path) -> None:
    """Make way for a run that is made again, said so by `--only` or other rules."""
    for suffix in (".json", ".md", ".svg"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
