"""The acceptance table: which runs it needs, and when each of its lines is met.

A line reads figures of finished runs. It is met, missed, or open: not measured, or only told.
Targets stand here once; a target that is missed is told with its figure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from meshnet.cli.bench.report import number, table

Results = Mapping[str, Mapping[str, Any]]
"""By name of the run."""

# Without drafts: what they win depends on the text, and the others have none.
MESH, FAST = "mesh:2x1@int8+drafts=off", "mesh:2x1@int8-fast+drafts=off"
RPC, LONE = "llama-rpc:2x1", "engine:1@int8"
SMALL, LARGE = "smollm2-135m", "random-1.1b"


@dataclass(frozen=True, slots=True)
class Run:
    """One result that lines read."""

    name: str
    scenario: str
    model: str
    sides: tuple[str, ...] = ()


RUNS = (
    Run("exact", "exact", SMALL),
    Run("decode-large", "decode", LARGE, (MESH, RPC, LONE)),
    Run("decode-small", "decode", SMALL, (MESH, FAST, RPC, LONE, "generate:1", "llama:1")),
    Run("sessions-small", "concurrency", SMALL, (MESH, RPC)),
    Run("sessions-large", "concurrency", LARGE, (MESH,)),
    Run("prefill-small", "prefill", SMALL, (MESH, RPC)),
    Run("positions-small", "positions", SMALL, (MESH, RPC)),
    Run("shard-small", "shard", SMALL),
    Run("ttft-small", "ttft", SMALL, (MESH,)),
    Run("turns-small", "turns", SMALL, (MESH,)),
    Run("latency-small", "latency", SMALL),
    Run("memory-small", "memory", SMALL),
    Run("memory-large", "memory", LARGE),
    Run("budget-small", "budget", SMALL),
)


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
    return lambda result: _spread(result[name])


def worst(name: str) -> Callable[[Mapping[str, Any]], Figure]:
    """Of the nodes."""
    return lambda result: Figure(max(node[name] for node in result["nodes"]))


def equal(result: Mapping[str, Any]) -> Figure:
    ways = {**result["engine"], **{f"mesh {k}": v for k, v in result["mesh"].items()}}
    return Figure(float(result["equal"]), f"{len(ways)} ways, {result['kills']} deaths")


def over_delay(variant: str, delay_ms: float) -> Callable[[Mapping[str, Any]], Figure]:
    def read(result: Mapping[str, Any]) -> Figure:
        for row in result["rows"]:
            if (row["variant"], row["delay_ms"]) == (variant, delay_ms):
                return _spread(row["over_formula"])
        return Figure(None)

    return read


def against_star(variant: str, delay_ms: float) -> Callable[[Mapping[str, Any]], Figure]:
    def read(result: Mapping[str, Any]) -> Figure:
        for row in result["rows"]:
            if (row["variant"], row["delay_ms"]) == (variant, delay_ms) and row["against"]:
                return _spread(row["against"])
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
    Line("star, 50 ms / formula", "latency-small", over_delay("star", 50.0), most=1.05),
    Line("chain, 50 ms / formula", "latency-small", over_delay("chain", 50.0), most=1.05),
    Line(
        "drafts / star, repeating text",
        "latency-small",
        against_star("drafts, repeating text", 50.0),
        most=0.35,
    ),
    Line("drafts / star, other text", "latency-small", against_star("drafts", 50.0), most=1 / 0.97),
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
    if figure.value is None or line.least is line.most is None:
        return Verdict(line, figure, None)
    enough = line.least is None or figure.value >= line.least
    return Verdict(line, figure, enough and (line.most is None or figure.value <= line.most))


def acceptance_page(found: Sequence[Verdict]) -> str:
    """Return the table as Markdown."""
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
    titles = ("measure", "target", "median", "spread", "")
    return (
        f"{table(titles, rows)}\n\n{met} met, {missed} missed, {len(found) - met - missed} open\n"
    )
