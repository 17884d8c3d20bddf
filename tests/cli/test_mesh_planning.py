"""The first layout of a mesh comes from the planner, if it can make one in time."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from meshnet.cli.mesh_planning import planned
from meshnet.cli.plan_file import read_file
from meshnet.cli.settings import Settings, Weights
from meshnet.core.planning import Mesh

NODES = Path(__file__).parents[2] / "examples" / "nodes.json"


def settings(model: Path, cache: Path) -> Settings:
    return Settings(model=str(model), weights=Weights.INT8, cache_dir=cache)


async def test_the_layers_of_a_plan_follow_each_other(tiny_model_dir: Path, tmp_path: Path):
    mesh = read_file(NODES)

    ranges = await planned(settings(tiny_model_dir, tmp_path), mesh)

    held = sorted(ranges.values())
    assert ranges.keys() <= mesh.nodes.keys()
    assert (held[0].start, held[-1].stop) == (0, 4)
    assert all(before.stop == after.start for before, after in pairwise(held))


async def test_where_nobody_measured_or_nothing_fits_there_is_no_plan(
    tiny_model_dir: Path, tmp_path: Path
):
    mesh = read_file(NODES)
    small = {node: replace(each, memory_bytes=1) for node, each in mesh.nodes.items()}

    assert await planned(settings(tiny_model_dir, tmp_path), Mesh({})) == {}
    assert await planned(settings(tiny_model_dir, tmp_path), replace(mesh, nodes=small)) == {}


async def test_a_planner_that_takes_too_long_is_ended(tiny_model_dir: Path, tmp_path: Path):
    mesh = read_file(NODES)

    assert await planned(settings(tiny_model_dir, tmp_path), mesh, deadline_s=0.0) == {}


async def test_a_planner_that_cannot_be_started_is_no_plan(
    tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Else a full disk would end the gateway when nodes join."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))

    assert await planned(settings(tiny_model_dir, tmp_path), read_file(NODES)) == {}
