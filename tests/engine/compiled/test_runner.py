"""A compiled step answers like the plain forward, and runs where it was seen to."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.families import LAYERS, save_family
from tests.runners import (
    CONTEXT,
    WHOLE,
    answer_of,
    apart_and_together,
    entering_of,
    loaded_in,
    operators_of_a_layer,
)

import meshnet.engine
from meshnet.core.vocabulary import LayerRange, WeightFormat
from meshnet.engine.compiled.runner import CompiledRunner
from meshnet.engine.lean import LeanRunner
from meshnet.engine.loading import load_shard
from meshnet.engine.runner import Passing, Runner, Segment, positions_of
from meshnet.engine.selftest import CLOSENESS, Closeness, distance

FAMILIES = ("llama", "llama-tied", "qwen2", "qwen2-swa", "qwen3", "mistral-swa", "seed_oss")
FORMATS = (WeightFormat.INT8, WeightFormat.INT8_FAST)


def _runner(
    path: Path,
    weights: WeightFormat,
    layers: LayerRange = WHOLE,
    *,
    compiled: Closeness | None = None,
) -> Runner:
    runner = loaded_in(path, weights, layers).lean(compiled=compiled)
    assert runner is not None
    return runner


def _compiled(
    path: Path, weights: WeightFormat = WeightFormat.INT8, layers: LayerRange = WHOLE
) -> CompiledRunner:
    runner = _runner(path, weights, layers, compiled=CLOSENESS[weights])
    assert isinstance(runner, CompiledRunner)
    return runner


def _saved(path: Path, family: str) -> Path:
    return save_family(path, family, max_position_embeddings=CONTEXT)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("weights", FORMATS, ids=lambda weights: weights.value)
def test_a_compiled_step_answers_like_the_plain_forward(
    tmp_path: Path, family: str, weights: WeightFormat
):
    path = _saved(tmp_path, family)
    expected = answer_of(_runner(path, weights))

    answer = answer_of(_compiled(path, weights))

    assert distance(answer, expected) < CLOSENESS[weights].noise
    assert not torch.equal(answer, answer.roll(1, 0))


@pytest.mark.parametrize("layers", ["0-2", "2-4", "4-6", "3-4"])
def test_any_part_of_a_model_is_compiled(tmp_path: Path, layers: str):
    path, held = _saved(tmp_path, "qwen3"), LayerRange.parse(layers)
    expected = answer_of(_runner(path, WeightFormat.INT8, held))

    answer = answer_of(_compiled(path, layers=held))

    assert distance(answer, expected) < CLOSENESS[WeightFormat.INT8].noise


@torch.inference_mode()
def test_a_session_may_run_fewer_layers_than_are_held(tmp_path: Path):
    path, some = _saved(tmp_path, "qwen3"), LayerRange(2, 4)
    runner = _compiled(path, layers=LayerRange(1, 5))
    alone = _compiled(path, layers=some)
    entering = entering_of(alone, 9)

    hidden = [
        each.passing(entering, some, [Segment(0, 9, each.new_cache(some))]).hidden
        for each in (runner, alone)
    ]

    assert torch.equal(*hidden)


@pytest.mark.parametrize("lengths", [(1, 3, 4), (1, 1, 1)], ids=["ragged", "decodes"])
@pytest.mark.parametrize("weights", FORMATS, ids=lambda weights: weights.value)
def test_rows_of_several_sessions_come_out_as_they_would_alone(
    tmp_path: Path, weights: WeightFormat, lengths: tuple[int, ...]
):
    """A decode, a chunk that crosses into the next cell, and a prefill, in one call."""
    runner = _compiled(_saved(tmp_path, "qwen2-swa"), weights)

    (expected, alone), (got, together) = apart_and_together(runner, (5, 255, 0), lengths)

    assert torch.equal(got, expected)
    for ours, theirs in zip(together, alone, strict=True):
        assert torch.equal(*(cache.layers[5].buffer.last(1)[0] for cache in (ours, theirs)))


def test_logits_of_some_rows_are_those_among_all(tmp_path: Path):
    runner = _compiled(_saved(tmp_path, "llama"))
    ids = entering_of(runner, 9)

    with torch.inference_mode():
        every = runner.logits(ids, WHOLE, [Segment(0, 9, None)], range(9))
        some = runner.logits(ids, WHOLE, [Segment(0, 9, None)], [8, 2])

    assert torch.equal(some, every[[8, 2]])


@torch.inference_mode()
def test_logits_of_some_rows_are_right_where_hidden_states_are_wider_than_all_else(tmp_path: Path):
    """A batch of which one step wants no token keeps almost all rows."""
    narrow = {"hidden_size": 256, "intermediate_size": 32, "num_attention_heads": 2, "head_dim": 16}
    path = save_family(tmp_path, "llama", max_position_embeddings=CONTEXT, **narrow)
    runner = _compiled(path)
    ids = entering_of(runner, 40)
    every = runner.logits(ids, WHOLE, [Segment(0, 40, None)], range(40))

    some = runner.logits(ids, WHOLE, [Segment(0, 40, None)], range(39))

    assert torch.equal(some, every[:39])


def test_what_enters_is_not_written_to(tmp_path: Path):
    """A node may keep it, to send it again."""
    runner = _compiled(_saved(tmp_path, "qwen3"), layers=LayerRange(2, 4))
    entering = entering_of(runner, 5)
    before = entering.hidden.clone()

    with torch.inference_mode():
        runner.passing(entering, runner.held, [Segment(0, 5, None)])

    assert torch.equal(entering.hidden, before)


def test_what_enters_may_have_gaps(tmp_path: Path):
    runner = _compiled(_saved(tmp_path, "llama"), layers=LayerRange(2, 4))
    entering = entering_of(runner, 5)
    gaps = Passing(entering.hidden.transpose(1, 2).contiguous().transpose(1, 2))

    with torch.inference_mode():
        hidden = [
            runner.passing(each, runner.held, [Segment(0, 5, None)]).hidden
            for each in (entering, gaps)
        ]

    assert not gaps.hidden.is_contiguous()
    assert torch.equal(*hidden)


@pytest.mark.parametrize("place", ["hidden", "id"])
def test_a_row_that_is_not_a_number_spoils_no_earlier_one(tmp_path: Path, place: str):
    """Later rows of the same step are guesses, as like as not."""
    layers = WHOLE if place == "id" else LayerRange(2, 4)
    runner = _compiled(_saved(tmp_path, "llama"), layers=layers)
    entering = entering_of(runner, 6)
    if place == "id":
        runner._decoder.embed_tokens.weight.data[entering[0, 4]] = torch.nan
        entering[0, :4] = (entering[0, 4] + 1) % 256
    expected = _hidden(runner, positions_of(entering, 0, 4), 4)
    if place == "hidden":
        entering.hidden[0, 4, 7] = torch.nan

    hidden = _hidden(runner, entering, 6)

    assert torch.equal(hidden[:4], expected)
    assert not hidden[4].isfinite().any()


@torch.inference_mode()
def _hidden(runner: Runner, entering: Any, length: int) -> torch.Tensor:
    segments = [Segment(0, length, runner.new_cache(runner.held))]
    return runner.passing(entering, runner.held, segments).hidden[0]


@pytest.fixture
def threads() -> Iterator[Any]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("weights", FORMATS, ids=lambda weights: weights.value)
def test_threads_that_share_steps_change_no_bit(tmp_path: Path, weights: WeightFormat, threads):
    path = _saved(tmp_path, "qwen3")
    threads(1)
    expected = answer_of(_compiled(path, weights))

    answers = []
    for count in (2, 3):
        threads(count)
        answers.append(answer_of(_compiled(path, weights)))

    assert all(torch.equal(answer, expected) for answer in answers)


def test_shards_of_a_model_some_of_whose_layers_turn_nothing_compute_alike(tmp_path: Path):
    """SmolLM3's fourth layer is no layer of Llama's; a shard without it must not go its own way."""
    path, parts = _saved(tmp_path, "smollm3"), (WHOLE, LayerRange(0, 3), LayerRange(3, LAYERS))

    shards = [load_shard(path, part, weights=WeightFormat.INT8).description for part in parts]

    assert len({shard.arithmetic for shard in shards}) == 1


def test_it_is_left_alone_where_it_answers_otherwise(tmp_path: Path):
    path, strict = _saved(tmp_path, "llama"), Closeness(0, 0, attention=0)
    plain = _runner(path, WeightFormat.INT8)

    runner = _runner(path, WeightFormat.INT8, compiled=strict)

    assert isinstance(runner, LeanRunner)
    assert runner.attention == plain.attention
    assert torch.equal(answer_of(runner), answer_of(plain))


def test_weights_in_floating_point_are_not_compiled(tmp_path: Path):
    runner = _runner(
        _saved(tmp_path, "llama"), WeightFormat.FP32, compiled=CLOSENESS[WeightFormat.FP32]
    )

    assert isinstance(runner, LeanRunner)


def test_without_numba_the_plain_forward_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = _saved(tmp_path, "llama")
    with_it = load_shard(path, WHOLE, weights=WeightFormat.INT8).description
    for name in [name for name in sys.modules if name.startswith("meshnet.engine.compiled")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(meshnet.engine, "compiled")
    monkeypatch.setitem(sys.modules, "numba", None)

    shard = load_shard(path, WHOLE, weights=WeightFormat.INT8)

    assert isinstance(shard._runner, LeanRunner)
    assert shard.description.capabilities == with_it.capabilities
    assert shard.description.operators != with_it.operators
    assert shard.description.arithmetic != with_it.arithmetic


def test_another_layer_takes_no_more_operators(tmp_path: Path):
    """A step is one call, however many layers there are."""
    assert operators_of_a_layer(_compiled(_saved(tmp_path, "llama"))) == 0
