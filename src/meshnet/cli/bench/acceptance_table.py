"""The acceptance table: what each of its lines reads off a run, and when it is met.

A line reads figures of finished runs. It is met, missed, or open: not measured, or only told.
Targets stand here once; a target that is missed is told with its figure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from meshnet.cli.bench.acceptance_runs import FAST, LONE, MESH, RPC
from meshnet.cli.bench.picture import ranked
from meshnet.cli.bench.report import Report, number, table

Results = Mapping[str, Mapping[str, Any]]
"""By name of the run."""


@dataclass(frozen=True, slots=True)
class Figure:
    """What one line reads off a result: a number to hold against its target, or only a word."""

    value: float | None
    text: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    measure: str
    run: str
    read: Callable[[Mapping[str, Any]], Figure]
    least: float | None = None
    most: float | None = None

    @property
    def target(self) -> str:
        if self.least is not None:
            return f"≥ {self.least:g}"
        return f"≤ {self.most:.4g}" if self.most is not None else "told"


@dataclass(frozen=True, slots=True)
class Verdict:
    line: Line
    figure: Figure
    met: bool | None
    """None: nothing to be met, or not measured."""


def ratio(metric: str, ours: str, theirs: str) -> Callable[[Mapping[str, Any]], Figure]:
    def read(result: Mapping[str, Any]) -> Figure:
        found = result["ratios"].get(metric, {}).get(f"{ours} / {theirs}")
        return Figure(None) if found is None else _spread(found)

    return read


def metric(name: str, side: str) -> Callable[[Mapping[str, Any]], Figure]:
    def read(result: Mapping[str, Any]) -> Figure:
        found = result["summary"].get(side, {}).get(name)
        return Figure(None) if found is None else _spread(found)

    return read


def field(name: str) -> Callable[[Mapping[str, Any]], Figure]:
    return lambda result: _spread(result[name]) if name in result else Figure(None, "not told")


def worst(name: str) -> Callable[[Mapping[str, Any]], Figure]:
    """Of the nodes."""
    return lambda result: Figure(max(node[name] for node in result["nodes"]))


def equal(result: Mapping[str, Any]) -> Figure:
    ways = len(result["engine"]) + len(result["mesh"])
    told = f"{ways} ways, {result['kills']} deaths, sha256 {result['sha256'][:16]}"
    return Figure(float(result["equal"]), told)


def delayed(name: str, variant: str, delay_ms: float) -> Callable[[Mapping[str, Any]], Figure]:
    """A figure of a variant at a delay: `over_formula`, `against` another, `over_expected`."""

    def read(result: Mapping[str, Any]) -> Figure:
        for row in result["rows"]:
            if (row["variant"], row["delay_ms"]) == (variant, delay_ms) and row.get(name):
                return _spread(row[name])
        return Figure(None)

    return read


def _spread(found: Mapping[str, float]) -> Figure:
    return Figure(found["median"], f"{number(found['min'])} to {number(found['max'])}")


LINES = (
    Line("one sha256 in every way", "exact", equal, least=1.0),
    Line("decode, 1.1B / llama.cpp RPC", "decode-large", ratio("tokens_per_s", MESH, RPC), 1.3),
    Line("decode, 1.1B / unsplit", "decode-large", ratio("tokens_per_s", MESH, LONE), 0.93),
    Line("decode, SmolLM2 / RPC", "decode-small", ratio("tokens_per_s", MESH, RPC), 0.9),
    Line("decode, int8-fast / RPC", "decode-small", ratio("tokens_per_s", FAST, RPC), 1.0),
    Line("decode, SmolLM2 / unsplit", "decode-small", ratio("tokens_per_s", MESH, LONE)),
    Line("8 sessions, SmolLM2 / RPC", "sessions-small", ratio("tokens_per_s@8", MESH, RPC), 2.0),
    Line("8 sessions / 1, 1.1B", "sessions-large", metric("gain", MESH), 3.5),
    Line("prefill 512, SmolLM2 / RPC", "prefill-small", ratio("tokens_per_s", MESH, RPC), 2.0),
    Line("outside attention, 1400 / 100", "shard-small", field("outside_attention"), most=1.03),
    Line("attention growth / reading", "shard-small", field("attention_growth"), most=2.0),
    Line("tokens/s, 1400 / 100", "positions-small", metric("flatness", MESH)),
    Line("flatness / RPC's", "positions-small", ratio("flatness", MESH, RPC), 2.0),
    Line("first token, busy / alone", "ttft-small", metric("ratio", MESH), most=2.0),
    Line("second turn / cold", "turns-small", metric("ratio", MESH), most=0.12),
    Line(
        "chain / star, 50 ms / formula",
        "latency-small",
        delayed("over_expected", "chain", 50.0),
        most=1.05,
    ),
    Line(
        "drafts / star, repeating text",
        "latency-small",
        delayed("against", "drafts, repeating text", 50.0),
        most=0.35,
    ),
    Line(
        "drafts / none, drawn text",
        "latency-small",
        delayed("against", "drafts, drawn text", 50.0),
        most=1 / 0.97,
    ),
    Line("memory, SmolLM2", "memory-small", worst("over"), most=1.10),
    Line("memory, 1.1B", "memory-large", worst("over"), most=1.10),
    Line("peak while loading, SmolLM2", "memory-small", worst("peak_over"), most=1.0),
    Line("peak while loading, 1.1B", "memory-large", worst("peak_over"), most=1.0),
    Line("own cost of a token, ms", "budget-small", field("own_ms"), most=1.0),
)


def verdicts(results: Results, lines: Sequence[Line] = LINES) -> list[Verdict]:
    """Hold every line against its run; one whose run is not there is open."""
    return [_verdict(line, results.get(line.run)) for line in lines]


def _verdict(line: Line, result: Mapping[str, Any] | None) -> Verdict:
    if result is None:
        return Verdict(line, Figure(None), None)
    if "error" in result:
        return Verdict(line, Figure(None, f"failed: {result['error']}"), False)
    figure = line.read(result)
    if disturbed := sum((result.get("disturbed") or {}).values()):
        figure = replace(figure, text=f"{figure.text}; {disturbed} samples disturbed")
    if figure.value is None or line.least is line.most is None:
        return Verdict(line, figure, None)
    enough = line.least is None or figure.value >= line.least
    return Verdict(line, figure, enough and (line.most is None or figure.value <= line.most))


def acceptance_report(found: Sequence[Verdict]) -> Report:
    """Return the table, and a picture of how far each line is from its target."""
    words = {True: "met", False: "MISSED", None: "–"}
    rows = [
        (
            each.line.measure,
            each.line.target,
            "not measured" if each.figure.value is None else number(each.figure.value),
            each.figure.text,
            words[each.met],
        )
        for each in found
    ]
    met = sum(each.met is True for each in found)
    missed = sum(each.met is False for each in found)
    told = f"{met} met, {missed} missed, {len(found) - met - missed} open"
    lying = [
        (each.line.measure, fulfillment(each), "C2" if each.met else "C3")
        for each in found
        if each.met is not None
    ]
    panel = ranked("share of the target; 1 is met", lying or [("nothing", 0.0, "C3")], mark=1.0)
    titles = ("measure", "target", "median", "spread", "")
    return Report("targets, figures, met or missed", (table(titles, rows), told), (panel,))


def fulfillment(verdict: Verdict) -> float:
    """Return how much of its target a line reaches: 1 and more is met."""
    line, value = verdict.line, verdict.figure.value
    if value is None or value <= 0.0:
        return 0.0
    if line.least is not None:
        return value / line.least
    assert line.most is not None
    return line.most / value
