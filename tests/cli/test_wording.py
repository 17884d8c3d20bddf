"""Errors name what the user wrote, and what to write instead."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console
from tests.models import tiny_llama
from tests.processes import command

from meshnet.cli import options
from meshnet.cli.report import NodeReport, print_table
from meshnet.cli.settings import SettingsError, load_settings
from meshnet.core.vocabulary import ModelError
from meshnet.engine.checkpoint import read_config
from meshnet.engine.models.pull import NoProgress, resolve


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def test_a_bad_assignment_is_named_as_it_was_written():
    with pytest.raises(SettingsError, match=r"^--set kv_max_bytes: expected bytes"):
        options.settings_from({}, None, ["kv_max_bytes=-1"])


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("device", "tpu", "expected cpu, cuda or cuda:N, got 'tpu'"),
        ("model", "", "expected at least 1 character"),
        ("kv_max_bytes", 10**23, "expected less than or equal to 9007199254740991"),
    ],
)
def test_what_no_node_could_use_is_refused_at_the_start(name: str, value: object, told: str):
    """More bytes than JSON carries exactly made a node that no gateway could read."""
    with pytest.raises(SettingsError, match=told):
        load_settings({name: value})


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["run", "hi", "--nodes", "5"], "error: --nodes: expected 1 to 4 for 4 layers, got 5\n"),
        (["node", "--layers", "3"], "error: --layers: expected A-B (half-open"),
        (["up", "--split", "9"], "error: --split: expected ascending cuts from 1 to 3"),
    ],
)
def test_a_flag_is_named_once(
    arguments: list[str], told: str, tiny_model_dir: Path, tmp_path: Path
):
    failed = command(*arguments, "--model", str(tiny_model_dir), cwd=tmp_path)

    assert failed.returncode == 1
    assert failed.stderr.startswith(told)


def test_a_model_is_named_once(tmp_path: Path):
    failed = command("pull", "one", "--model", "two", cwd=tmp_path)

    assert failed.returncode == 2
    assert "either NAME or --model" in failed.stderr


def test_a_file_of_another_kind_is_told_apart_from_no_file(tmp_path: Path):
    (tmp_path / "model.bin").write_bytes(b"x")

    with pytest.raises(ModelError, match=r"^model.bin: a file, but not a .gguf file"):
        resolve("model.bin", tmp_path, NoProgress())


def test_an_unknown_architecture_is_told_in_one_line_of_ours(tmp_path: Path):
    """The library advises to upgrade itself, but its version is pinned."""
    model = tiny_llama(tmp_path / "model")
    config = model / "config.json"
    config.write_text(config.read_text().replace('"llama"', '"another"'))

    with pytest.raises(ModelError, match=r"config.json: model type 'another' is not known") as told:
        read_config(model)
    assert "\n" not in str(told.value)
    assert "pip" not in str(told.value)


def reports() -> list[NodeReport]:
    return [
        NodeReport(
            "node-1", "http://127.0.0.1:40001", 12345, (0, 10), "int8", 254_900_000, 1, 0, 1.0
        ),
        NodeReport(
            "node-2", "http://127.0.0.1:40002", 12346, (10, 30), "int8", 254_900_000, 1, 0, 3.0
        ),
    ]


def test_layers_are_shown_as_the_layers_option_takes_them():
    out = io.StringIO()

    print_table(Console(file=out, width=100), reports(), urls=False)

    assert "0-10" in out.getvalue()
    assert "10-30" in out.getvalue()
    assert "254.9 MB int8" in out.getvalue()


def test_a_terminal_too_narrow_for_the_table_gets_one_fact_a_line():
    out = io.StringIO()

    print_table(Console(file=out, width=30), reports(), urls=True)

    assert "…" not in out.getvalue()
    assert "127.0.0.1:40002" in out.getvalue()
    assert max(map(len, out.getvalue().splitlines())) <= 30
