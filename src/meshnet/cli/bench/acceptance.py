"""`meshnet bench acceptance`: every run of the acceptance table, one by one, and the table.

A run that fails is told and counts as missed; the others go on. Each writes its own files too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from meshnet.cli.bench import scenarios
from meshnet.cli.bench.acceptance_table import RUNS, Run, acceptance_page, verdicts
from meshnet.cli.bench.budget_command import budget_result
from meshnet.cli.bench.exact import exact_result
from meshnet.cli.bench.latency import latency_result
from meshnet.cli.bench.memory import memory_result
from meshnet.cli.bench.paired_command import Order, paired_result, written
from meshnet.cli.bench.results import provenance, publish, result_path, write_result
from meshnet.cli.bench.running import tell
from meshnet.cli.bench.scenarios import Scenario
from meshnet.cli.bench.shard_growth import growth_result
from meshnet.cli.bench.sides import SideSpec
from meshnet.cli.settings import Settings, SettingsError, Weights
from meshnet.core.vocabulary import MeshnetError

PAIRED: Mapping[str, Callable[[], Scenario]] = {
    "decode": lambda: scenarios.decode(128),
    "prefill": lambda: scenarios.prefill(512),
    "positions": lambda: scenarios.positions(100, 1400),
    "concurrency": lambda: scenarios.concurrency((1, 2, 4, 8, 16), 64),
    "ttft": lambda: scenarios.ttft(7, 5, other_tokens=512),
    "turns": lambda: scenarios.turns(1450, 48, question=24),
}
OTHERS: Mapping[str, Callable[[Settings, Order], dict[str, Any]]] = {
    "exact": lambda settings, order: exact_result(settings, order, tokens=64, kills=20),
    "shard": lambda settings, order: growth_result(settings, order, early=100, late=1400),
    "latency": lambda settings, order: latency_result(
        settings, order, nodes=3, tokens=24, delays_ms=(0.0, 5.0, 20.0, 50.0, 100.0)
    ),
    "memory": lambda settings, order: memory_result(settings, order, nodes=2, length=1000),
    "budget": lambda settings, order: budget_result(settings, order, nodes=2, tokens=96),
}


def measure_acceptance(
    settings: Settings, order: Order, only: Sequence[str], *, as_json: bool
) -> None:
    """Run, write and print the table. Raises SettingsError for a run that is not there."""
    if unknown := set(only) - {run.name for run in RUNS}:
        names = ", ".join(run.name for run in RUNS)
        raise SettingsError(f"--only: expected some of {names}, got {', '.join(sorted(unknown))}")
    results: dict[str, dict[str, Any]] = {}
    for run in RUNS:
        if not only or run.name in only:
            tell(f"--- {run.name}")
            results[run.name] = _run(run, settings, order)
    found = verdicts(results)
    whole = {
        **provenance("acceptance", Weights.INT8.value),
        "lines": [
            {
                "measure": each.line.measure,
                "target": each.line.target,
                "run": each.line.run,
                "value": each.figure.value,
                "spread": each.figure.text,
                "met": each.met,
            }
            for each in found
        ],
        "rules": asdict(order.rules),
    }
    path = result_path(order.out, "all", "acceptance")
    publish(whole, acceptance_page(found), path, as_json=as_json)


def _run(run: Run, settings: Settings, order: Order) -> dict[str, Any]:
    own = settings.model_copy(update={"model": run.model, "weights": Weights.INT8, "threads": 1})
    sides = tuple(SideSpec.parse(text) for text in run.sides)
    asked = Order(sides, order.rules, order.cores, order.out)
    try:
        if run.scenario in PAIRED:
            result = paired_result(own, PAIRED[run.scenario](), asked)
            written(result, order.out)
        else:
            result = OTHERS[run.scenario](own, asked)
            write_result(result_path(order.out, str(result["model"]), run.scenario), result)
    except MeshnetError as error:
        tell(f"{run.name} failed: {error}")
        return {"error": str(error).splitlines()[0][:200]}
    return result
