"""Vercel's AI SDK: each case is a function of `ai_sdk/cases.mjs`."""

import json
import os
import subprocess
from pathlib import Path

HERE = Path(__file__).parent / "ai_sdk"


def run(case):
    # A module finds its packages beside itself.
    home = Path(os.environ["MESHNET_SUITE_HOME"])
    (home / "cases.mjs").write_text((HERE / "cases.mjs").read_text())
    done = subprocess.run(
        ["node", home / "cases.mjs", case],
        capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_chat():
    told = run("chat")
    assert "Paris" in told["text"]
    assert told["tokens"] > 1


def test_streamed_chat():
    told = run("streamed_chat")
    assert told["pieces"] > 1
    assert "Paris" in told["text"]


def test_structured_output():
    assert run("structured_output") in ({"right": True}, {"right": False})


def test_tool_calls():
    told = run("tool_calls")
    assert told["name"] == "weather"
    assert set(told["input"]) == {"town"}


def test_errors_of_their_kinds():
    assert run("errors_of_their_kinds") == {"wrong key": 401, "nobody": 404, "temperature": 400}
