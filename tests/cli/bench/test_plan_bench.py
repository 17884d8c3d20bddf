"""Meshes and layouts of `bench plan`, and what is concluded from what they did."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshnet.cli.bench.picture import picture
from meshnet.cli.bench.plan import plan_report, row_of, summary
from meshnet.cli.bench.plan_draw import alone, draw_meshes
from meshnet.cli.plan_file import read_file
from meshnet.core.generation.chunking import Chunking
from meshnet.core.planning import Wanted, predict
from meshnet.core.vocabulary import Hop, LayerRange, WeightFormat, check_cover
from meshnet.engine.model_shape import model_shape


@given(seed=st.integers(0, 2**32), layers=st.integers(4, 80))
@settings(derandomize=True, deadline=None, max_examples=50)
def test_drawn_layouts_cover_the_layers_on_different_machines_of_their_mesh(seed, layers):
    for mesh in draw_meshes(seed, 3, layers):
        every = set(range(len(mesh.machines)))
        whole, some = mesh.layouts
        assert set(whole.machines) == every
        assert set(some.machines) <= every
        for layout in mesh.layouts:
            check_cover(layout.layers)
            assert layout.layers[-1].stop == layers
            assert len(set(layout.machines)) == len(layout.machines) == len(layout.layers) >= 2


def test_a_seed_draws_the_same_and_another_draws_otherwise():
    assert draw_meshes(7, 5, 30) == draw_meshes(7, 5, 30)
    assert draw_meshes(7, 5, 30) != draw_meshes(8, 5, 30)


def test_a_machine_alone_runs_all_layers():
    assert alone(2, 30).layers == (LayerRange(0, 30),)


def row(mesh: int, kind: str, rate: float, ratio: float) -> dict[str, object]:
    return {
        "mesh": mesh,
        "layout": f"{mesh} {kind}",
        "kind": kind,
        "tokens_per_s": {"median": rate},
        "tokens_per_s_ratio": ratio,
        "ttft_s_ratio": 1.0,
    }


def test_a_plan_is_held_against_the_best_layout_of_its_own_mesh():
    rows = [
        row(1, "drawn", 10.0, 1.1),
        row(1, "planned", 19.0, 0.9),
        row(1, "alone", 20.0, 0.8),
        row(2, "planned", 5.0, 1.0),
    ]

    told = summary(rows)

    assert told["chosen_over_best"] == {"1": pytest.approx(0.95), "2": 1.0}
    assert told["median_error"] == pytest.approx(0.1)
    assert told["worst_error"] == pytest.approx(0.2)
    assert told["met"]


@pytest.mark.parametrize(
    "changed",
    [
        row(1, "alone", 22.0, 1.0),  # the plan is too slow beside it
        row(1, "alone", 10.0, 1.4),  # one prediction is far off
        row(1, "planned", 20.0, 0.8),  # most are off
    ],
)
def test_each_target_alone_can_be_missed(changed: dict[str, object]):
    rows = [row(1, "planned", 19.0, 0.84), changed, row(2, "planned", 5.0, 1.0)]

    assert not summary(rows)["met"]


def test_a_row_holds_what_was_predicted_against_what_was_measured_and_goes_into_a_file(
    tiny_model_dir: Path,
):
    shape = model_shape(tiny_model_dir, WeightFormat.INT8)
    mesh = read_file(Path(__file__).resolve().parents[3] / "examples" / "nodes.json")
    hops = [Hop(next(iter(mesh.nodes)), LayerRange(0, 4))]
    predicted = predict(hops, shape, mesh, Wanted(64, prompt=32), cutting=Chunking().ends)
    rate = predicted.tokens_per_s

    made = row_of(predicted, mesh, [{"tokens_per_s": rate * 2, "ttft_s": predicted.first_s}] * 3)

    assert made["tokens_per_s_ratio"] == pytest.approx(0.5, rel=1e-4)
    assert made["ttft_s_ratio"] == pytest.approx(1.0, rel=1e-4)
    assert json.loads(json.dumps(made))["measured"]["nodes"][0]["node"] == hops[0].node


def test_the_page_tells_each_layout_and_whether_the_targets_were_met(tmp_path: Path):
    rows = [
        row(1, "planned", 5.0, 1.0)
        | {"machines": "1x | 2x", "predicted_tokens_per_s": 5.0, "predicted_ttft_s": 1.0}
        | {"ttft_s": {"median": 1.0}}
    ]

    page = plan_report({"rows": rows, "seed": 9, "summary": summary(rows)})
    drawn = picture("plan", page.panels, tmp_path / "plan.svg")

    assert "1 planned" in page.sections[0]
    assert "1x | 2x" in page.sections[1]
    assert page.sections[1].endswith("Met.")
    assert drawn is not None
    assert drawn.stat().st_size > 0
