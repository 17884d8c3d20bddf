"""What a running mesh was predicted to do, beside what its last answers did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from meshnet.cli.plan_file import read_file
from meshnet.cli.plan_running import Live, present, running
from meshnet.core.generation.chunking import Chunking
from meshnet.core.planning import ModelShape, Wanted, predict
from meshnet.core.protocol.fields import Fields
from meshnet.core.vocabulary import BadField, Hop, LayerRange, ModelId, NodeId, WeightFormat
from meshnet.engine.model_shape import model_shape

MESH = read_file(Path(__file__).resolve().parents[2] / "examples" / "nodes.json")
A, B = sorted(MESH.nodes)
CUTTING = Chunking().ends
WANTED = Wanted(64, prompt=32)


@pytest.fixture(scope="module")
def shape(tiny_model_dir: Path) -> ModelShape:
    return model_shape(tiny_model_dir, WeightFormat.INT8, model=ModelId("tiny"))


def told(layers: dict[NodeId, tuple[int, int]], answers: Any) -> Fields:
    nodes = [{"url": node, "layers": list(held)} for node, held in layers.items()]
    return Fields.of({"nodes": nodes, "answers": answers}, "mesh")


ANSWERS = {"answers": 7, "tokens_per_s": 12.5, "first_s": 0.2}


def test_the_layout_of_now_is_predicted_and_held_against_the_last_answers(shape: ModelShape):
    hops = (Hop(A, LayerRange(0, 1)), Hop(B, LayerRange(1, 4)))
    expected = predict(hops, shape, MESH, WANTED, cutting=CUTTING)

    now = running(
        told({A: (0, 1), B: (1, 4)}, ANSWERS), shape, MESH, WANTED, cutting=CUTTING, chain=True
    )

    assert now is not None
    assert now.predicted_tokens_per_s == pytest.approx(expected.tokens_per_s)
    assert (now.tokens_per_s, now.answers) == (12.5, 7)
    assert str(now).endswith("predicted, 12.5 in the last 7 answers")


@pytest.mark.parametrize(
    ("layers", "answers"),
    [
        ({A: (0, 1), B: (1, 4)}, None),  # nothing was answered yet
        ({A: (0, 1), B: (2, 4)}, ANSWERS),  # a layer is missing
        ({A: (0, 1), B: (0, 0)}, ANSWERS),  # a node holds nothing yet
        ({A: (0, 1), NodeId("c"): (1, 4)}, ANSWERS),  # a node has not measured itself
    ],
)
def test_what_cannot_be_compared_is_not(shape: ModelShape, layers, answers):
    assert running(told(layers, answers), shape, MESH, WANTED, cutting=CUTTING, chain=True) is None


def test_nonsense_of_a_gateway_is_refused_by_field(shape: ModelShape):
    with pytest.raises(BadField, match="answers"):
        running(told({A: (0, 4)}, {"answers": 0}), shape, MESH, WANTED, cutting=CUTTING, chain=True)


def test_of_nodes_that_hold_the_same_the_one_that_gets_furthest_runs():
    held = {A: LayerRange(0, 3), B: LayerRange(0, 2), NodeId("c"): LayerRange(1, 6)}

    assert present(held, 6) == (Hop(A, LayerRange(0, 3)), Hop(NodeId("c"), LayerRange(3, 6)))


def test_people_are_told_which_nodes_would_better_hold_something_else():
    held = {A: LayerRange(0, 1), B: LayerRange(1, 4)}

    moved = Live(None, held, {A: LayerRange(0, 4), B: LayerRange(1, 4)})
    staying = Live(None, held, held)

    assert str(moved) == f"to change: {A} to layers 0-4"
    assert moved.values() == {"running": None, "changes": {A: [0, 4]}}
    assert "may stay" in str(staying)
    assert staying.values()["changes"] == {}
