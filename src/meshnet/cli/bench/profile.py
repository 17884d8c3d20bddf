"""One shard alone in a process: how long a decode takes, and attention and sampling in it.

The stopwatches are put around the engine's functions before it loads anything, so that the token
path of real nodes has no hook in it; a compiled step has a place for one. Worker kind `profile`.
"""

from __future__ import annotations

import random
import time
from array import array
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import torch

from meshnet.cli.bench.budget import middle_half
from meshnet.cli.models import format_of, resolve_model
from meshnet.cli.settings import Settings
from meshnet.core.vocabulary import (
    HIDDEN,
    Activation,
    DType,
    LayerRange,
    SamplingParams,
    ShardStep,
    TensorSpec,
)
from meshnet.engine.interface import GridAttention
from meshnet.engine.loading import load_shard
from meshnet.engine.sampling import Sampler
from meshnet.engine.shard import TorchModelShard

F = TypeVar("F", bound=Callable[..., Any])
WARMUPS = 3
READ_BYTES = 256 * 2**20
READS = 5


class Stopwatch:
    """Sums the time inside a function."""

    def __init__(self) -> None:
        self._called_s = 0.0
        self._counter = array("q", [0])

    @property
    def elapsed_s(self) -> float:
        return self._called_s + self._counter[0] / 1e9

    def counts_in_compiled_steps(self) -> None:
        """Sum attention within steps that are one call, too."""
        with suppress(ImportError):  # numba is not there: nothing is compiled
            from meshnet.engine.compiled.room import StepRoom

            StepRoom.attention = self._counter.buffer_info()[0]

    def around(self, function: F) -> F:
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self._called_s += time.perf_counter() - began

        return timed  # type: ignore[return-value]  # same signature, by delegation


class ShardProfile:
    """Times decodes of one shard at any position."""

    def __init__(self, shard: TorchModelShard, attention: Stopwatch, sampling: Stopwatch) -> None:
        self._shard, self._attention, self._sampling = shard, attention, sampling

    @classmethod
    def loaded(cls, settings: Settings, layers: LayerRange) -> ShardProfile:
        """Put the stopwatches in place and load. Raises MeshnetError."""
        torch.set_num_threads(settings.threads or 1)
        attention, sampling = Stopwatch(), Stopwatch()
        attention.counts_in_compiled_steps()
        GridAttention.attend = attention.around(GridAttention.attend)  # type: ignore[method-assign]
        Sampler.draw = sampling.around(Sampler.draw)  # type: ignore[method-assign]
        source = resolve_model(settings.model, settings)
        shard = load_shard(source.path, layers, weights=format_of(settings.weights))
        return cls(shard, attention, sampling)

    def answer(self, question: Mapping[str, Any]) -> dict[str, float]:
        """Return means, over the middle half, of `tokens` decodes from `position` on, seconds.

        `attention_s` is missing where nobody can tell it apart.
        `{"read": true}` asks for the bytes per second that this process can read instead.
        """
        if question.get("read"):
            return {"bytes_per_s": read_bandwidth()}
        position, tokens = int(question["position"]), int(question["tokens"])
        state = self._shard.new_state(self._shard.description.layers)
        with torch.inference_mode():
            self._run(state, 0, position)
            rows = [self._timed(state, position + at) for at in range(WARMUPS + tokens)]
        kv = self._shard.description.kv_bytes.per_token
        return {**middle_half(rows[WARMUPS:], by="total_s"), "kv_bytes_per_token": kv}

    def _timed(self, state: Any, position: int) -> dict[str, float]:
        step = self._step(position, 1)
        attention_s, sampling_s = self._attention.elapsed_s, self._sampling.elapsed_s
        began = time.perf_counter()
        self._shard.run(step, state)
        times = {
            "total_s": time.perf_counter() - began,
            "sampling_s": self._sampling.elapsed_s - sampling_s,
        }
        if self._attention.elapsed_s > attention_s:
            times["attention_s"] = self._attention.elapsed_s - attention_s
        return times

    def _run(self, state: Any, past_length: int, length: int) -> None:
        self._shard.run(self._step(past_length, length), state)

    def _step(self, past_length: int, length: int) -> ShardStep:
        told = self._shard.description
        drawn = random.Random(past_length)
        ids = tuple(drawn.randrange(told.vocab_size) for _ in range(length))
        activation = None
        if told.layers.start > 0:
            spec = TensorSpec(HIDDEN, told.dtype, (1, length, told.hidden_size))
            hidden = torch.randn(spec.shape, generator=torch.Generator().manual_seed(past_length))
            kinds = {DType.FP32: torch.float32, DType.BF16: torch.bfloat16}
            hidden = hidden.to(kinds.get(told.dtype, torch.float16))
            activation = Activation((spec,), hidden.view(torch.uint8).numpy().tobytes())
        return ShardStep(
            layers=told.layers,
            past_length=past_length,
            length=length,
            tokens=ids,
            activation=activation,
            sampling=SamplingParams(prompt_length=past_length),
        )


def read_bandwidth() -> float:
    """Return the best of a few reads of more memory than any cache holds, bytes per second."""
    values = torch.ones(READ_BYTES // 4)
    best_s = float("inf")
    for _ in range(READS):
        began = time.perf_counter()
        values.sum()
        best_s = min(best_s, time.perf_counter() - began)
    return READ_BYTES / best_s
