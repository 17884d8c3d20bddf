"""The pictures of results: panels side by side in one SVG, drawn alike from like figures."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Spread = Mapping[str, float]
"""`median`, `min`, `max`."""


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    draw: Callable[[Any], None]
    """Gets the axes."""
    width: float = 3.6


def picture(title: str, panels: Sequence[Panel], target: Path) -> Path | None:
    """Draw an SVG; None, said aloud, where matplotlib is missing."""
    try:
        import matplotlib as mpl
    except ImportError:
        print("no plot: `pip install 'meshnet[bench]'` brings matplotlib", file=sys.stderr)
        return None
    mpl.use("Agg")
    from matplotlib import pyplot

    with mpl.rc_context({"svg.hashsalt": "meshnet", "font.size": 9}):
        figure, axes = pyplot.subplots(
            1,
            len(panels),
            figsize=(sum(panel.width for panel in panels), 3.2),
            width_ratios=[panel.width for panel in panels],
            layout="constrained",
            squeeze=False,
        )
        for axis, panel in zip(axes[0], panels, strict=True):
            panel.draw(axis)
            axis.set_title(panel.title)
        figure.suptitle(title, fontsize=10)
        figure.savefig(target, metadata={"Date": None})
        pyplot.close(figure)
    return target


def lines(title: str, series: Mapping[str, Mapping[float, Spread]], *, width: float = 3.6) -> Panel:
    """One line a name, over what its figures are keyed by, with extremes."""

    def draw(axis: Any) -> None:
        for name, points in series.items():
            spreads = list(points.values())
            axis.errorbar(
                list(points), *_middle(spreads), marker=".", capsize=2, label=name
            )  # fmt: skip
        axis.set_ylim(bottom=0)
        axis.legend(fontsize=7)

    return Panel(title, draw, width)


def bars(title: str, values: Mapping[str, Spread], *, at_most: float | None = None) -> Panel:
    """One bar a name, with extremes; `at_most` is drawn as a line across."""

    def draw(axis: Any) -> None:
        middle, extremes = _middle(list(values.values()))
        axis.bar(range(len(values)), middle, yerr=extremes, capsize=3)
        axis.set_xticks(range(len(values)), [_broken(name) for name in values], fontsize=7)
        if at_most is not None:
            axis.axhline(at_most, linestyle="--", linewidth=1)

    return Panel(title, draw)


def stacked(title: str, stacks: Mapping[str, Mapping[str, float]], *, width: float = 3.6) -> Panel:
    """One bar a name, of parts that add up; all names have the same parts."""

    def draw(axis: Any) -> None:
        names = list(stacks)
        below = [0.0] * len(names)
        for part in next(iter(stacks.values())):
            heights = [stacks[name][part] for name in names]
            axis.bar(range(len(names)), heights, bottom=below, label=part)
            below = [low + height for low, height in zip(below, heights, strict=True)]
        axis.set_xticks(range(len(names)), [_broken(name) for name in names], fontsize=7)
        axis.legend(fontsize=7)

    return Panel(title, draw, width)


def ranked(
    title: str, rows: Sequence[tuple[str, float, str]], *, mark: float | None = None
) -> Panel:
    """Bars that lie, from the top: a name, a length, a colour; `mark` is a line at that length."""

    def draw(axis: Any) -> None:
        names, lengths, colours = zip(*rows, strict=True)
        axis.barh(range(len(rows)), lengths, color=colours)
        axis.set_yticks(range(len(rows)), names, fontsize=6)
        axis.invert_yaxis()
        if mark is not None:
            axis.axvline(mark, linestyle="--", linewidth=1)

    return Panel(title, draw, width=7.0)


def _middle(spreads: Sequence[Spread]) -> tuple[list[float], list[list[float]]]:
    return [each["median"] for each in spreads], [
        [each["median"] - each["min"] for each in spreads],
        [each["max"] - each["median"] for each in spreads],
    ]


def _broken(name: str) -> str:
    return name.replace(":", "\n").replace("+", "\n+")
