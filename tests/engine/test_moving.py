"""Sessions that leave a shard as plain tensors and go on, bit for bit, on another one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from tests.families import LAYERS, VOCAB_SIZE, save_family

from meshnet.core.vocabulary import (
    BadField,
    LayerRange,
    LayerState,
    SamplingParams,
    ShardStep,
    TensorSpec,
    WeightFormat,
)
from meshnet.engine.compiled.cells import SessionCells
from meshnet.engine.loading import load_shard
from meshnet.engine.session_state import SessionState
from meshnet.engine.shard import TorchModelShard

WHOLE = LayerRange(0, LAYERS)
LONG = 300
"""Over a border of cells, and far more than a window of eight."""
IDS = torch.randint(3, VOCAB_SIZE, (600,), generator=torch.Generator().manual_seed(5)).tolist()
ROWS = [
    ("llama", WeightFormat.INT8),
    ("llama", WeightFormat.FP32),
    ("mistral-swa", WeightFormat.INT8),
    ("mistral-swa", WeightFormat.FP32),
    ("gemma3n", WeightFormat.FP32),
    ("deepseek_v3", WeightFormat.FP32),
    ("deepseek_v3", WeightFormat.INT8),
    ("lfm2", WeightFormat.INT8),
    ("qwen3_next", WeightFormat.INT8),
    ("falcon_h1", WeightFormat.INT8),
    ("nemotron_h", WeightFormat.FP32),
]
CUTTABLE = [row for row in ROWS if row[0] in ("llama", "mistral-swa", "deepseek_v3")]
HYBRID = [row for row in ROWS if row[0] in ("lfm2", "qwen3_next", "falcon_h1")]
Shards = Callable[[str, WeightFormat], TorchModelShard]


@pytest.fixture(scope="module")
def shard_of(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    @cache
    def make(name: str, weights: WeightFormat) -> TorchModelShard:
        path = save_family(tmp_path_factory.mktemp(name), name, max_position_embeddings=1024)
        return load_shard(path, WHOLE, weights=weights)

    return make


def ran(
    shard: TorchModelShard, state: SessionState, start: int, stop: int, **fields: Any
) -> list[torch.Tensor]:
    """The logits that the step over positions [start, stop) draws from."""
    seen: list[torch.Tensor] = []
    drawn = shard._drawn

    def recording(logits_V: torch.Tensor, *rest: Any) -> Any:
        seen.append(logits_V.clone())
        return drawn(logits_V, *rest)

    shard._drawn = recording  # type: ignore[method-assign]
    try:
        ids = tuple(IDS[start:stop])
        shard.run(
            replace(ShardStep(WHOLE, start, len(ids), ids, None, SamplingParams()), **fields), state
        )
    finally:
        shard._drawn = drawn  # type: ignore[method-assign]
    return seen


def moved(shard: TorchModelShard, state: SessionState) -> SessionState:
    fresh = shard.new_state(WHOLE)
    for layer in range(LAYERS):
        held = shard.export_layer(state, layer)
        assert len(held.data) == sum(spec.nbytes for spec in held.tensors)
        # What travelled is read-only.
        held = replace(held, data=bytes(held.data))
        shard.restore_layer(fresh, layer, held, state.length)
    shard.end_restore(fresh, IDS[: state.length])
    return fresh


def filled(shard: TorchModelShard, length: int = LONG) -> SessionState:
    state = shard.new_state(WHOLE)
    ran(shard, state, 0, length)
    return state


@pytest.mark.parametrize("length", [7, LONG])
@pytest.mark.parametrize(("name", "weights"), ROWS)
def test_a_moved_session_goes_on_bit_for_bit(
    shard_of: Shards, name: str, weights: WeightFormat, length: int
):
    shard = shard_of(name, weights)
    state = filled(shard, length)

    there = moved(shard, state)

    assert shard.description.capabilities.moves
    assert shard.state_bytes(there) == shard.state_bytes(state)
    for at in range(length, length + 12):
        (here,), (other,) = ran(shard, state, at, at + 1), ran(shard, there, at, at + 1)
        assert torch.equal(here, other)


@pytest.mark.parametrize(("name", "weights"), CUTTABLE)
def test_a_moved_session_can_be_shortened_as_before(
    shard_of: Shards, name: str, weights: WeightFormat
):
    shard = shard_of(name, weights)
    state = filled(shard)
    there = moved(shard, state)

    for each in (state, there):
        shard.truncate(each, LONG - 60)

    (here,), (other,) = (ran(shard, each, LONG - 60, LONG + 9) for each in (state, there))
    assert torch.equal(here, other)


@pytest.mark.parametrize(("name", "weights"), HYBRID)
def test_a_moved_session_goes_back_to_its_marks(shard_of: Shards, name: str, weights: WeightFormat):
    shard = shard_of(name, weights)
    state = filled(shard, 20)
    ran(shard, state, 20, 25)
    there = moved(shard, state)
    assert there.marks == state.marks

    shard.truncate(there, 20)

    assert torch.equal(ran(shard, there, 20, 25)[0], ran(shard, filled(shard, 20), 20, 25)[0])


def test_a_moved_session_runs_in_batches(shard_of: Shards):
    shard = shard_of("llama", WeightFormat.INT8)
    state, other = filled(shard), filled(shard, 40)
    there = moved(shard, state)
    alone = ran(shard, state, LONG, LONG + 1)

    def step(at: int) -> ShardStep:
        return ShardStep(WHOLE, at, 1, (IDS[at],), None, SamplingParams(logprobs=5))

    first, _ = shard.run_batch([(step(LONG), there), (step(40), other)])
    again, _ = shard.run_batch([(step(LONG + 1), there), (step(41), other)])

    expected = ran(shard, state, LONG + 1, LONG + 2)
    assert first.tokens[0].token_id == int(alone[0].argmax())
    assert again.tokens[0].token_id == int(expected[0].argmax())


def test_the_tail_of_a_moved_session_knows_its_ids(shard_of: Shards):
    shard = shard_of("llama", WeightFormat.FP32)
    penalised = SamplingParams(repetition_penalty=1.7, temperature=1.0, seed=3)
    state = filled(shard, 30)
    there = moved(shard, state)
    step = ShardStep(WHOLE, 30, 1, (IDS[30],), None, penalised)

    assert list(there.history) == IDS[:30]
    assert shard.run(step, there) == shard.run(step, state)


def test_layers_in_cells_and_in_buffers_look_alike(
    shard_of: Shards, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
):
    """A node with other steps of equal bits can take a session over."""
    compiled = shard_of("mistral-swa", WeightFormat.INT8)
    assert isinstance(compiled.new_state(WHOLE).cache, SessionCells)
    monkeypatch.setattr("meshnet.engine.lean_choice._compiled", lambda *arguments: None)
    path = save_family(tmp_path, "mistral-swa", max_position_embeddings=1024)
    plain = load_shard(path, WHOLE, weights=WeightFormat.INT8)
    assert not isinstance(plain.new_state(WHOLE).cache, SessionCells)

    for layer in range(LAYERS):
        one, other = (each.export_layer(filled(each), layer) for each in (compiled, plain))
        assert one.tensors == other.tensors
    there = plain.new_state(WHOLE)
    state = filled(compiled)
    for layer in range(LAYERS):
        plain.restore_layer(there, layer, compiled.export_layer(state, layer), LONG)
    plain.end_restore(there, IDS[:LONG])
    assert ran(plain, there, LONG, LONG + 1)[0].shape == (VOCAB_SIZE,)


def wider(held: LayerState) -> LayerState:
    keys, *rest = held.tensors
    keys = TensorSpec(keys.name, keys.dtype, (keys.shape[0] * 2, *keys.shape[1:]))
    return LayerState((keys, *rest), bytes(held.data) + bytes(held.tensors[0].nbytes))


def renamed(held: LayerState) -> LayerState:
    keys, *rest = held.tensors
    return replace(held, tensors=(replace(keys, name="queries"), *rest))


def twice(held: LayerState) -> LayerState:
    return LayerState(held.tensors * 2, bytes(held.data) * 2)


def nothing(held: LayerState) -> LayerState:
    return LayerState((), b"")


def marked(held: LayerState) -> LayerState:
    return replace(held, marks=(5,))


@pytest.mark.parametrize("change", [wider, renamed, twice, nothing, marked])
def test_what_is_no_such_layer_is_refused_and_changes_nothing(
    shard_of: Shards, change: Callable[[LayerState], LayerState]
):
    shard = shard_of("llama", WeightFormat.FP32)
    held = shard.export_layer(filled(shard, 9), 0)
    fresh = shard.new_state(WHOLE)

    with pytest.raises(BadField):
        shard.restore_layer(fresh, 0, change(held), 9)

    shard.restore_layer(fresh, 0, held, 9)


@pytest.mark.parametrize("length", [8, 10])
def test_a_layer_of_another_length_is_refused(shard_of: Shards, length: int):
    shard = shard_of("llama", WeightFormat.FP32)
    held = shard.export_layer(filled(shard, 9), 0)

    with pytest.raises(BadField, match="keys"):
        shard.restore_layer(shard.new_state(WHOLE), 0, held, length)


def test_a_window_that_lets_its_rows_see_too_little_is_refused(shard_of: Shards):
    shard = shard_of("mistral-swa", WeightFormat.FP32)
    state = shard.new_state(WHOLE)
    ran(shard, state, 0, 600)
    held = shard.export_layer(state, 0)
    keys, values = held.tensors
    kept = 600 - 512
    cut = [replace(spec, shape=(spec.shape[0], kept, spec.shape[2])) for spec in (keys, values)]
    short = LayerState(tuple(cut), bytes(sum(spec.nbytes for spec in cut)))

    with pytest.raises(BadField, match="keys"):
        shard.restore_layer(shard.new_state(WHOLE), 0, short, 600)


def test_a_session_of_which_a_layer_is_missing_never_begins(shard_of: Shards):
    shard = shard_of("llama", WeightFormat.FP32)
    state, fresh = filled(shard, 9), shard.new_state(WHOLE)
    for layer in range(LAYERS - 1):
        shard.restore_layer(fresh, layer, shard.export_layer(state, layer), 9)

    with pytest.raises(BadField, match="layers"):
        shard.end_restore(fresh, IDS[:9])


def test_what_was_exported_does_not_change_with_its_session(shard_of: Shards):
    shard = shard_of("llama", WeightFormat.FP32)
    state = filled(shard, 9)
    held = shard.export_layer(state, 0)
    before = bytes(held.data)

    ran(shard, state, 9, 20)

    assert bytes(held.data) == before
