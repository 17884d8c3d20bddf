"""The compiled short forward answers like the plain one, and runs where it was seen to."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.families import LAYERS, save_family
from tests.runners import answer_of, entering_of, operators_of_a_layer

import meshnet.engine
from meshnet.core.vocabulary import LayerRange, WeightFormat
from meshnet.engine.checkpoint import read_config
from meshnet.engine.formats import load_in_format
from meshnet.engine.forward import LayerRunner
from meshnet.engine.fused_layer import THREADS_MAX
from meshnet.engine.interface import GridAttention
from meshnet.engine.lean import LeanRunner
from meshnet.engine.lean_choice import lean_runner
from meshnet.engine.loading import load_shard
from meshnet.engine.runner import Passing, Runner, Segment, positions_of
from meshnet.engine.selftest import CLOSENESS, Closeness, distance

WHOLE = LayerRange(0, LAYERS)
CONTEXT = 512
FAMILIES = ("llama", "llama-tied", "qwen2", "qwen2-swa", "qwen3", "mistral-swa", "seed_oss")
FORMATS = (WeightFormat.INT8, WeightFormat.INT8_FAST)


def _runner(
    path: Path,
    weights: WeightFormat,
    layers: LayerRange = WHOLE,
    *,
    compiled: Closeness | None = None,
) -> LeanRunner:
    loaded, form = load_in_format(
        path, read_config(path), layers, weights, torch.device("cpu"), lambda sentence: None
    )
    generic, attention = LayerRunner(loaded.model, form.dtype), GridAttention(4)
    generic.use_attention(attention.register())
    lean = lean_runner(loaded.model, generic, attention, CONTEXT, compiled=compiled)
    assert lean is not None
    return lean


def _compiled(path: Path, weights: WeightFormat, layers: LayerRange = WHOLE) -> LeanRunner:
    lean = _runner(path, weights, layers, compiled=CLOSENESS[weights])
    assert _is_compiled(lean)
    return lean


def _is_compiled(lean: LeanRunner) -> bool:
    return lean.attention.endswith("-fused")


def _saved(path: Path, family: str) -> Path:
    return save_family(path, family, max_position_embeddings=CONTEXT)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("weights", FORMATS, ids=lambda weights: weights.value)
def test_compiled_layers_answer_like_plain_ones(tmp_path: Path, family: str, weights: WeightFormat):
    path = _saved(tmp_path, family)
    expected = answer_of(_runner(path, weights))

    answer = answer_of(_compiled(path, weights))

    assert distance(answer, expected) < CLOSENESS[weights].noise
    assert not torch.equal(answer, answer.roll(1, 0))


@pytest.mark.parametrize("layers", ["0-2", "2-4", "4-6", "3-4"])
def test_any_part_of_a_model_is_compiled(tmp_path: Path, layers: str):
    path, held = _saved(tmp_path, "qwen3"), LayerRange.parse(layers)
    expected = answer_of(_runner(path, WeightFormat.INT8, held))

    answer = answer_of(_compiled(path, WeightFormat.INT8, held))

    assert distance(answer, expected) < CLOSENESS[WeightFormat.INT8].noise


@pytest.mark.parametrize("lengths", [(1, 3, 4), (1, 1, 1)], ids=["ragged", "decodes"])
@pytest.mark.parametrize("weights", FORMATS, ids=lambda weights: weights.value)
def test_rows_of_several_sessions_come_out_as_they_would_alone(
    tmp_path: Path, weights: WeightFormat, lengths: tuple[int, ...]
):
    """A decode, a chunk that crosses into the next cell, and a prefill, in one call."""
    lean = _compiled(_saved(tmp_path, "qwen2-swa"), weights)
    pasts = (5, 255, 0)
    alone, together = ([_filled(lean, *each) for each in enumerate(pasts)] for _ in range(2))
    parts = [
        positions_of(entering_of(lean, past + length, seed), past, past + length)
        for seed, (past, length) in enumerate(zip(pasts, lengths, strict=True))
    ]

    with torch.inference_mode():
        expected = [
            lean.logits(part, WHOLE, [Segment(past, length, cache)], range(length))
            for part, past, length, cache in zip(parts, pasts, lengths, alone, strict=True)
        ]
        segments = list(map(Segment, pasts, lengths, together))
        got = lean.logits(torch.cat(parts, 1), WHOLE, segments, range(sum(lengths)))

    assert torch.equal(got, torch.cat(expected))
    for ours, theirs in zip(together, alone, strict=True):
        assert torch.equal(*(cache.layers[5].buffer.last(1)[0] for cache in (ours, theirs)))


@torch.inference_mode()
def _filled(runner: Runner, seed: int, past: int) -> Any:
    cache = runner.new_cache(runner.held)
    if past:
        runner.passing(entering_of(runner, past, seed), runner.held, [Segment(0, past, cache)])
    return cache


def test_logits_of_some_rows_are_those_among_all(tmp_path: Path):
    lean = _compiled(_saved(tmp_path, "llama"), WeightFormat.INT8)
    ids = entering_of(lean, 9)

    with torch.inference_mode():
        every = lean.logits(ids, WHOLE, [Segment(0, 9, None)], range(9))
        some = lean.logits(ids, WHOLE, [Segment(0, 9, None)], [8, 2])

    assert torch.equal(some, every[[8, 2]])


def test_what_enters_is_not_written_to(tmp_path: Path):
    """A node may keep it, to send it again."""
    lean = _compiled(_saved(tmp_path, "qwen3"), WeightFormat.INT8, LayerRange(2, 4))
    entering = entering_of(lean, 5)
    before = entering.hidden.clone()

    with torch.inference_mode():
        lean.passing(entering, lean.held, [Segment(0, 5, None)])

    assert torch.equal(entering.hidden, before)


def test_what_enters_may_have_gaps(tmp_path: Path):
    lean = _compiled(_saved(tmp_path, "llama"), WeightFormat.INT8, LayerRange(2, 4))
    entering = entering_of(lean, 5)
    gaps = Passing(entering.hidden.transpose(1, 2).contiguous().transpose(1, 2))

    with torch.inference_mode():
        hidden = [
            lean.passing(each, lean.held, [Segment(0, 5, None)]).hidden for each in (entering, gaps)
        ]

    assert not gaps.hidden.is_contiguous()
    assert torch.equal(*hidden)


def test_loops_are_left_alone_where_they_answer_otherwise(tmp_path: Path):
    path, strict = _saved(tmp_path, "llama"), Closeness(0, 0, attention=0)
    plain = _runner(path, WeightFormat.INT8)

    lean = _runner(path, WeightFormat.INT8, compiled=strict)

    assert lean.attention == plain.attention
    assert torch.equal(answer_of(lean), answer_of(plain))


def test_weights_in_floating_point_are_not_compiled(tmp_path: Path):
    lean = _runner(
        _saved(tmp_path, "llama"), WeightFormat.FP32, compiled=CLOSENESS[WeightFormat.FP32]
    )

    assert not _is_compiled(lean)


@pytest.fixture
def many_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS_MAX + 1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("many_threads")
def test_many_threads_are_left_to_torchs_operators(tmp_path: Path):
    lean = _runner(
        _saved(tmp_path, "llama"), WeightFormat.INT8, compiled=CLOSENESS[WeightFormat.INT8]
    )

    assert not _is_compiled(lean)


def test_without_numba_the_plain_forward_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = _saved(tmp_path, "llama")
    with_it = load_shard(path, WHOLE, weights=WeightFormat.INT8).description
    monkeypatch.setitem(sys.modules, "numba", None)
    for name in ("fused", "fused_layer"):
        monkeypatch.delitem(sys.modules, f"meshnet.engine.{name}")
        monkeypatch.delattr(meshnet.engine, name)

    shard = load_shard(path, WHOLE, weights=WeightFormat.INT8)

    assert not shard._runner.attention.endswith("-fused")
    assert shard.description.capabilities == with_it.capabilities
    assert shard.description.arithmetic != with_it.arithmetic


@pytest.mark.parametrize("weights", FORMATS, ids=lambda weights: weights.value)
def test_a_compiled_layer_takes_few_operators(tmp_path: Path, weights: WeightFormat):
    """Four products and the attention: each costs one to eight microseconds."""
    assert operators_of_a_layer(_compiled(_saved(tmp_path, "llama"), weights)) <= 24
