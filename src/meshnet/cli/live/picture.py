"""The mesh as `meshnet top` draws it: what the feed told last, as lines of a terminal."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from meshnet.cli.report import bytes_text

HAPPENINGS_SHOWN = 64
RATES_KEPT = 40
LAYERS_WIDTH_MIN, LAYERS_WIDTH_MAX = 11, 30
FIGURES_WIDTH = 70
"""What the columns of figures take beside the name and the layers."""
GAUGE_FROM_WIDTH = 100
GAUGE_WIDTH = 10
AROUND_NODES = 10
"""Lines: four above the nodes, two of a token, two for the keys, two to spare."""
KEEP = 0.85
HUES = ("cyan", "yellow", "blue", "magenta", "green", "bright_blue")
LEVELS = {"good": "green", "warn": "yellow", "bad": "bold red", "note": "dim"}
BARS = "▁▂▃▄▅▆▇█"
NO_LINE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


class Picture:
    """What is known now: only what can be drawn is taken."""

    def __init__(self, *, unicode: bool) -> None:
        self._full, self._empty = ("█", "░") if unicode else ("#", ".")
        self._bars = BARS if unicode else "_-="
        self._mesh: Mapping[str, Any] | None = None
        self._happenings: deque[Text] = deque(maxlen=HAPPENINGS_SHOWN)
        self._rates: deque[float] = deque(maxlen=RATES_KEPT)
        self._took_ms: float | None = None
        self.trouble = ""

    @property
    def is_known(self) -> bool:
        return self._mesh is not None

    def take(self, batch: Mapping[str, Any]) -> None:
        """Raises LookupError, TypeError, ValueError, AttributeError or ArithmeticError for what
        this version does not read."""
        self.trouble = ""
        if (mesh := batch["mesh"]) is not None:
            rate = float(mesh["tokens_per_s"])
            if not 0 <= rate < math.inf:
                raise ValueError(f"tokens_per_s: expected a rate, got {rate}")
            self._upper(mesh, "", took_ms=1.0)
            self._mesh = mesh
            self._rates.append(rate)
        for each in batch["happenings"]:
            self._happenings.appendleft(_line((each["text"], LEVELS.get(each["level"], ""))))
        for step in batch["steps"]:
            self._step(step)

    def begin(self) -> None:
        """Forget what happened: a feed tells the past again to who comes again."""
        self._happenings.clear()

    def _step(self, step: Mapping[str, Any]) -> None:
        route = [] if self._mesh is None else [hop["node"] for hop in self._mesh["route"]]
        if step["ok"] and step["positions"] == 1 and step["nodes"] == route:
            before = step["ms"] if self._took_ms is None else self._took_ms
            self._took_ms = KEEP * before + (1 - KEEP) * step["ms"]

    def drawn(self, *, width: int, height: int, url: str, paused: bool = False) -> RenderableType:
        """Return all of it in at most `height` lines, of figures that fit into `width`."""
        if self._mesh is None:
            return _line(self.trouble or f"waiting for {url}")
        nodes = self._mesh["nodes"]
        rows = max(1, height - AROUND_NODES)
        parts = self._upper(self._mesh, url, took_ms=self._took_ms, width=width, rows=rows)
        room = max(0, height - AROUND_NODES - min(rows, len(nodes)))
        keys = "q quits   p goes on" if paused else "q quits   p pauses"
        return Group(*parts, Text(), *list(self._happenings)[:room], _line((keys, "dim")))

    def _upper(
        self,
        mesh: Mapping[str, Any],
        url: str,
        *,
        took_ms: float | None,
        width: int = GAUGE_FROM_WIDTH,
        rows: int = 2**16,
    ) -> list[RenderableType]:
        """Return what is above the happenings: lines, and one table of at most `rows` lines."""
        parts: list[RenderableType] = [*self._head(mesh, url), *self._nodes(mesh, width, rows)]
        token = self._token(mesh, took_ms)
        return parts if token is None else [*parts, Text(), token]

    def _head(self, mesh: Mapping[str, Any], url: str) -> list[RenderableType]:
        state = ("ready", "green") if mesh["ready"] else (mesh["detail"], "bold red")
        trouble = (f"   {self.trouble}" if self.trouble else "", "bold red")
        first = _line((mesh["model"], "bold"), f" at {url}: ", state, trouble)
        second = _line(
            (f"{mesh['tokens_per_s']:.1f}", "bold"), " tokens/s  ", (self._spark(), "cyan"),
            f"   {mesh['running']} running, {mesh['waiting']} waiting, "
            f"{mesh['refills']} recovered",
        )  # fmt: skip
        return [first, second, Text()]

    def _spark(self) -> str:
        most = max((1.0, *self._rates))
        top = len(self._bars) - 1
        return "".join(self._bars[round(rate / most * top)] for rate in self._rates)

    def _nodes(self, mesh: Mapping[str, Any], width: int, rows: int) -> list[RenderableType]:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column("node")  # the one that may be cut, so it comes first
        table.add_column(_line(f"layers 0-{mesh['layers']}"), no_wrap=True)
        gauge = ("",) if width >= GAUGE_FROM_WIDTH else ()
        for title in ("", "a step", "KV", *gauge, "weights", "sessions"):
            table.add_column(title, justify="right", no_wrap=True)
        bar = min(LAYERS_WIDTH_MAX, max(LAYERS_WIDTH_MIN, width - FIGURES_WIDTH))
        nodes = mesh["nodes"]
        shown = len(nodes) if len(nodes) <= rows else rows - 1
        for place, node in enumerate(nodes[:shown]):
            hue = HUES[place % len(HUES)]
            table.add_row(*self._row(node, mesh["layers"], hue, bar, gauge=bool(gauge)))
        rest = nodes[shown:]
        silent = sum(node["state"] == "silent" for node in rest)
        told = f", {silent} not answering" if silent else ""
        return [table, _line((f"+{len(rest)} more{told}", "dim"))] if rest else [table]

    def _row(
        self, node: Mapping[str, Any], layers: int, hue: str, bar: int, *, gauge: bool
    ) -> list[RenderableType]:
        silent = node["state"] == "silent"
        held = node["layers"]
        shown = f"{held[0]}-{held[1]}" if held else "none yet"
        row: list[RenderableType] = [
            _line((node["name"], "bold red" if silent else hue)),
            self._layers(held, layers, "dim" if silent else hue, bar),
            _line(("not answering", "bold red") if silent else shown),
        ]
        if "pid" not in node:
            return row
        step = "" if node["step_ms"] is None else f"{node['step_ms']:.1f} ms"
        part = node["kv_bytes"] / max(1, node["kv_bytes_max"])
        filled = round(min(1.0, part) * GAUGE_WIDTH)
        drawn = self._full * filled + self._empty * (GAUGE_WIDTH - filled)
        weights = f"{bytes_text(node['weight_bytes'])} {node['weights']}".rstrip()
        kv = bytes_text(node["kv_bytes"])
        sessions = f"{node['sessions']}/{node['sessions_max']}"
        cells = (step, kv, *([(drawn, hue)] if gauge else []), weights, sessions)
        return [*row, *(_line(cell) for cell in cells)]

    def _layers(self, held: Sequence[int] | None, layers: int, hue: str, bar: int) -> Text:
        if not held or not layers:
            return Text(self._empty * bar, "dim")
        start, stop = (round(each * bar / layers) for each in held)
        stop = max(stop, start + 1)
        return Text.assemble(
            (self._empty * start, "dim"),
            (self._full * (stop - start), hue),
            (self._empty * (bar - stop), "dim"),
        )

    def _token(self, mesh: Mapping[str, Any], took_ms: float | None) -> Text | None:
        """Return where a token's time goes; None: not known."""
        told = {node["node"]: node for node in mesh["nodes"]}
        hops = [told.get(hop["node"]) for hop in mesh["route"]]
        if took_ms is None or not hops:
            return None
        parts = [(hop["name"], hop["step_ms"]) for hop in hops if hop and hop.get("step_ms")]
        way_ms = max(0.0, took_ms - sum(ms for _, ms in parts))
        shown = ", ".join(f"{name} {ms:.1f}" for name, ms in parts)
        return _line(f"a token: {took_ms:.1f} ms ({shown}, way and waiting {way_ms:.1f})")


def _line(*parts: object | tuple[object, str]) -> Text:
    """Return texts, each with its style or none, as one line: cut where the terminal ends.

    They are another machine's words: no markup, and no line of their own.
    """
    styled = [part if isinstance(part, tuple) else (part, "") for part in parts]
    flat = [(NO_LINE.sub(" ", str(text)), style) for text, style in styled]
    return Text.assemble(*flat, no_wrap=True, overflow="ellipsis")
