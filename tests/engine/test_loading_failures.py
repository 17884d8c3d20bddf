"""Whatever a library makes of a model, and wherever memory ends: an error of ours, or the shard."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.shard_steps import TAIL
from torch.utils._python_dispatch import TorchDispatchMode

from meshnet.core.vocabulary import ModelError, ShardDescription, WeightFormat
from meshnet.engine.loading import load_shard

NO_MEMORY = "[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory"


class Operators(TorchDispatchMode):
    """Counts what torch is asked to do, and lets one of it fail."""

    def __init__(self, failing: int = -1, error: Exception | None = None) -> None:
        super().__init__()
        self.asked, self.failing, self.error = 0, failing, error

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.asked += 1
        if self.error is not None and self.asked == self.failing:
            raise self.error
        return func(*args, **(kwargs or {}))


def described(model: Path, weights: WeightFormat) -> ShardDescription:
    return load_shard(model, TAIL, weights=weights).description


@pytest.mark.parametrize(
    "weights", [WeightFormat.FP32, pytest.param(WeightFormat.INT8, marks=pytest.mark.slow)]
)
def test_a_shard_whose_memory_ends_while_it_loads_is_an_error_and_never_a_lesser_shard(
    llama: Path, weights: WeightFormat
):
    """It might else serve for good without a cache, or in another arithmetic than its peers."""
    with Operators() as undisturbed:
        whole = described(llama, weights)
    refused = 0

    for failing in range(1, undisturbed.asked, undisturbed.asked // 12):
        with Operators(failing, RuntimeError(NO_MEMORY)):
            try:
                assert described(llama, weights) == whole, failing
            except ModelError:
                refused += 1

    assert refused >= 6


def test_what_else_fails_in_a_model_is_an_error_of_the_model(
    llama: Path, monkeypatch: pytest.MonkeyPatch
):
    """What transformers makes of a damaged configuration is anybody's guess."""

    def fail(*_: object, **__: object) -> None:
        raise AttributeError("a model of tomorrow")

    monkeypatch.setattr("transformers.models.llama.modeling_llama.LlamaModel.__init__", fail)

    with pytest.raises(ModelError, match=r"layers 4-6.*a model of tomorrow"):
        described(llama, WeightFormat.FP32)
