"""The command line as a process: what it prints, how it exits, what it imports."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.processes import command

COMMANDS = ["up", "node", "serve", "run", "chat", "status", "pull", "simulate", "bench"]


def test_help_lists_every_command_and_examples(tmp_path: Path):
    told = command("--help", cwd=tmp_path)

    assert told.returncode == 0
    assert all(name in told.stdout for name in COMMANDS)
    assert "Examples" in told.stdout


@pytest.mark.parametrize("words", [[], *([c] for c in COMMANDS), ["bench", "flatness"]])
def test_help_loads_none_of_the_slow_libraries(words: list[str], tmp_path: Path):
    """Half a second is impossible with torch in it: the cause is tested, not the clock."""
    program = f"""
import sys
sys.argv = ["meshnet", *{words!r}, "--help"]
from meshnet.cli.main import main
try:
    main()
except SystemExit:
    pass
slow = {{"torch", "transformers", "fastapi", "starlette", "aiohttp", "httpx2", "uvicorn", "numpy"}}
print("LOADED", sorted(slow & set(sys.modules)))
"""
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip

    assert "Usage" in told.stdout
    assert "LOADED []" in told.stdout


def test_version_is_the_packages(tmp_path: Path):
    from meshnet import __version__

    assert command("--version", cwd=tmp_path).stdout == f"meshnet {__version__}\n"


def test_wrong_usage_exits_with_two(tmp_path: Path):
    told = command("run", "--nodes", "none", "hello", cwd=tmp_path)

    assert told.returncode == 2
    assert "--nodes" in told.stderr


def test_a_failure_is_one_line_without_a_traceback(tmp_path: Path):
    told = command("status", "--url", "http://127.0.0.1:1", cwd=tmp_path)

    assert told.returncode == 1
    assert told.stderr.startswith("error: nothing answers at http://127.0.0.1:1. Start a mesh")
    assert "Traceback" not in told.stderr


@pytest.mark.parametrize("place", ["before", "behind"])
def test_debug_adds_the_traceback(place: str, tmp_path: Path):
    words = ["status", "--url", "http://127.0.0.1:1"]
    words = ["--debug", *words] if place == "before" else [*words, "--debug"]

    told = command(*words, cwd=tmp_path)

    assert told.returncode == 1
    assert "Traceback" in told.stderr


def test_a_bad_setting_is_named_with_its_source(tmp_path: Path):
    told = command("status", cwd=tmp_path, MESHNET_PORT="many")

    assert told.returncode == 1
    assert "MESHNET_PORT: expected" in told.stderr


def test_set_knows_only_settings(tmp_path: Path):
    told = command("status", "--set", "kv_max_session=2", cwd=tmp_path)

    assert told.returncode == 2
    assert "kv_max_sessions" in told.stderr
