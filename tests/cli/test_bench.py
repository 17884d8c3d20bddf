"""The measurements on a tiny model: not their figures, but that they compare what they say."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.processes import command

pytestmark = pytest.mark.slow


def bench(*arguments: str, model: Path, cwd: Path) -> dict[str, Any]:
    told = command(
        "bench", *arguments, "--model", str(model), "--out", str(cwd / "results"), "--json", cwd=cwd
    )
    assert told.returncode == 0, told.stderr
    return json.loads(told.stdout)


def test_flatness_counts_the_same_work_early_and_late(tiny_model_dir: Path, tmp_path: Path):
    result = bench("flatness", "--tokens", "160", model=tiny_model_dir, cwd=tmp_path)

    assert result["wire"]["tensor_bytes_equal"]
    assert result["operators"]["outside_attention_equal"]
    early, late = result["wire"]["by_position"].values()
    assert early["node-2"]["tensor_bytes_out"] == 64 * 4
    assert early.keys() == late.keys() == {"node-1", "node-2"}
    assert len(result["cached"]) == 3
    assert result["stateless"][0]["position"] == 1
    written = sorted(path.suffix for path in (tmp_path / "results").iterdir())
    assert written == [".json", ".svg"]


def test_split_tax_compares_equal_answers_in_pairs(tiny_model_dir: Path, tmp_path: Path):
    result = bench(
        "split-tax", "--tokens", "24", "--rounds", "2", model=tiny_model_dir, cwd=tmp_path
    )

    assert set(result["tokens_per_s"]) == {
        "2 nodes x 1 thread", "2 nodes x 2 threads", "1 node x 1 thread", "1 node x 2 threads",
    }  # fmt: skip
    assert result["ratios"]["2 nodes x 1 thread / 1 node x 2 threads"]["median"] > 0
