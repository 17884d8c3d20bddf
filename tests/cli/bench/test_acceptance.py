"""The acceptance table: a line is met, missed or open, and never silently dropped."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from meshnet.cli.bench.acceptance import asked_of, found_in, measure_acceptance, place_of
from meshnet.cli.bench.acceptance_runs import MESH, MINUTES_MAX, OURS, RPC, RUNS, Run
from meshnet.cli.bench.acceptance_table import (
    LINES,
    Line,
    Verdict,
    acceptance_report,
    delayed,
    field,
    fulfillment,
    metric,
    ratio,
    verdicts,
    worst,
)
from meshnet.cli.bench.arguments import Asked
from meshnet.cli.bench.order import Order
from meshnet.cli.bench.paired import Rules
from meshnet.cli.bench.results import commit
from meshnet.cli.bench.scenarios import Scenario
from meshnet.cli.bench.shard_growth import growth
from meshnet.cli.bench.sides import ONE_SESSION, SideSpec
from meshnet.cli.settings import SettingsError, load_settings


def page_of(verdicts: list[Verdict]) -> str:
    return "\n".join(acceptance_report(verdicts).sections)


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
    assert "no llama.cpp" in page_of([verdict])


def test_what_a_result_does_not_have_is_open_not_met():
    assert judged(Line("x", "r", ratio("rate", "a", "b"), least=1.0), {"ratios": {}}) is None
    assert judged(Line("x", "r", delayed("against", "chain", 50.0), most=1.0), {"rows": []}) is None


def test_a_line_owns_up_to_disturbed_samples():
    line = Line("cost", "r", field("x"), most=3.0)

    (verdict,) = verdicts({"r": {"x": spread(2.0), "disturbed": {"a": 1, "b": 2}}}, [line])

    assert "3 samples disturbed" in page_of([verdict])
    assert verdict.met is True


def test_the_worst_node_decides_about_memory():
    line = Line("memory", "m", worst("over"), most=1.1)

    assert judged(line, {"nodes": [{"over": 1.0}, {"over": 1.2}]}) is False


def test_the_page_counts_met_missed_and_open():
    lines = [Line(str(at), "r", field("x"), least=float(at)) for at in (1, 3)]

    page = page_of([*verdicts({"r": {"x": spread(2.0)}}, lines), *verdicts({}, lines[:1])])

    assert "1 met, 1 missed, 1 open" in page
    assert "| 3 | ≥ 3 | 2 | 1 to 4 | MISSED |" in page
    assert "not measured" in page


def test_what_a_run_could_not_tell_is_open():
    assert judged(Line("x", "r", field("outside_attention"), most=1.03), {}) is None


@pytest.mark.parametrize(("value", "share"), [(0.65, 0.5), (1.3, 1.0), (2.6, 2.0), (0.0, 0.0)])
def test_a_line_is_fulfilled_by_its_share_of_the_target(value: float, share: float):
    least = Line("speed", "r", field("x"), least=1.3)
    most = Line("cost", "r", field("x"), most=1.3)

    (more,) = verdicts({"r": {"x": spread(value)}}, [least])
    (less,) = verdicts({"r": {"x": spread(value)}}, [most])

    assert fulfillment(more) == pytest.approx(share)
    assert fulfillment(less) == pytest.approx(1 / share if share else 0.0)


def test_every_line_reads_a_run_that_exists_and_sides_that_take_part():
    runs = {run.name: run for run in RUNS}

    assert len(runs) == len(RUNS)
    assert {line.run for line in LINES} == set(runs)
    assert all(isinstance(run.scenario, Scenario) or run.scenario in OURS for run in RUNS)
    assert {MESH, RPC} <= set(runs["decode-large"].sides)


def test_the_whole_table_is_estimated_to_take_less_than_it_may():
    assert sum(run.minutes for run in RUNS) < MINUTES_MAX


@pytest.mark.parametrize("run", [run for run in RUNS if run.sides], ids=lambda run: run.name)
def test_every_side_of_a_run_can_do_what_is_asked(run: Run):
    assert isinstance(run.scenario, Scenario)
    specs = [SideSpec.parse(text) for text in run.sides]

    assert [str(spec) for spec in specs] == list(run.sides)
    assert run.scenario.sessions == 1 or all(spec.kind not in ONE_SESSION for spec in specs)


def order_in(out: Path, rounds: int = 5) -> Order:
    return Order((), Rules(rounds=rounds), None, out)


def run_named(name: str) -> Run:
    return next(run for run in RUNS if run.name == name)


def write(place: Path, run: Run, order: Order, **told: Any) -> None:
    result = {"asked": asked_of(run, order), **told}
    (place / f"{run.name}.json").write_text(json.dumps(result))


def test_a_run_of_few_rounds_stays_so_whatever_is_asked(tmp_path: Path):
    run = run_named("positions-small")

    assert (run.of(order_in(tmp_path, 9)).rules.rounds, run.rounds_max) == (3, 3)
    assert run.of(order_in(tmp_path, 2)).rules.rounds == 2


def test_what_is_interrupted_goes_on_where_it_was(tmp_path: Path):
    first = place_of(tmp_path, "abc", anew=False)
    write(first, run_named("exact"), order_in(tmp_path), equal=True)

    again = place_of(tmp_path, "abc", anew=False)

    assert again == first
    assert list(found_in(again, order_in(tmp_path))) == ["exact"]


def test_another_commit_and_a_wish_begin_anew(tmp_path: Path):
    first = place_of(tmp_path, "abc", anew=False)

    others = {
        place_of(tmp_path, "abf", anew=False),
        place_of(tmp_path, "abc+", anew=False),
        place_of(tmp_path, "abc", anew=True),
        place_of(tmp_path, "abc", anew=True),
    }

    assert first not in others
    assert len(others) == 4


def test_runs_by_other_rules_do_not_count(tmp_path: Path):
    place = place_of(tmp_path, "abc", anew=False)
    write(place, run_named("budget-small"), order_in(tmp_path, 1))

    assert found_in(place, order_in(tmp_path, 5)) == {}
    assert list(found_in(place, order_in(tmp_path, 1))) == ["budget-small"]


def test_a_complete_table_is_only_told_and_has_all_its_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    order = order_in(tmp_path)
    place = place_of(tmp_path, commit(), anew=False)
    for run in RUNS:
        write(place, run, order, **figures(run.name))

    measure_acceptance(Asked(load_settings({}), order, as_json=False), (), anew=False)

    told = capsys.readouterr()
    assert "| own cost of a token, ms | ≤ 1 | 0.5 |" in told.out
    assert "together: about 0 minutes" in told.err
    assert {path.suffix for path in place.glob("acceptance.*")} == {".json", ".md", ".svg"}


def figures(name: str) -> dict[str, Any]:
    """All that lines of the run could read; most of it is not there, so they are open."""
    told: dict[str, Any] = {"ratios": {}, "summary": {}, "rows": [], "own_ms": spread(0.5)}
    told["nodes"] = [{"over": 1.0, "peak_over": 1.0}]
    if name == "exact":
        told |= {"engine": {}, "mesh": {}, "kills": 20, "equal": True, "sha256": "a" * 64}
    return told


def test_an_unknown_run_is_refused(tmp_path: Path):
    asked = Asked(load_settings({}), order_in(tmp_path), as_json=False)

    with pytest.raises(SettingsError, match="decode-large"):
        measure_acceptance(asked, ["decode-huge"], anew=False)


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
    assert told["growth"] == pytest.approx(4.5)
    assert all(math.isfinite(value) for value in told.values())


def test_growth_of_what_runs_in_one_call_says_nothing_of_attention():
    values = {
        "total_s@100": 0.020, "total_s@1400": 0.0245,
        "kv_bytes_per_token@100": 1000.0, "kv_bytes_per_token@1400": 1000.0,
        "bytes_per_s": 1300 * 1000 / 0.001,
    }  # fmt: skip

    told = growth(values, early=100, late=1400)

    assert told["growth"] == pytest.approx(4.5)
    assert not any("attention" in name for name in told)
