"""Every measurement once on a tiny model: not its figures, but that it measures what it says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.processes import command

pytestmark = pytest.mark.slow

ROUND = ("--rounds", "1", "--warmups", "0", "--other-max", "64")


def bench(*arguments: str, model: Path, cwd: Path) -> dict[str, Any]:
    told = command(
        "bench", *arguments, "--model", str(model), "--out", str(cwd / "results"), "--json", cwd=cwd
    )
    assert told.returncode == 0, told.stderr
    written = {path.suffix for path in (cwd / "results").iterdir()}
    assert written == {".json", ".md", ".svg"}
    return json.loads(told.stdout)


@pytest.mark.parametrize(
    ("scenario", "arguments", "metric"),
    [
        (
            "decode",
            ("--tokens", "24", "--side", "engine:1", "--side", "generate:1"),
            "tokens_per_s",
        ),
        ("prefill", ("--length", "96"), "tokens_per_s"),
        ("positions", ("--early", "40", "--late", "120"), "flatness"),
        ("concurrency", ("--sessions", "1,2,4", "--tokens", "16"), "gain"),
        ("turns", ("--length", "200", "--answer", "8"), "ratio"),
    ],
)
def test_sides_take_turns_at(
    scenario: str,
    arguments: tuple[str, ...],
    metric: str,
    tiny_model_dir: Path,
    tmp_path: Path,
):
    result = bench(
        scenario, *arguments, "--side", "mesh:2x1", *ROUND, model=tiny_model_dir, cwd=tmp_path
    )

    assert result["scenario"] == scenario
    assert result["summary"]["mesh:2x1"][metric]["median"] > 0
    assert all(len(samples) == 1 for samples in result["samples"].values())
    assert result["disturbed"] == dict.fromkeys(result["samples"], 0)


def test_a_first_token_is_measured_in_a_crowd(tmp_path: Path):
    """Its other sessions need a longer context than the model of the other tests has."""
    from tests.models import tiny_llama

    model = tiny_llama(tmp_path / "roomy", context_length=1024)

    result = bench(
        "ttft", "--others", "2", "--probes", "1", "--side", "mesh:2x1", *ROUND,
        model=model, cwd=tmp_path,
    )  # fmt: skip

    assert result["summary"]["mesh:2x1"]["busy_ms"]["median"] > 0


def test_a_budget_adds_up(tiny_model_dir: Path, tmp_path: Path):
    result = bench("budget", "--tokens", "16", *ROUND, model=tiny_model_dir, cwd=tmp_path)

    typical = result["typical"]
    assert sum(line["ms"] for line in typical["lines"]) == pytest.approx(typical["total_ms"])
    assert {line["where"] for line in typical["lines"]} == {"0-2", "2-4", "head"}
    assert {"queue", "node", "exchange", "wire"} <= {line["what"] for line in typical["lines"]}
    assert 0 < result["compute_ms"]["median"] < result["total_ms"]["median"]


def test_a_long_wire_costs_what_its_formula_says_at_least(tiny_model_dir: Path, tmp_path: Path):
    result = bench(
        "latency", "--delays", "0,30", "--tokens", "6", "--nodes", "2", *ROUND,
        model=tiny_model_dir, cwd=tmp_path,
    )  # fmt: skip

    star = {row["delay_ms"]: row for row in result["rows"] if row["variant"] == "star"}
    assert star[30.0]["wire_ms"]["median"] > 29.0
    assert star[30.0]["token_ms"]["median"] > 4 * 29.0


def test_a_node_takes_memory_and_a_bare_process_less(tiny_model_dir: Path, tmp_path: Path):
    result = bench("memory", "--length", "64", model=tiny_model_dir, cwd=tmp_path)

    assert len(result["nodes"]) == 2
    for node in result["nodes"]:
        assert node["base"] > 2**20
        assert node["weights"] > 0
        assert node["kv"] > 0


def test_a_lone_shard_is_timed_at_two_positions(tiny_model_dir: Path, tmp_path: Path):
    result = bench(
        "shard", "--early", "40", "--late", "300", *ROUND, model=tiny_model_dir, cwd=tmp_path
    )

    assert 0 < result["early_attention_ms"]["median"] < result["early_ms"]["median"]
    assert result["outside_attention"]["median"] > 0


def test_an_int8_answer_is_the_same_in_every_way(tiny_model_dir: Path, tmp_path: Path):
    result = bench(
        "exact", "--weights", "int8", "--tokens", "16", "--kills", "3",
        model=tiny_model_dir, cwd=tmp_path,
    )  # fmt: skip

    assert result["equal"]
    assert len(result["sha256"]) == 64
    assert len(result["mesh"]["3 nodes, killed"]) == 3
    assert len({digest for found in result["engine"].values() for digest in found}) == 1


def test_a_long_answer_is_looked_at_by_position(tiny_model_dir: Path, tmp_path: Path):
    result = bench("flatness", "--tokens", "120", *ROUND, model=tiny_model_dir, cwd=tmp_path)

    assert result["summary"]["mesh"]["flatness"]["median"] > 0
    assert result["wire"]["tensor_bytes_equal"]
    assert result["operators"]["outside_attention_equal"]


def test_splits_are_compared_with_what_is_not_split(tiny_model_dir: Path, tmp_path: Path):
    result = bench("split-tax", "--tokens", "12", *ROUND, model=tiny_model_dir, cwd=tmp_path)

    pair = "mesh:2x1+drafts=off / mesh:1x1+drafts=off"
    assert result["ratios"]["tokens_per_s"][pair]["median"] > 0
