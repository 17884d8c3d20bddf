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
from meshnet.cli.bench.order import Order
from meshnet.cli.bench.paired import Rules, Sample, Values, spread, take_turns
from meshnet.cli.bench.picture import stacked
from meshnet.cli.bench.report import Report, number, table
from meshnet.cli.bench.results import format_told, provenance
from meshnet.cli.bench.running import pin, tell
from meshnet.cli.bench.sides import environment_of
from meshnet.cli.bench.workers import Worker
from meshnet.cli.local_nodes import split_layers
from meshnet.cli.models import resolve_model
from meshnet.cli.serving import run_loop
from meshnet.cli.settings import Settings

DECODES = 40
SHARD = "shard"
NAMES = (
    *("outside_attention", "attention_growth", "growth", "early_ms", "late_ms"),
    *("early_attention_ms", "late_attention_ms", "read_gb_per_s"),
)


def growth_result(settings: Settings, order: Order, *, early: int, late: int) -> dict[str, Any]:
    """Run the rounds. Raises MeshnetError."""
    pin(order.cores)
    source = resolve_model(settings.model, settings)
    (layers,) = split_layers(source, nodes=1, split=None)
    own = settings.model_copy(update={"threads": settings.threads or 1})
    samples = run_loop(lambda: _measure(own, str(layers), order.rules, (early, late)))
    rows = [growth(sample.values, early=early, late=late) for sample in samples]
    return {
        **provenance(source.name, format_told(settings), own.threads),
        "scenario": "shard",
        "early": early,
        "late": late,
        "rules": asdict(order.rules),
        **{name: spread([row[name] for row in rows]) for name in rows[0]},
        "disturbed": {SHARD: sum(sample.disturbed for sample in samples)},
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

    Growth is in units of the time it takes to read the K and V that were added. What is told of
    attention is missing where it cannot be told apart.
    """
    added = values[f"kv_bytes_per_token@{late}"] * (late - early)
    read_s = added / values["bytes_per_s"]
    total_s = [values[f"total_s@{at}"] for at in (early, late)]
    told = {
        "growth": (total_s[1] - total_s[0]) / read_s,
        "early_ms": 1e3 * total_s[0],
        "late_ms": 1e3 * total_s[1],
        "read_gb_per_s": values["bytes_per_s"] / 1e9,
    }
    if f"attention_s@{early}" not in values:
        return told
    attention_s = [values[f"attention_s@{at}"] for at in (early, late)]
    return {
        "outside_attention": (total_s[1] - attention_s[1]) / (total_s[0] - attention_s[0]),
        "attention_growth": (attention_s[1] - attention_s[0]) / read_s,
        "early_attention_ms": 1e3 * attention_s[0],
        "late_attention_ms": 1e3 * attention_s[1],
        **told,
    }


def growth_report(result: Mapping[str, Any]) -> Report:
    rows = [
        (name, *(number(result[name][each]) for each in ("median", "min", "max")))
        for name in NAMES
        if name in result
    ]
    legend = (
        "outside_attention: late / early; growth, of attention and of all: over the time of "
        "reading the K and V that were added"
    )
    if "outside_attention" not in result:
        legend += ". Attention cannot be told apart here: the engine runs a step in one call"
    return Report(
        f"a decode at {result['late']} against {result['early']}",
        (table(("", "median", "min", "max"), rows), legend),
        (stacked("ms of a decode, by position", _stacks(result), width=5.0),),
    )


def _stacks(result: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    stacks = {}
    for at in ("early", "late"):
        total = result[f"{at}_ms"]["median"]
        attention = result.get(f"{at}_attention_ms", {"median": 0.0})["median"]
        stacks[str(result[at])] = {"attention": attention, "all else": total - attention}
    return stacks
