"""The acceptance table: a line is met, missed or open, and never silently dropped."""

from __future__ import annotations

import math
from typing import Any

import pytest

from meshnet.cli.bench.acceptance import OTHERS, PAIRED
from meshnet.cli.bench.acceptance_table import (
    LINES,
    MESH,
    RPC,
    RUNS,
    Line,
    Run,
    acceptance_page,
    field,
    metric,
    over_delay,
    ratio,
    verdicts,
    worst,
)
from meshnet.cli.bench.shard_growth import growth
from meshnet.cli.bench.sides import ONE_SESSION, SideSpec


def spread(median: float) -> dict[str, float]:
    return {"median": median, "min": median / 2, "max": median * 2}


def judged(line: Line, result: dict[str, Any]) -> bool | None:
    return verdicts({line.run: result}, [line])[0].met


@pytest.mark.parametrize(("value", "met"), [(1.29, False), (1.3, True), (2.0, True)])
def test_a_line_with_a_least_is_met_from_there_on(value: float, met: bool):
    line = Line("speed", "decode", ratio("rate", "a", "b"), least=1.3)

    assert judged(line, {"ratios": {"rate": {"a / b": spread(value)}}}) is met


@pytest.mark.parametrize(("value", "met"), [(0.9, True), (1.0, True), (1.01, False)])
def test_a_line_with_a_most_is_met_up_to_there(value: float, met: bool):
    assert (
        judged(Line("cost", "budget", field("own_ms"), most=1.0), {"own_ms": spread(value)}) is met
    )


def test_a_line_without_a_target_is_only_told():
    line = Line("rate", "positions", metric("flatness", "a"))

    (verdict,) = verdicts({"positions": {"summary": {"a": {"flatness": spread(0.8)}}}}, [line])

    assert (verdict.figure.value, verdict.met) == (0.8, None)


def test_a_run_that_was_not_made_leaves_its_lines_open():
    assert [each.met for each in verdicts({})] == [None] * len(LINES)


def test_a_run_that_failed_misses_its_lines():
    line = Line("speed", "decode", field("x"), least=1.0)

    (verdict,) = verdicts({"decode": {"error": "no llama.cpp"}}, [line])

    assert verdict.met is False
    assert "no llama.cpp" in acceptance_page([verdict])


def test_what_a_result_does_not_have_is_open_not_met():
    assert judged(Line("x", "r", ratio("rate", "a", "b"), least=1.0), {"ratios": {}}) is None
    assert judged(Line("x", "r", over_delay("chain", 50.0), most=1.0), {"rows": []}) is None


def test_the_worst_node_decides_about_memory():
    line = Line("memory", "m", worst("over"), most=1.1)

    assert judged(line, {"nodes": [{"over": 1.0}, {"over": 1.2}]}) is False


def test_the_page_counts_met_missed_and_open():
    lines = [Line(str(at), "r", field("x"), least=float(at)) for at in (1, 3)]

    page = acceptance_page([*verdicts({"r": {"x": spread(2.0)}}, lines), *verdicts({}, lines[:1])])

    assert "1 met, 1 missed, 1 open" in page
    assert "| 3 | ≥ 3 | 2 | 1 to 4 | MISSED |" in page
    assert "not measured" in page


def test_every_line_reads_a_run_that_exists_and_sides_that_take_part():
    runs = {run.name: run for run in RUNS}

    assert {line.run for line in LINES} == set(runs)
    assert all(run.scenario in {*PAIRED, *OTHERS} for run in RUNS)
    assert {MESH, RPC} <= set(runs["decode-large"].sides)


@pytest.mark.parametrize("run", [run for run in RUNS if run.sides], ids=lambda run: run.name)
def test_every_side_of_a_run_can_do_what_is_asked(run: Run):
    scenario = PAIRED[run.scenario]()
    specs = [SideSpec.parse(text) for text in run.sides]

    assert [str(spec) for spec in specs] == list(run.sides)
    assert scenario.sessions == 1 or all(spec.kind not in ONE_SESSION for spec in specs)


def test_growth_is_told_in_units_of_reading_what_was_added():
    values = {
        "total_s@100": 0.020, "attention_s@100": 0.002,
        "total_s@1400": 0.0245, "attention_s@1400": 0.0055,
        "kv_bytes_per_token@100": 1000.0, "kv_bytes_per_token@1400": 1000.0,
        "bytes_per_s": 1300 * 1000 / 0.001,
    }  # fmt: skip

    told = growth(values, early=100, late=1400)

    assert told["outside_attention"] == pytest.approx(19.0 / 18.0)
    assert told["attention_growth"] == pytest.approx(3.5)
    assert told["late_ms"] == pytest.approx(24.5)
    assert all(math.isfinite(value) for value in told.values())
