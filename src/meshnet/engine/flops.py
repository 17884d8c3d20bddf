"""How many operations a step costs, counted by the operators that run, attention apart.

The founding promise of the cache is that a token's cost outside attention does not depend on its
position. A count proves that on any machine; a clock only suggests it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from meshnet.core.vocabulary import Activation, Drawn, SamplingParams, ShardStep
from meshnet.engine.shard import TorchModelShard


@dataclass(frozen=True, slots=True)
class StepFlops:
    """Floating-point operations of one step on one shard."""

    outside_attention: int
    attention: int


def decode_flops(shards: Sequence[TorchModelShard], tokens: Sequence[int]) -> tuple[StepFlops, ...]:
    """Count, per shard, the decode of the last of `tokens` after a prefill of the others."""
    entering: Activation | None = None
    prefilled: Activation | None = None
    counts = []
    for shard in shards:
        state = shard.new_state(shard.description.layers)
        past = len(tokens) - 1
        prefill = _step(shard, 0, tokens[:past], prefilled, want_token=False)
        prefilled = _activation(shard.run(prefill, state))
        decode = _step(shard, past, tokens[past:], entering, want_token=True)
        counter = FlopCounterMode(display=False)
        with counter, _AttentionMeter(counter) as attention:
            entering = _activation(shard.run(decode, state))
        outside = counter.get_total_flops() - attention.counted
        counts.append(StepFlops(outside, attention.flops))
    return tuple(counts)


def _step(
    shard: TorchModelShard,
    past_length: int,
    tokens: Sequence[int],
    activation: Activation | None,
    *,
    want_token: bool,
) -> ShardStep:
    return ShardStep(
        layers=shard.description.layers,
        past_length=past_length,
        length=len(tokens),
        tokens=tuple(tokens),
        activation=activation,
        sampling=SamplingParams(),
        want_token=want_token,
    )


def _activation(result: Activation | Drawn | None) -> Activation | None:
    return result if isinstance(result, Activation) else None


ATTENTION = (functional.scaled_dot_product_attention, torch.bmm, torch.baddbmm)
"""Nothing but attention multiplies matrices by the batch in a dense model."""


class _AttentionMeter(TorchFunctionMode):
    """Counts attention calls by the shapes of q, k and v.

    The counter knows some of the kernels behind them and not others (the CPU's flash kernel), so
    what it counts inside such a call is kept apart, to be taken off its total.
    """

    def __init__(self, counter: FlopCounterMode) -> None:
        super().__init__()
        self._counter = counter
        self.flops = 0
        self.counted = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in ATTENTION:
            return func(*args, **(kwargs or {}))
        before = self._counter.get_total_flops()
        result = func(*args, **(kwargs or {}))
        self.counted += self._counter.get_total_flops() - before
        if func is functional.scaled_dot_product_attention:
            query_BHTK, key_BHSK, value_BHSV = args[:3]
            past_and_new, value_width = value_BHSV.shape[-2:]
            per_pair = 2 * (key_BHSK.shape[-1] + value_width)
            self.flops += query_BHTK.shape[:-1].numel() * past_and_new * per_pair
        else:
            left, right = args[-2:]
            self.flops += 2 * left.shape.numel() * right.shape[-1]
        return result
