"""Steps of several sessions in one forward come out as each would alone, failures included."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.families import LAYERS, VOCAB_SIZE, save_family
from tests.shard_steps import HEAD, MIDDLE, TAIL, hidden_step, values_of

from meshnet.core.vocabulary import (
    Activation,
    BadField,
    Drawn,
    KVCacheMiss,
    LayerRange,
    NumericalError,
    SamplingParams,
    ShardStep,
    StepTorn,
    WeightFormat,
)
from meshnet.engine.loading import load_shard
from meshnet.engine.session_state import SessionState
from meshnet.engine.shard import TorchModelShard

WHOLE = LayerRange(0, LAYERS)
CONTEXT = 512
PASTS = (5, 255, 0)
"""What three sessions hold: little, all but one position of a cell, nothing."""
LENGTHS = (1, 3, 4)
"""A decode, a chunk that crosses into the next cell, a prefill."""


def _ids(length: int, seed: int) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(0, VOCAB_SIZE, (length,), generator=generator).tolist())


def _hidden(length: int, seed: int) -> torch.Tensor:
    return torch.randn(1, length, 64, generator=torch.Generator().manual_seed(seed))


def _step(layers: LayerRange, seed: int, past: int, length: int) -> ShardStep:
    """The positions [past, past + length) of session `seed`."""
    ids = _ids(past + length, seed)[past:]
    if layers.start == 0:
        return ShardStep(layers, past, length, ids, None, SamplingParams())
    return hidden_step(layers, _hidden(past + length, seed)[:, past:], past, tokens=ids)


def _steps(layers: LayerRange) -> list[ShardStep]:
    return [
        _step(layers, seed, past, length)
        for seed, (past, length) in enumerate(zip(PASTS, LENGTHS, strict=True))
    ]


def _sessions(shard: TorchModelShard, layers: LayerRange) -> list[SessionState]:
    """Sessions that hold `PASTS` positions."""
    states = [shard.new_state(layers) for _ in PASTS]
    for seed, (past, state) in enumerate(zip(PASTS, states, strict=True)):
        if past:
            shard.run(replace(_step(layers, seed, 0, past), want_token=False), state)
    return states


@pytest.fixture(scope="module")
def long_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("long-llama")
    return save_family(path, "llama", max_position_embeddings=CONTEXT)


@pytest.fixture(scope="module")
def tail(long_llama: Path) -> TorchModelShard:
    return load_shard(long_llama, TAIL)


@pytest.mark.parametrize("layers", [HEAD, MIDDLE, TAIL, WHOLE], ids=str)
@pytest.mark.parametrize("family", ["llama", "gemma3", "deepseek_v3", "opt", "lfm2"])
def test_steps_of_several_sessions_come_out_as_each_would_alone(
    tmp_path: Path, family: str, layers: LayerRange
):
    shard = load_shard(save_family(tmp_path, family, max_position_embeddings=CONTEXT), layers)
    steps = _steps(layers)
    expected = list(map(shard.run, steps, _sessions(shard, layers)))
    states = _sessions(shard, layers)

    results = shard.run_batch(list(zip(steps, states, strict=True)))

    assert shard.description.capabilities.batch
    assert [state.length for state in states] == [6, 258, 4]
    for result, alone in zip(results, expected, strict=True):
        if isinstance(alone, Drawn):
            assert result == alone
        else:
            assert torch.allclose(values_of(result), values_of(alone), atol=1e-5, rtol=1e-5)


def test_a_batch_at_the_tail_draws_for_those_that_want_a_token(tail: TorchModelShard):
    steps = _steps(TAIL)
    steps[1] = replace(steps[1], want_token=False)
    steps[2] = replace(steps[2], drafts=2)
    expected = list(map(tail.run, steps, _sessions(tail, TAIL)))
    states = _sessions(tail, TAIL)

    results = tail.run_batch(list(zip(steps, states, strict=True)))

    assert results == expected
    assert isinstance(results[0], Drawn)
    assert results[1] is None
    assert [state.length for state in states] == [6, 258, 4]


def test_nobody_draws_in_a_batch_of_chunks(tail: TorchModelShard):
    steps = [replace(step, want_token=False) for step in _steps(TAIL)]
    states = _sessions(tail, TAIL)

    results = tail.run_batch(list(zip(steps, states, strict=True)))

    assert results == [None, None, None]
    assert [state.length for state in states] == [6, 258, 4]


def test_a_session_goes_on_after_a_batch_as_if_it_had_been_alone(tail: TorchModelShard):
    steps, after = _steps(TAIL), _step(TAIL, 0, 6, 1)
    alone, together = _sessions(tail, TAIL), _sessions(tail, TAIL)
    tail.run(steps[0], alone[0])
    tail.run_batch(list(zip(steps, together, strict=True)))

    results = [tail.run(after, alone[0]), tail.run(after, together[0])]

    assert results[0] == results[1]


def test_what_is_wrong_with_one_step_costs_no_other(tail: TorchModelShard):
    steps = _steps(TAIL)
    expected = list(map(tail.run, steps, _sessions(tail, TAIL)))
    states = _sessions(tail, TAIL)
    unknown = replace(steps[0], tokens=(VOCAB_SIZE,))
    gap = replace(steps[1], past_length=17)

    results = tail.run_batch([(unknown, states[0]), (gap, states[1]), (steps[2], states[2])])

    assert isinstance(results[0], BadField)
    assert isinstance(results[1], KVCacheMiss)
    assert results[2] == expected[2]
    # What was refused was not begun: the sessions are where they were.
    assert tail.run_batch(list(zip(steps[:2], states[:2], strict=True))) == expected[:2]


def test_a_batch_of_which_nothing_can_be_run_runs_nothing(tail: TorchModelShard):
    step = replace(_step(TAIL, 0, 0, 2), tokens=(VOCAB_SIZE, 1))
    state = tail.new_state(TAIL)

    results = tail.run_batch([(step, state)])

    assert isinstance(results[0], BadField)
    assert state.length == 0


def test_a_row_that_is_no_number_costs_its_own_session_alone(tail: TorchModelShard):
    """Pit A75."""
    steps = _steps(TAIL)
    expected = list(map(tail.run, steps, _sessions(tail, TAIL)))
    states = _sessions(tail, TAIL)
    poisoned = _hidden(PASTS[0] + 1, 0)[:, PASTS[0] :].clone()
    poisoned[0, 0, 0] = torch.nan
    steps[0] = hidden_step(TAIL, poisoned, PASTS[0], tokens=steps[0].tokens)

    results = tail.run_batch(list(zip(steps, states, strict=True)))

    assert isinstance(results[0], NumericalError)
    assert results[1:] == expected[1:]
    assert [state.torn for state in states] == [True, False, False]


def test_a_forward_that_fails_midway_tears_every_session_of_the_batch(long_llama: Path):
    """Pit A69."""
    # Only in floating point do layers call their modules.
    shard = load_shard(long_llama, MIDDLE, weights=WeightFormat.FP32)
    states = _sessions(shard, MIDDLE)
    second = shard._runner.model.meshnet_layers.layer(MIDDLE.start + 1)

    def fail(*args: object) -> None:
        raise RuntimeError("a bug")

    second.mlp.down_proj.register_forward_pre_hook(fail)

    with pytest.raises(StepTorn) as torn:
        shard.run_batch(list(zip(_steps(MIDDLE), states, strict=True)))

    assert not torn.value.out_of_memory
    assert all(state.torn for state in states)


@pytest.mark.parametrize("rows_max", [1, 3])
def test_a_batch_too_large_for_memory_runs_one_by_one(long_llama: Path, rows_max: int):
    """Pit A69. What the batch had written by then is taken back first, so its bits are those."""
    shard = load_shard(long_llama, MIDDLE, weights=WeightFormat.FP32)
    steps = _steps(MIDDLE)
    expected = list(map(shard.run, steps, _sessions(shard, MIDDLE)))
    states = _sessions(shard, MIDDLE)
    second = shard._runner.model.meshnet_layers.layer(MIDDLE.start + 1)

    def fail(_: object, given: tuple[torch.Tensor, ...]) -> None:
        if given[0].shape[-2] > rows_max:
            raise torch.OutOfMemoryError("device out of memory")

    second.mlp.down_proj.register_forward_pre_hook(fail)

    results = shard.run_batch(list(zip(steps, states, strict=True)))

    for step, state, result, right in zip(steps, states, results, expected, strict=True):
        fits = step.length <= rows_max
        assert state.torn == (not fits)
        if fits:
            assert isinstance(result, Activation)
            torch.testing.assert_close(values_of(result), values_of(right))
            assert state.length == step.past_length + step.length
        else:
            assert isinstance(result, StepTorn)
            assert result.out_of_memory


def test_layers_that_cannot_share_a_forward_run_one_by_one(tmp_path: Path):
    shard = load_shard(save_family(tmp_path, "bloom"), WHOLE)
    steps = _steps(WHOLE)
    expected = list(map(shard.run, steps, _sessions(shard, WHOLE)))
    states = _sessions(shard, WHOLE)
    steps[0] = replace(steps[0], tokens=(VOCAB_SIZE,))

    results = shard.run_batch(list(zip(steps, states, strict=True)))

    assert not shard.description.capabilities.batch
    assert isinstance(results[0], BadField)
    assert results[1:] == expected[1:]


def test_an_error_that_is_returned_holds_no_frame(tail: TorchModelShard):
    """Frames hold the tensors of all sessions of the batch."""
    step = replace(_step(TAIL, 0, 0, 2), tokens=(VOCAB_SIZE, 1))

    (error,) = tail.run_batch([(step, tail.new_state(TAIL))])

    assert isinstance(error, BadField)
    assert error.__traceback__ is None
