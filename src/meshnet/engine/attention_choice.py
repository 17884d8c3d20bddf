"""Which attention the layers of a shard get: ours if they can be told what they need by it.

Most models go through transformers' `AttentionInterface`; some call kernels of their own, or mean
something by a mask that ours does not know. So the layers run a few random positions under both,
with a cache and without, and ours stays where they agree.

How many rows a product needs for each of them to come out as in any other company depends on the
kernels of this machine, the shapes and the number of threads: it is tried.

Invariants
    * an attention that was not tried is not used;
    * what is chosen has a name, and the arithmetic id holds it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from meshnet.engine.attention import Shape, attend
from meshnet.engine.forward import LayerRunner
from meshnet.engine.heap import raise_if_out_of_memory
from meshnet.engine.interface import AttentionCall, GridAttention, refusal
from meshnet.engine.kv import KEY_GRID, KVBuffer
from meshnet.engine.runner import Segment
from meshnet.engine.selftest import (
    POSITIONS,
    Closeness,
    closeness_of,
    distance,
    random_input,
)

ROWS_MIN = (1, 2, 4, 8, 16)
"""Tried in turn."""
STOPS = (KEY_GRID, 4 * KEY_GRID)
"""Keys at the end of which a trial's rows are."""
FAST_NOTE = "fast prefill: results depend on chunks, batches and refills in their low bits"
COMPANY_NOTE = "attention: a row's result depends on the rows beside it, so recovery is not bitwise"
ROWS_TOGETHER = 64
ROWS_ALONE = range(1, 17)


@dataclass(frozen=True, slots=True)
class AttentionChoice:
    """What the layers attend by."""

    name: str
    rows_min: int
    """Of our attention, whether or not it was chosen."""
    exact: bool
    """Whether a row's result is the same in any company."""
    notes: tuple[str, ...] = ()
    ours: GridAttention | None = None
    """What `name` stands for, if that is ours."""


@torch.inference_mode()
def choose_attention(
    runner: LayerRunner,
    positions_max: int,
    *,
    closeness: Closeness | None = None,
    fast_prefill: bool = False,
) -> AttentionChoice:
    """Let `runner` attend by ours if its layers agree with it, else leave it as it is.

    Args:
        closeness: of the weight format; that of the element type if left out.
    """
    own = runner.attention
    seen: set[AttentionCall] = set()
    tolerance = (closeness or closeness_of(runner.dtype)).attention
    why = _objection(runner, min(POSITIONS, positions_max), seen, tolerance)
    if why is not None:
        runner.use_attention(own)
        note = f"layers {runner.held} keep the attention {own}: {why}"
        return AttentionChoice(own, max(ROWS_MIN), exact=False, notes=(note,))
    if not seen:
        # Linear and convolutional layers only: nothing attends.
        runner.use_attention(own)
        return AttentionChoice(own, max(ROWS_MIN), exact=True)
    trials = trials_of(seen, runner.dtype, runner.device)
    rows_min = rows_needed(trials)
    chosen = GridAttention(rows_min or max(ROWS_MIN), digest=digest_of(trials), fast=fast_prefill)
    runner.use_attention(chosen.register())
    exact = rows_min is not None and not fast_prefill
    notes = (FAST_NOTE,) if fast_prefill else () if exact else (COMPANY_NOTE,)
    return AttentionChoice(chosen.name, chosen.rows_min, exact, notes, ours=chosen)


def _objection(
    runner: LayerRunner, positions: int, seen: set[AttentionCall], tolerance: float
) -> str | None:
    """Why the layers cannot attend by ours. Whoever fails altogether is left to the self-test."""
    why = refusal(runner.config, runner.held)
    if why is not None:
        return why
    entering = random_input(runner, positions)

    def hidden(cached: bool) -> Tensor:
        cache = runner.new_cache(runner.held) if cached else None
        segments = [Segment(0, positions, cache)]
        return runner.passing(entering, runner.held, segments).hidden.flatten(0, -2)

    try:
        expected = hidden(cached=False)
    except (RuntimeError, ValueError, TypeError) as error:
        raise_if_out_of_memory(error)
        return f"it fails: {error}"
    runner.use_attention(GridAttention(max(ROWS_MIN), seen=seen).register())
    try:
        got = [hidden(cached=False), hidden(cached=True)]
    # What a model does with a mask that is not there is anybody's guess.
    except (RuntimeError, ValueError, TypeError, AttributeError, IndexError) as error:
        raise_if_out_of_memory(error)
        return f"they fail with ours: {error}"
    if max(distance(values, expected) for values in got) > tolerance:
        return "they answer otherwise with ours"
    return None


def trials_of(
    calls: Iterable[AttentionCall], dtype: torch.dtype, device: torch.device
) -> list[RowTrial]:
    """Fixed rows in every shape that the layers call attention in, at the end of two cells."""
    return [RowTrial(call, stop, dtype, device) for call in sorted(calls) for stop in STOPS]


def rows_needed(trials: Sequence[RowTrial]) -> int | None:
    """The fewest rows a product needs for each to come out as it would in any company."""
    for rows_min in ROWS_MIN:
        if all(trial.agrees(rows_min) for trial in trials):
            return rows_min
    return None


def digest_of(trials: Sequence[RowTrial]) -> str:
    """Of the answers to fixed rows, which machines with other kernels do not share."""
    digest = hashlib.sha256()
    for trial in trials:
        bits = trial.together_THD.contiguous().view(torch.uint8).cpu()
        digest.update(bits.numpy().tobytes())
    return digest.hexdigest()[:16]


class RowTrial:
    """The last rows of a random session, alone and together."""

    def __init__(
        self, call: AttentionCall, stop: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        generator = torch.Generator().manual_seed(0)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator).to(device=device, dtype=dtype)

        self._held = KVBuffer()
        self._held.append(
            normal(call.kv_heads, stop, call.key_size), normal(call.kv_heads, stop, call.value_size)
        )
        self._start = stop - ROWS_TOGETHER
        self._query_THD = normal(ROWS_TOGETHER, call.heads, call.key_size)
        self._shape = Shape(call.key_size**-0.5)
        self.together_THD = self._attend(0, ROWS_TOGETHER, max(ROWS_MIN))

    def agrees(self, rows_min: int) -> bool:
        for rows in ROWS_ALONE:
            for start in (0, ROWS_TOGETHER // 2 + 1, ROWS_TOGETHER - rows):
                alone_THD = self._attend(start, start + rows, rows_min)
                if not torch.equal(alone_THD, self.together_THD[start : start + rows]):
                    return False
        return True

    def _attend(self, start: int, stop: int, rows_min: int) -> Tensor:
        query_THD = self._query_THD[start:stop]
        return attend(query_THD, self._held, self._start + start, self._shape, rows_min=rows_min)
