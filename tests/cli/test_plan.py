"""`meshnet plan`: a layout and its speed, from a configuration and what nodes measured."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from tests.core.planning.meshes import Draw, layer_of, node_of, shape_of, whole_chunks
from tests.processes import command

from meshnet.cli.app import build_app
from meshnet.cli.plan_file import LIMITS, mesh_of, mesh_values, read_file
from meshnet.cli.plan_shown import print_plan
from meshnet.core.planning import Attention, Mesh, Plan, Wanted, plan
from meshnet.core.protocol.fields import print_object, read_object
from meshnet.core.vocabulary import BadField, MeshnetError, NodeId

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "nodes.json"


def test_the_example_of_the_docs_is_planned(tiny_model_dir: Path, tmp_path: Path):
    told = command(
        "plan", "--model", str(tiny_model_dir), "--nodes", str(EXAMPLE), "--context", "64",
        "--sessions", "2", "--json", cwd=tmp_path,
    )  # fmt: skip

    assert told.returncode == 0, told.stderr
    made = json.loads(told.stdout)
    assert made["weights"] == "int8"
    assert (made["context"], made["sessions"], made["prompt"]) == (64, 2, 64)
    assert [hop["node"] for hop in made["hops"]] == ["http://10.0.0.1:9001"]
    assert [left["node"] for left in made["left_out"]] == ["http://10.0.0.2:9001"]
    parts = ("way_s", "step_s", "layers_s", "reading_s", "products_s", "attention_s")
    sums = [sum(hop[part] for part in parts) for hop in made["hops"]]
    assert sums == pytest.approx([hop["token_s"] for hop in made["hops"]])
    assert made["token_s"] == pytest.approx(sum(sums) + made["back_s"] + made["head_s"])
    assert made["tokens_per_s"] == pytest.approx(1 / made["token_s"])
    assert made["best"]


def test_people_are_told_the_layout_the_memory_the_speed_and_who_is_left_out(
    tiny_model_dir: Path, tmp_path: Path
):
    told = command(
        "plan", "--model", str(tiny_model_dir), "--nodes", str(EXAMPLE), "--context", "64",
        cwd=tmp_path, COLUMNS="80",
    )  # fmt: skip

    assert told.returncode == 0, told.stderr
    first, titles, hop, cache, predicted, left = told.stdout.splitlines()
    assert "in int8, 1 session(s) of 64 tokens, over 1 of 2 nodes" in first
    assert titles.split() == [
        "node", "layers", "weights", "KV", "cache", "room", "token,", "ms", "way,", "ms"
    ]  # fmt: skip
    assert hop.split()[:2] == ["http://10.0.0.1:9001", "0-4"]
    kv_token_bytes = Attention(layers=4, kv_heads=2, head_dim=16, element_bytes=4).token_bytes
    assert cache.startswith(f"KV cache: {kv_token_bytes:,} bytes a token, ")
    assert predicted.startswith("predicted: ")
    assert "tokens/s behind 64 tokens, first token in" in predicted
    assert left.startswith("left out: http://10.0.0.2:9001: with it a token would take ")


def changed(tmp_path: Path, change: Any) -> Path:
    values = json.loads(EXAMPLE.read_text(encoding="utf-8"))
    change(values)
    path = tmp_path / "nodes.json"
    path.write_text(json.dumps(values), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda v: v.update(nodes=[]), "nodes: expected at least one node with a capacity"),
        (lambda v: v.pop("nodes"), "nodes: expected an array"),
        (lambda v: v["nodes"][0].pop("node"), "node: expected a string"),
        (lambda v: v["nodes"][1].update(node=v["nodes"][0]["node"]), "no other node has"),
        (lambda v: v["nodes"][0]["capacity"].update(memory_bytes="much"), "capacity.memory_bytes"),
        (lambda v: v["nodes"][0]["capacity"].update(threads=0), "capacity"),
        (lambda v: v["head"].update(token_s=-1), "head.token_s: expected at least 0 seconds"),
    ],
)
def test_a_file_that_says_something_wrong_is_refused_by_field(change, named, tmp_path):
    path = changed(tmp_path, change)

    with pytest.raises(BadField) as told:
        read_file(path)

    assert named in str(told.value)


@settings(derandomize=True, deadline=None, max_examples=100)
@given(st.integers(0, 10_000))
def test_a_mesh_that_was_written_is_read_as_it_was(seed):
    mesh = Draw(seed).mesh

    assert mesh_of(read_object(print_object(mesh_values(mesh)), "nodes", LIMITS)) == mesh


def test_a_file_that_is_not_there_is_told_in_one_line(tiny_model_dir: Path, tmp_path: Path):
    told = command("plan", "--model", str(tiny_model_dir), "--nodes", "nowhere.json", cwd=tmp_path)

    assert told.returncode == 1
    assert "nowhere.json: No such file" in told.stderr
    assert told.stderr.count("\n") == 1


def refused(*arguments: str) -> str:
    """Why a plan is refused. How a process tells such an error: test_main.py."""
    with pytest.raises(MeshnetError) as error:
        build_app()(["plan", *arguments])
    return str(error.value)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--nodes", str(EXAMPLE), "--context", "1000000"], "--context: expected at most"),
        (["--nodes", str(EXAMPLE), "--context", "9", "--prompt", "10"], "prompt: expected 1 to 9"),
        (["--nodes", str(EXAMPLE), "--weights", "bf16"], "fast it is in bf16"),
        (["--url", "http://127.0.0.1:1"], "nothing answers at http://127.0.0.1:1"),
    ],
)
def test_what_cannot_be_planned_is_told_in_one_line(
    arguments: list[str], named: str, tiny_model_dir: Path
):
    told = refused("--model", str(tiny_model_dir), *arguments)

    assert named in told
    assert "\n" not in told


def test_a_model_that_fits_nowhere_is_told_with_its_bytes(tiny_model_dir: Path, tmp_path: Path):
    """Pit A89."""

    def shrink(values: Any) -> None:
        for node in values["nodes"]:
            node["capacity"]["memory_bytes"] = 1000

    path = changed(tmp_path, shrink)

    told = refused("--model", str(tiny_model_dir), "--nodes", str(path))

    assert "the nodes have 2,000" in told


def test_of_many_nodes_left_out_the_first_are_named_and_a_missed_plan_is_owned_up_to():
    """Addresses in brackets are no markup."""
    nodes = {NodeId(f"http://[fe80::{at}]:9001"): node_of(f"m{at}") for at in range(20)}
    shape, wanted = shape_of([layer_of()] * 4), Wanted(256, 2, prompt=100)
    made = plan(shape, Mesh(nodes), wanted, cutting=whole_chunks)
    assert isinstance(made, Plan)
    console = Console(file=io.StringIO(), width=140)

    print_plan(console, shape, wanted, replace(made, best=False))

    told = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert told[2].startswith("http://[fe80::")
    assert told[5].startswith("all 2 sessions: ")
    assert told[6] == "among so many nodes a better plan may have been missed"
    assert sum(line.startswith("left out: http://[fe80::") for line in told) == 16
    assert told[-1] == "left out: 3 others (--json names them)"
