"""Result files: nothing is ever overwritten, and each says what was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshnet.cli.bench.picture import ranked
from meshnet.cli.bench.report import Report
from meshnet.cli.bench.results import (
    format_told,
    provenance,
    result_path,
    write_all,
    write_result,
)
from meshnet.cli.settings import load_settings

REPORT = Report("told", ("one section",), (ranked("bars", [("a", 1.0, "C0")]),))


def test_a_second_result_of_a_day_is_numbered(tmp_path: Path):
    paths = []
    for value in range(3):
        paths.append(result_path(tmp_path, "org/toy", "decode"))
        write_result(paths[-1], {"value": value})

    assert [path.name.removeprefix(paths[0].name) for path in paths] == ["", "-2", "-3"]
    assert "org-toy" in paths[0].name
    values = [json.loads(Path(f"{path}.json").read_text())["value"] for path in paths]
    assert values == [0, 1, 2]


def test_a_page_alone_keeps_its_name_too(tmp_path: Path):
    first = result_path(tmp_path, "toy", "decode")
    Path(f"{first}.md").write_text("written by hand")

    assert result_path(tmp_path, "toy", "decode") != first


def test_other_scenarios_and_models_do_not_make_numbers(tmp_path: Path):
    write_result(result_path(tmp_path, "toy", "decode"), {})

    assert result_path(tmp_path, "toy", "prefill").name.endswith("prefill")
    assert result_path(tmp_path, "toys", "decode").name.endswith("decode")


def test_a_result_that_is_there_is_never_replaced(tmp_path: Path):
    path = result_path(tmp_path, "toy", "decode")
    write_result(path, {"value": 1})

    with pytest.raises(FileExistsError):
        write_result(path, {"value": 2})
    assert json.loads(Path(f"{path}.json").read_text()) == {"value": 1}


def test_a_result_has_three_files(tmp_path: Path):
    result = {**provenance("toy", "int8", 1), "scenario": "shard"}

    files = write_all(result, REPORT, result_path(tmp_path, "toy", "shard"))

    assert sorted(file.suffix for file in files) == [".json", ".md", ".svg"]
    assert all(file.stat().st_size for file in files)
    page = next(file for file in files if file.suffix == ".md").read_text()
    assert "one section" in page
    assert "threads of a process: 1" in page


@pytest.mark.parametrize(
    ("weights", "device", "told"),
    [
        ("auto", "cpu", "int8"),
        ("auto", "cuda", "bf16"),
        ("fp16", "cuda", "fp16"),
        ("int8-fast", "cpu", "int8-fast"),
    ],
)
def test_the_format_of_weights_is_told_by_its_name(weights: str, device: str, told: str):
    assert format_told(load_settings({"weights": weights, "device": device})) == told
