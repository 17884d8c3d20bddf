"""Steps through a runner's layers, whichever forward it is, and what a layer of it takes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tests.families import LAYERS, VOCAB_SIZE
from torch.utils._python_dispatch import TorchDispatchMode

from meshnet.core.vocabulary import LayerRange, WeightFormat
from meshnet.engine.checkpoint import Checkpoint, read_config
from meshnet.engine.formats import load_in_format
from meshnet.engine.forward import LayerRunner
from meshnet.engine.interface import GridAttention
from meshnet.engine.lean_choice import lean_runner
from meshnet.engine.runner import Passing, Runner, Segment, positions_of
from meshnet.engine.selftest import Closeness

WHOLE = LayerRange(0, LAYERS)
CONTEXT = 512
STEPS = ((0, 250), (250, 253), (253, 254), (254, 255), (255, 256), (256, 257), (257, 270))
"""A prefill, chunks and single positions, across the end of a cell."""


def entering_of(runner: Runner, length: int, seed: int = 0) -> Any:
    """Random ids or hidden states, as the runner's first layer takes them."""
    generator = torch.Generator().manual_seed(seed)
    if runner.held.start == 0:
        return torch.randint(0, VOCAB_SIZE, (1, length), generator=generator)
    return Passing(torch.randn(1, length, runner.hidden_size, generator=generator))


@torch.inference_mode()
def answer_of(runner: Runner) -> torch.Tensor:
    """Hidden states or logits of a session that goes through `STEPS`."""
    sequence, cache, answers = entering_of(runner, STEPS[-1][1]), runner.new_cache(runner.held), []
    for start, stop in STEPS:
        segments = [Segment(start, stop - start, cache)]
        part = positions_of(sequence, start, stop)
        if runner.held.stop == runner.total:
            answers.append(runner.logits(part, runner.held, segments, range(stop - start)))
        else:
            answers.append(runner.passing(part, runner.held, segments).hidden[0])
    assert cache.length == STEPS[-1][1]
    return torch.cat(answers)


@torch.inference_mode()
def apart_and_together(
    runner: Runner, pasts: tuple[int, ...], lengths: tuple[int, ...]
) -> tuple[tuple[torch.Tensor, list[Any]], tuple[torch.Tensor, list[Any]]]:
    """Logits and caches of steps of several sessions, one by one and in one call.

    `pasts`: positions that each session holds before. The runner holds the whole model.
    """
    alone, together = ([_filled(runner, *each) for each in enumerate(pasts)] for _ in range(2))
    parts = [
        positions_of(entering_of(runner, past + length, seed), past, past + length)
        for seed, (past, length) in enumerate(zip(pasts, lengths, strict=True))
    ]
    apart = [
        runner.logits(part, runner.held, [Segment(past, length, cache)], range(length))
        for part, past, length, cache in zip(parts, pasts, lengths, alone, strict=True)
    ]
    segments = list(map(Segment, pasts, lengths, together))
    at_once = runner.logits(torch.cat(parts, 1), runner.held, segments, range(sum(lengths)))
    return (torch.cat(apart), alone), (at_once, together)


def _filled(runner: Runner, seed: int, past: int) -> Any:
    cache = runner.new_cache(runner.held)
    if past:
        entering = entering_of(runner, past, seed)
        runner.passing(entering, runner.held, [Segment(0, past, cache)])
    return cache


class _Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.operators: list[str] = []

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None):
        self.operators.append(str(operator))
        return operator(*args, **(kwargs or {}))


@torch.inference_mode()
def operators_of_a_layer(runner: Runner) -> int:
    """At one token: what one layer more takes. Masks are made once for all layers."""
    counts = []
    for layers in (LayerRange(0, 4), LayerRange(0, 5)):
        cache = runner.new_cache(layers)
        runner.passing(entering_of(runner, 3), layers, [Segment(0, 3, cache)])
        with _Counting() as counting:
            runner.passing(entering_of(runner, 1), layers, [Segment(3, 1, cache)])
        counts.append(len(counting.operators))
    return counts[1] - counts[0]


@dataclass(frozen=True)
class Loaded:
    """Layers in a weight format, with a forward and an attention that a lean one takes over."""

    model: Any
    generic: LayerRunner
    attention: GridAttention

    def lean(self, *, compiled: Closeness | None = None) -> Runner | None:
        return lean_runner(self.model, self.generic, self.attention, CONTEXT, compiled=compiled)


def loaded_in(path: Path, weights: WeightFormat, layers: LayerRange = WHOLE) -> Loaded:
    loaded, form = load_in_format(
        path,
        Checkpoint(path),
        read_config(path),
        layers,
        weights,
        torch.device("cpu"),
        lambda sentence: None,
    )
    generic, attention = LayerRunner(loaded.model, form.dtype), GridAttention(4)
    generic.use_attention(attention.register())
    return Loaded(loaded.model, generic, attention)
