"""Commands that start processes, on a tiny random model: what a newcomer does, end to end."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.processes import MeshnetProcess, command, meshnet

NODE_FIELDS = {
    "name", "url", "pid", "layers", "weights", "weight_bytes", "bytes_read", "kv_bytes",
    "compute_s",
}  # fmt: skip


def greedy_reference(path: Path, prompt: str, tokens: int) -> list[int]:
    """What transformers itself generates, unsplit."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}],
        add_generation_prompt=True, return_tensors="pt", return_dict=False,
    )  # fmt: skip
    made = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=tokens,
        eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    return [int(token) for token in made[0, ids.shape[1] :]]


def test_run_answers_like_the_unsplit_model_and_tells_who_did_what(
    tiny_model_dir: Path, tmp_path: Path
):
    told = command(
        "run", "Hello", "--model", str(tiny_model_dir), "--nodes", "2", "--max-tokens", "12",
        "--json", cwd=tmp_path, MESHNET_MESH_TOKEN="between us",
    )  # fmt: skip

    assert told.returncode == 0, told.stderr
    result = json.loads(told.stdout)
    assert set(result) == {"text", "token_ids", "usage", "nodes", "timing"}
    reference = greedy_reference(tiny_model_dir, "Hello", 12)
    assert result["token_ids"] == reference[: len(result["token_ids"])]
    assert result["usage"]["completion_tokens"] == len(result["token_ids"]) > 0
    assert set(result["timing"]) == {"ttft_s", "tokens_per_s"}
    assert [set(node) for node in result["nodes"]] == [NODE_FIELDS] * 2
    assert [node["layers"] for node in result["nodes"]] == [[0, 2], [2, 4]]
    assert all(node["kv_bytes"] > 0 and node["compute_s"] > 0 for node in result["nodes"])
    stored = sum(file.stat().st_size for file in tiny_model_dir.glob("*.safetensors"))
    assert all(0 < node["bytes_read"] < stored for node in result["nodes"])


@pytest.fixture(scope="module")
def mesh(
    tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MeshnetProcess]:
    cache = tmp_path_factory.mktemp("cache")
    with meshnet(
        "up", "--model", str(tiny_model_dir), "--split", "1", "--port", "0", "--json-ready",
        MESHNET_CACHE_DIR=str(cache),
    ) as process:  # fmt: skip
        yield process


def status(mesh: MeshnetProcess, tmp_path: Path) -> dict[str, Any]:
    told = command("status", "--url", mesh.url, "--json", cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    return json.loads(told.stdout)


def test_status_shows_the_nodes_of_a_running_mesh(
    mesh: MeshnetProcess, tiny_model_dir: Path, tmp_path: Path
):
    told = status(mesh, tmp_path)

    assert (told["model"], told["ready"]) == (tiny_model_dir.name, True)
    assert [set(node) for node in told["nodes"]] == [NODE_FIELDS] * 2
    assert [node["layers"] for node in told["nodes"]] == [[0, 1], [1, 4]]
    assert len({node["pid"] for node in told["nodes"]} | {mesh.pid}) == 3


def test_chat_answers_every_line_of_its_input(mesh: MeshnetProcess, tmp_path: Path):
    told = command(
        "chat", "--url", mesh.url, "--max-tokens", "8", "--temperature", "0",
        cwd=tmp_path, stdin="one\n/reset\none\n/quit\nnever\n",
    )  # fmt: skip

    assert told.returncode == 0, told.stderr
    first, second = told.stdout[: len(told.stdout) // 2], told.stdout[len(told.stdout) // 2 :]
    assert first == second != ""


def test_status_tells_how_fast_answers_came(mesh: MeshnetProcess, tmp_path: Path):
    body = {"model": "default", "prompt": "one", "max_tokens": 12, "ignore_eos": True}
    httpx2.post(f"{mesh.url}/v1/completions", json=body, timeout=60).raise_for_status()

    told = status(mesh, tmp_path)["answers"]
    shown = command("status", "--url", mesh.url, cwd=tmp_path)

    assert told["answers"] >= 1
    assert told["tokens_per_s"] > 0
    assert f"last {told['answers']} answers: {told['tokens_per_s']:.1f} tokens/s" in shown.stdout


def test_a_killed_node_comes_back_at_its_url(mesh: MeshnetProcess, tmp_path: Path):
    before = status(mesh, tmp_path)["nodes"][1]

    os.kill(before["pid"], signal.SIGKILL)

    # Each look takes a process's time; the suite's time limit bounds the wait.
    while True:
        now = status(mesh, tmp_path)
        if now["ready"] and [n["pid"] for n in now["nodes"] if n["url"] == before["url"]] != [
            before["pid"]
        ]:
            break
    assert [node["url"] for node in now["nodes"]].count(before["url"]) == 1


def test_a_mesh_that_is_asked_to_stop_ends_well(tiny_model_dir: Path, tmp_path: Path):
    process = MeshnetProcess(
        ["up", "--model", str(tiny_model_dir), "--nodes", "1", "--port", "0", "--json-ready"],
        {"MESHNET_CACHE_DIR": str(tmp_path)},
    )
    try:
        process.wait_ready()
        pid = status(process, tmp_path)["nodes"][0]["pid"]
    finally:
        code = process.stop()

    assert code == 0
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["node", "--layers", "0-2", "--host", "0.0.0.0"], "needs MESHNET_MESH_TOKEN"),
        (["up", "--host", "0.0.0.0"], "needs MESHNET_API_KEYS"),
        (["serve", "--node", "http://127.0.0.1:1", "--host", "::"], "needs MESHNET_API_KEYS"),
        (["serve", "--node", "not a url"], "--node: expected a URL"),
        (["serve", "--host", "::"], "needs MESHNET_MESH_TOKEN"),
        (["serve", "--registry", "not a url"], "--registry: expected a URL"),
        (["node", "--join", "nowhere"], "--join: expected a URL"),
        (["node", "--layers", "0-2", "--advertise", "http://a:1"], "--advertise: expected --join"),
        (["node", "--join", "http://127.0.0.1:1", "--advertise", "a:1"], "--advertise: expected"),
        (["node", "--layers", "3-1"], "--layers: expected 0 <= start < stop"),
        (["node", "--shard", "model"], "--shard: expected MODEL:A-B"),
        (["node", "--layers", "0-9"], "the model has 4 layers"),
        (["run", "hello", "--split", "4"], "--split: expected"),
        (["run", "hello", "--nodes", "5"], "--nodes: expected 1 to 4"),
    ],
)
def test_what_cannot_be_served_is_told_in_one_line(
    arguments: list[str], told: str, tiny_model_dir: Path, tmp_path: Path
):
    words = [*arguments[:1], "--model", str(tiny_model_dir), *arguments[1:]]

    failed = command(*words, cwd=tmp_path)

    assert failed.returncode == 1
    assert told in failed.stderr
    assert "Traceback" not in failed.stderr


def test_a_taken_port_is_told_before_anything_is_loaded(
    mesh: MeshnetProcess, tiny_model_dir: Path, tmp_path: Path
):
    port = mesh.url.rpartition(":")[2]

    failed = command("up", "--model", str(tiny_model_dir), "--port", port, cwd=tmp_path)

    assert failed.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in failed.stderr
    assert "starting" not in failed.stderr
