"""A result as a reader wants it: one Markdown page, and one picture beside it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def markdown(result: Mapping[str, Any]) -> str:
    """Return the page of a paired result."""
    sections = [
        f"# {result['scenario']}: {result['title']}",
        _circumstances(result),
        *(_metric_table(result, metric) for metric in result["metrics"]),
        _ratio_table(result),
        _disturbances(result),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _circumstances(result: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {each}" for name, each in result["versions"].items())
    rules = result["rules"]
    lines = (
        f"{result['model']}, {result['date']}, commit {result['commit'] or 'unknown'}",
        f"{result['processor']}, cores {_listed(result['cores_used'])} of {result['machine']}, "
        f"{result['memory_gib']} GiB; Python {result['python']}, {versions}",
        f"{rules['rounds']} rounds after {rules['warmups']} of warm-up; a sample is disturbed "
        f"beyond {rules['other_max']} cores of other load",
        f"`{result['command']}`",
    )
    return "\n".join(f"* {line}" for line in lines)


def _metric_table(result: Mapping[str, Any], metric: Mapping[str, Any]) -> str:
    name, unit = metric["name"], metric["unit"]
    rows = [
        (side, *(number(values[name][each]) for each in ("median", "q1", "q3", "min", "max")))
        for side, values in result["summary"].items()
        if name in values
    ]
    better = "more" if metric["higher_is_better"] else "less"
    titles = ("side", f"{name}{f' ({unit})' if unit else ''}", "q1", "q3", "min", "max")
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
    rounds = result["rules"]["rounds"]
    found = [f"{side}: {n} of {rounds}" for side, n in result["disturbed"].items() if n]
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


def plot(result: Mapping[str, Any], path: Path) -> Path | None:
    """Draw the result as SVG beside `path`; None, said aloud, where matplotlib is missing."""
    try:
        import matplotlib as mpl
    except ImportError:
        print("no plot: `pip install 'meshnet[bench]'` brings matplotlib", file=sys.stderr)
        return None
    mpl.use("Agg")
    from matplotlib import pyplot

    groups = metric_groups([metric["name"] for metric in result["metrics"]])
    with mpl.rc_context({"svg.hashsalt": "meshnet", "font.size": 9}):
        figure, axes = pyplot.subplots(
            1, len(groups), figsize=(3.6 * len(groups), 3.2), layout="constrained", squeeze=False
        )
        for axis, (base, names) in zip(axes[0], groups.items(), strict=True):
            draw = _draw_lines if len(names) > 1 else _draw_bars
            draw(axis, result["summary"], names)
            axis.set_title(base)
        figure.suptitle(f"{result['scenario']}, {result['model']}", fontsize=10)
        target = path.with_name(path.name + ".svg")
        figure.savefig(target, metadata={"Date": None})
        pyplot.close(figure)
    return target


def metric_groups(names: Sequence[str]) -> dict[str, list[str]]:
    """Put `name@k` together under `name`."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(name.partition("@")[0], []).append(name)
    return groups


def _draw_lines(axis: Any, summary: Mapping[str, Any], names: Sequence[str]) -> None:
    for side, values in summary.items():
        told = [name for name in names if name in values]
        at = [float(name.partition("@")[2]) for name in told]
        middle = [values[name]["median"] for name in told]
        below = [values[name]["median"] - values[name]["min"] for name in told]
        above = [values[name]["max"] - values[name]["median"] for name in told]
        axis.errorbar(at, middle, yerr=[below, above], marker="o", capsize=2, label=side)
    axis.set_ylim(bottom=0)
    axis.legend(fontsize=7)


def _draw_bars(axis: Any, summary: Mapping[str, Any], names: Sequence[str]) -> None:
    (name,) = names
    told = {side: values[name] for side, values in summary.items() if name in values}
    middle = [each["median"] for each in told.values()]
    errors = [
        [each["median"] - each["min"] for each in told.values()],
        [each["max"] - each["median"] for each in told.values()],
    ]
    axis.bar(range(len(told)), middle, yerr=errors, capsize=3)
    axis.set_xticks(range(len(told)), [side.replace(":", "\n") for side in told], fontsize=7)
