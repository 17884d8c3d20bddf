"""`meshnet bench decode|prefill|positions|concurrency|ttft|turns`: sides in, a result out."""

from __future__ import annotations

from typing import Any

from meshnet.cli.bench.arguments import Asked
from meshnet.cli.bench.order import Order
from meshnet.cli.bench.prompts import Prompts
from meshnet.cli.bench.report import paired_report
from meshnet.cli.bench.results import publish
from meshnet.cli.bench.running import pin, result_of, run_paired
from meshnet.cli.bench.scenarios import Scenario
from meshnet.cli.bench.sides import side_of
from meshnet.cli.models import load_text, resolve_model
from meshnet.cli.serving import run_loop
from meshnet.cli.settings import Settings, SettingsError


def measure_paired(asked: Asked, scenario: Scenario) -> None:
    """Measure, write JSON, Markdown and SVG, and print. Raises MeshnetError."""
    result = paired_result(asked.settings, scenario, asked.order)
    publish(result, paired_report(result), asked)


def paired_result(settings: Settings, scenario: Scenario, order: Order) -> dict[str, Any]:
    """Run the scenario on all sides. Raises MeshnetError."""
    pin(order.cores)
    source = resolve_model(settings.model, settings)
    text = load_text(source)
    if scenario.positions > text.context_length:
        raise SettingsError(
            f"{source.name} has a context of {text.context_length} tokens, "
            f"{scenario.name} needs {scenario.positions}"
        )
    prompts = Prompts(lambda words: text.encode(words, special=False))
    sides = {
        str(spec): side_of(spec, settings, sessions=scenario.sessions, positions=scenario.positions)
        for spec in order.sides
    }
    samples = run_loop(lambda: run_paired(scenario, sides, prompts, order.rules))
    return result_of(scenario, settings, source.name, samples, order.rules)
