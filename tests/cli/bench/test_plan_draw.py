"""Meshes and layouts of `bench plan`, and what is concluded from what they did."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshnet.cli.bench.plan import summary
from meshnet.cli.bench.plan_draw import alone, draw_meshes
from meshnet.core.vocabulary import LayerRange, check_cover


@given(seed=st.integers(0, 2**32), layers=st.integers(4, 80))
@settings(derandomize=True, deadline=None, max_examples=50)
def test_drawn_layouts_cover_the_layers_on_different_machines_of_their_mesh(seed, layers):
    for mesh in draw_meshes(seed, 3, layers):
        check_cover(mesh.layout.layers)
        assert mesh.layout.layers[-1].stop == layers
        assert sorted(mesh.layout.machines) == list(range(len(mesh.machines)))


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
