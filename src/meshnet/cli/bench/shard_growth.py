"""`meshnet bench shard`: does a decode cost the same late as early, attention apart?

One process, the whole model, no wire. Per round: decodes at two positions, and how fast this
process reads memory just then. Attention has to read K and V of all positions; so its growth
is held against the bytes that are read more, over the speed of reading.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from meshnet.cli.bench.load import LoadProbe
from meshnet.cli.bench.paired import Rules, Sample, Values, spread, take_turns
from meshnet.cli.bench.paired_command import Order
from meshnet.cli.bench.report import number, table
from meshnet.cli.bench.results import provenance, publish, result_path
from meshnet.cli.bench.running import pin, tell
from meshnet.cli.bench.sides import environment_of
from meshnet.cli.bench.workers import Worker
from meshnet.cli.local_nodes import split_layers
from meshnet.cli.models import resolve_model
from meshnet.cli.serving import run_loop
from meshnet.cli.settings import Settings

DECODES = 40
SHARD = "shard"


def measure_growth(
    settings: Settings, order: Order, *, early: int, late: int, as_json: bool
) -> None:
    """Measure, write JSON and Markdown, and print. Raises MeshnetError."""
    result = growth_result(settings, order, early=early, late=late)
    path = result_path(order.out, str(result["model"]), "shard")
    publish(result, growth_page(result), path, as_json=as_json)


def growth_result(settings: Settings, order: Order, *, early: int, late: int) -> dict[str, Any]:
    """Run the rounds. Raises MeshnetError."""
    cores = pin(order.cores)
    source = resolve_model(settings.model, settings)
    (layers,) = split_layers(source, nodes=1, split=None)
    own = settings.model_copy(update={"threads": settings.threads or 1})
    samples = run_loop(lambda: _measure(own, str(layers), order.rules, (early, late)))
    rows = [growth(sample.values, early=early, late=late) for sample in samples]
    return {
        **provenance(source.name, settings.weights.value),
        "scenario": "shard",
        "early": early,
        "late": late,
        "cores_used": cores,
        "rules": asdict(order.rules),
        **{name: spread([row[name] for row in rows]) for name in rows[0]},
        "samples": [asdict(sample) for sample in samples],
    }


async def _measure(
    settings: Settings, layers: str, rules: Rules, positions: Sequence[int]
) -> list[Sample]:
    threads = settings.threads or 1
    worker = Worker(["profile", layers], environment_of(settings, nodes=1, threads=threads))

    async def measure(side: str, round_number: int) -> Values:
        values = dict(await worker.ask({"read": True}))
        for position in positions:
            told = await worker.ask({"position": position, "tokens": DECODES})
            values |= {f"{name}@{position}": value for name, value in told.items()}
        return values

    try:
        await worker.start()
        taken = await take_turns(
            [SHARD], measure, lambda side: LoadProbe([worker.pid]), rules, tell
        )
    finally:
        await worker.stop()
    return taken[SHARD]


def growth(values: Values, *, early: int, late: int) -> dict[str, float]:
    """Return what a late decode costs against an early one, of one round.

    `attention_growth` is in units of the time it takes to read the K and V that were added.
    """
    others = [values[f"total_s@{at}"] - values[f"attention_s@{at}"] for at in (early, late)]
    grown_s = values[f"attention_s@{late}"] - values[f"attention_s@{early}"]
    added = values[f"kv_bytes_per_token@{late}"] * (late - early)
    return {
        "outside_attention": others[1] / others[0],
        "attention_growth": grown_s / (added / values["bytes_per_s"]),
        "early_ms": 1e3 * values[f"total_s@{early}"],
        "late_ms": 1e3 * values[f"total_s@{late}"],
        "early_attention_ms": 1e3 * values[f"attention_s@{early}"],
        "late_attention_ms": 1e3 * values[f"attention_s@{late}"],
        "read_gb_per_s": values["bytes_per_s"] / 1e9,
    }


def growth_page(result: Mapping[str, Any]) -> str:
    """Return the Markdown page."""
    names = ("early_ms", "late_ms", "early_attention_ms", "late_attention_ms", "read_gb_per_s")
    rows = [
        (name, *(number(result[name][each]) for each in ("median", "min", "max")))
        for name in ("outside_attention", "attention_growth", *names)
    ]
    return (
        f"# shard: {result['model']}, {result['dtype']}, a decode at {result['late']} "
        f"against {result['early']}\n\n"
        f"{table(('', 'median', 'min', 'max'), rows)}\n\n"
        "outside_attention: late / early; attention_growth: over the time of reading the K and V "
        "that were added\n"
    )
