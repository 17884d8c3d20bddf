"""The `llm` program with our address in its list of models."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

KEY, URL = os.environ["MESHNET_SUITE_KEY"], os.environ["MESHNET_SUITE_URL"]
ASK = "What is the capital of France?"
MODELS = f"""
- model_id: mesh
  model_name: default
  api_base: "{URL}/v1"
  api_key_name: mesh
"""


@pytest.fixture
def llm(tmp_path):
    (tmp_path / "extra-openai-models.yaml").write_text(MODELS)
    (tmp_path / "keys.json").write_text(json.dumps({"mesh": KEY}))

    def run(*words):
        done = subprocess.run(
            [Path(sys.executable).with_name("llm"), *words],
            env={**os.environ, "LLM_USER_PATH": str(tmp_path)},
            capture_output=True, text=True, timeout=180, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    return run


def test_models(llm):
    assert "mesh" in llm("models", "list")


def test_chat(llm):
    assert "Paris" in llm("-m", "mesh", "--no-stream", "-o", "temperature", "0", ASK)


def test_streamed_chat(llm):
    assert "Paris" in llm("-m", "mesh", "-o", "temperature", "0", ASK)


def test_second_turn(llm):
    llm("-m", "mesh", "-o", "temperature", "0", ASK)
    assert llm("-c", "-o", "max_tokens", "12", "And of Italy?").strip()
