"""Reports: what stands on the page and in the picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from meshnet.cli.bench import scenarios
from meshnet.cli.bench.paired import Rules, Sample
from meshnet.cli.bench.picture import picture
from meshnet.cli.bench.report import (
    metric_groups,
    number,
    page_of,
    paired_report,
    panels_of,
    table,
)
from meshnet.cli.bench.running import all_ratios, result_of
from meshnet.cli.settings import load_settings


def result(*, disturbed: bool = False) -> dict[str, Any]:
    def sample(rate: float, ttft: float) -> Sample:
        return Sample({"tokens_per_s": rate, "ttft_ms": ttft}, 0.01, disturbed)

    samples = {
        "mesh:2x1": [sample(20.0, 50.0), sample(30.0, 40.0), sample(22.0, 45.0)],
        "engine:1": [sample(10.0, 25.0), sample(10.0, 20.0), sample(11.0, 30.0)],
    }
    rules = Rules(rounds=3, warmups=1)
    return result_of(scenarios.decode(64), load_settings({}), "toy", samples, rules)


def page(told: dict[str, Any]) -> str:
    return page_of(told, paired_report(told))


def test_a_result_holds_every_sample_and_what_follows():
    told = result()

    assert told["summary"]["mesh:2x1"]["tokens_per_s"]["median"] == 22.0
    assert told["ratios"]["tokens_per_s"]["mesh:2x1 / engine:1"]["median"] == 2.0
    assert told["ratios"]["tokens_per_s"]["mesh:2x1 / engine:1"]["max"] == 3.0
    assert [each["values"]["ttft_ms"] for each in told["samples"]["engine:1"]] == [25, 20, 30]
    assert json.loads(json.dumps(told)) == told


def test_a_result_tells_what_is_needed_to_repeat_it():
    told = result()

    assert {"command", "date", "commit", "model", "processor", "versions"} <= set(told)
    assert told["dtype"] == "int8"
    assert told["cores_used"]
    assert told["rules"]["rounds"] == 3


def test_ratios_put_each_side_over_those_named_after_it():
    samples = {
        name: [Sample({"x": value}, 0.0, False)]
        for name, value in (("a", 6.0), ("b", 3.0), ("c", 1.0))
    }

    found = all_ratios(samples, [scenarios.Metric("x", "")])["x"]

    assert {pair: each["median"] for pair, each in found.items()} == {
        "a / b": 2.0, "a / c": 6.0, "b / c": 3.0,
    }  # fmt: skip


def test_the_page_has_medians_spread_ratios_and_circumstances():
    told = result()
    shown = page(told)

    assert "| mesh:2x1 | 22.0 | 21.0 | 26.0 | 20.0 | 30.0 |" in shown
    assert "| mesh:2x1 / engine:1 | tokens_per_s | 2 | 2 | 3 |" in shown
    assert "disturbed samples" not in shown.lower()
    assert "toy, int8, " in shown
    assert f"commit {told['commit'] or 'unknown'}" in shown
    assert f"{told['processor']}, cores {', '.join(map(str, told['cores_used']))}" in shown
    assert "threads as the sides say" in shown


def test_the_page_owns_up_to_disturbed_samples():
    assert "Disturbed samples that stayed: mesh:2x1: 3 of 3; engine:1: 3 of 3." in page(
        result(disturbed=True)
    )


def test_cells_cannot_break_a_table():
    assert table(("a", "b"), [("x|y", "1\n2")]).splitlines()[-1] == "| x\\|y | 1 2 |"


@pytest.mark.parametrize(
    ("value", "text"), [(1234.5, "1234"), (45.67, "45.7"), (1.2345, "1.23"), (0.01234, "0.0123")]
)
def test_numbers_have_three_digits(value: float, text: str):
    assert number(value) == text


def test_one_metric_at_several_counts_is_one_table():
    samples = {"a": [Sample({"x@1": 1.0, "x@8": 8.0}, 0.0, False)]}
    subject = scenarios.Subject(
        "many", "at once", (scenarios.Metric("x@1", "/s"), scenarios.Metric("x@8", "/s"))
    )

    shown = page(result_of(subject, load_settings({}), "toy", samples, Rules(rounds=1)))

    assert shown.count("| side | x (/s) |") == 1
    assert "| a @1 | 1 |" in shown
    assert "| a @8 | 8 |" in shown


def test_one_metric_at_several_counts_is_one_picture():
    assert metric_groups(["rate@1", "rate@8", "gain"]) == {
        "rate": ["rate@1", "rate@8"],
        "gain": ["gain"],
    }


def test_the_picture_is_drawn_and_drawn_alike(tmp_path: Path):
    first, second = (
        picture("decode", panels_of(result()), tmp_path / name) for name in ("a.svg", "b.svg")
    )

    assert first is not None
    assert second is not None
    assert first.read_text() == second.read_text()
    assert "mesh" in first.read_text()
