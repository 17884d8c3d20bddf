"""A result as a reader wants it: one Markdown page, and the panels of a picture beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from meshnet.cli.bench.picture import Panel, Spread, bars, lines


@dataclass(frozen=True, slots=True)
class Report:
    """A result as it is shown: what stands on the page below its head, and panels of a picture."""

    title: str
    sections: tuple[str, ...]
    panels: tuple[Panel, ...]


def page_of(result: Mapping[str, Any], report: Report) -> str:
    """Return the Markdown page."""
    sections = [
        f"# {result['scenario']}: {report.title}",
        _circumstances(result),
        *report.sections,
        _disturbances(result),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def paired_report(result: Mapping[str, Any]) -> Report:
    """Return the report of a paired result."""
    groups = metric_groups([metric["name"] for metric in result["metrics"]])
    by_name = {metric["name"]: metric for metric in result["metrics"]}
    sections = [
        _metric_table(result, base, by_name[names[0]], names) for base, names in groups.items()
    ]
    return Report(str(result["title"]), (*sections, _ratio_table(result)), tuple(panels_of(result)))


def _circumstances(result: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {each}" for name, each in result["versions"].items())
    threads = result["threads"]
    told = [
        f"{result['model']}, {result['dtype']}, {result['date']}, "
        f"commit {result['commit'] or 'unknown'}",
        f"{result['processor']}, cores {_listed(result['cores_used'])} of {result['machine']}, "
        f"{result['memory_gib']} GiB; "
        f"{'threads as the sides say' if threads is None else f'threads of a process: {threads}'}; "
        f"Python {result['python']}, {versions}",
    ]
    if rules := result.get("rules"):
        told.append(
            f"{rules['rounds']} rounds after {rules['warmups']} of warm-up; a sample is disturbed "
            f"beyond {rules['other_max']} cores of other load"
        )
    told.append(f"`{result['command']}`")
    return "\n".join(f"* {line}" for line in told)


def _metric_table(
    result: Mapping[str, Any], base: str, metric: Mapping[str, Any], names: Sequence[str]
) -> str:
    rows = [
        (
            " @".join(filter(None, (side, name.partition("@")[2]))),
            *(number(values[name][each]) for each in ("median", "q1", "q3", "min", "max")),
        )
        for name in names
        for side, values in result["summary"].items()
        if name in values
    ]
    unit = metric["unit"]
    better = "more" if metric["higher_is_better"] else "less"
    titles = ("side", f"{base}{f' ({unit})' if unit else ''}", "q1", "q3", "min", "max")
    return f"{table(titles, rows)}\n\n{better} is better" if rows else ""


def _ratio_table(result: Mapping[str, Any]) -> str:
    rows = [
        (pair, metric, *(number(found[each]) for each in ("median", "min", "max")))
        for metric, pairs in result["ratios"].items()
        for pair, found in pairs.items()
    ]
    if not rows:
        return ""
    return "Ratios, paired within rounds\n\n" + table(
        ("sides", "metric", "median", "min", "max"), rows
    )


def _disturbances(result: Mapping[str, Any]) -> str:
    disturbed = result.get("disturbed") or {}
    rounds = result["rules"]["rounds"] if disturbed else 0
    found = [f"{side}: {n} of {rounds}" for side, n in disturbed.items() if n]
    return f"Disturbed samples that stayed: {'; '.join(found)}." if found else ""


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; all but the first column are numbers."""
    align = ["---", *("---:" for _ in titles[1:])]
    return "\n".join(f"| {' | '.join(_cell(c) for c in row)} |" for row in (titles, align, *rows))


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def number(value: float) -> str:
    """Return three significant digits, never with an exponent."""
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"


def _listed(values: Sequence[object]) -> str:
    return ", ".join(map(str, values)) or "all"


def panels_of(result: Mapping[str, Any]) -> list[Panel]:
    """Return the pictures of a paired result: a panel for each metric or group of them."""
    summary = result["summary"]
    panels = []
    for base, names in metric_groups([metric["name"] for metric in result["metrics"]]).items():
        if len(names) > 1:
            panels.append(lines(base, {side: _told(summary[side], names) for side in summary}))
        else:
            told = {side: values[base] for side, values in summary.items() if base in values}
            panels.append(bars(base, told))
    return panels


def _told(values: Mapping[str, Any], names: Sequence[str]) -> dict[float, Spread]:
    return {float(name.partition("@")[2]): values[name] for name in names if name in values}


def metric_groups(names: Sequence[str]) -> dict[str, list[str]]:
    """Put `name@k` together under `name`."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(name.partition("@")[0], []).append(name)
    return groups
