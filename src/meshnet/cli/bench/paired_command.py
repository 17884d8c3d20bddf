"""`meshnet bench decode|prefill|positions|concurrency|ttft|turns`: sides in, three files out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshnet.cli.bench.paired import Rules
from meshnet.cli.bench.prompts import Prompts
from meshnet.cli.bench.report import markdown, plot
from meshnet.cli.bench.results import result_path, write_result
from meshnet.cli.bench.running import pin, result_of, run_paired
from meshnet.cli.bench.scenarios import Scenario
from meshnet.cli.bench.sides import SideSpec, side_of
from meshnet.cli.models import load_text, resolve_model
from meshnet.cli.options import print_json
from meshnet.cli.serving import run_loop
from meshnet.cli.settings import Settings, SettingsError


@dataclass(frozen=True, slots=True)
class Order:
    """What a user asks of a paired measurement, beside the scenario."""

    sides: tuple[SideSpec, ...]
    rules: Rules
    cores: str | None
    out: Path

    def __post_init__(self) -> None:
        names = [str(side) for side in self.sides]
        if len(set(names)) < len(names):
            raise SettingsError(f"--side: expected different sides, got {', '.join(names)}")


def measure_paired(settings: Settings, scenario: Scenario, order: Order, *, as_json: bool) -> None:
    """Measure, write JSON, Markdown and SVG, and print. Raises MeshnetError."""
    result = paired_result(settings, scenario, order)
    files = written(result, order.out)
    if as_json:
        print_json(result)
    else:
        print(markdown(result))
        print(f"written: {', '.join(map(str, files))}")


def paired_result(settings: Settings, scenario: Scenario, order: Order) -> dict[str, Any]:
    """Run the scenario on all sides. Raises MeshnetError."""
    cores = pin(order.cores)
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
    return result_of(scenario, settings, source.name, samples, order.rules, cores)


def written(result: dict[str, Any], out: Path) -> Sequence[Path]:
    """Write the result and its report; return the files."""
    path = result_path(out, str(result["model"]), str(result["scenario"]))
    page = path.with_name(path.name + ".md")
    page.write_text(markdown(result), encoding="utf-8")
    drawn = plot(result, path)
    return [write_result(path, result), page, *([drawn] if drawn else [])]
