"""A step that fails midway costs its session, and no other."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.shard_steps import (
    MIDDLE,
    TAIL,
    hidden_of,
    hidden_step,
    values_of,
)

from meshnet.core.vocabulary import (
    NumericalError,
    StepTorn,
    WeightFormat,
)
from meshnet.engine.loading import load_shard
from meshnet.engine.shard import TorchModelShard

# --- failures -------------------------------------------------------------------------------------


def _shard(path: Path) -> TorchModelShard:
    """In floating point, where layers call their modules, which can be made to fail."""
    return load_shard(path, MIDDLE, weights=WeightFormat.FP32)


def _break(shard: TorchModelShard, error: Exception) -> None:
    """Let the shard's second layer fail, after the first has extended its cache."""

    def fail(*args: object, **kwargs: object) -> None:
        raise error

    second = shard._runner.model.meshnet_layers.layer(shard.description.layers.start + 1)
    second.mlp.down_proj.register_forward_pre_hook(fail)


def test_a_step_that_fails_midway_tears_the_session_for_good(llama: Path):
    shard = _shard(llama)
    state = shard.new_state(MIDDLE)
    _break(shard, RuntimeError("boom"))

    with pytest.raises(StepTorn, match="boom") as torn:
        shard.run(hidden_step(MIDDLE, hidden_of(3)), state)
    with pytest.raises(StepTorn, match="earlier step"):
        shard.run(hidden_step(MIDDLE, hidden_of(3)), state)

    assert not torn.value.out_of_memory


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate"),
    ],
    ids=["cuda", "python", "cpu"],
)
def test_running_out_of_memory_is_told_from_other_failures(llama: Path, error: Exception):
    """Pit A69."""
    shard = _shard(llama)
    _break(shard, error)

    with pytest.raises(StepTorn) as torn:
        shard.run(hidden_step(MIDDLE, hidden_of(3)), shard.new_state(MIDDLE))

    assert torn.value.out_of_memory


def test_a_session_that_failed_does_not_disturb_another(llama: Path):
    """Pit A69."""
    shard = _shard(llama)
    expected = values_of(shard.run(hidden_step(MIDDLE, hidden_of(3)), None))
    handle_error = RuntimeError("boom")
    layer = shard._runner.model.meshnet_layers.layer(3)

    def fail(*args: object, **kwargs: object) -> None:
        raise handle_error

    handle = layer.mlp.down_proj.register_forward_pre_hook(fail)
    with pytest.raises(StepTorn):
        shard.run(hidden_step(MIDDLE, hidden_of(3)), shard.new_state(MIDDLE))
    handle.remove()

    again = values_of(shard.run(hidden_step(MIDDLE, hidden_of(3)), shard.new_state(MIDDLE)))

    assert torch.equal(again, expected)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_logits_that_are_no_numbers_are_an_error_and_never_a_token(
    tail: TorchModelShard, value: float
):
    """Pit A75."""
    hidden = hidden_of(3)
    hidden[0, -1, 0] = value
    state = tail.new_state(TAIL)

    with pytest.raises(NumericalError):
        tail.run(hidden_step(TAIL, hidden), state)
    with pytest.raises(StepTorn):
        tail.run(hidden_step(TAIL, hidden_of(1), past=3), state)
