"""What the layers of a shard can do, found out by running them before anybody relies on it.

Layers do not reject a cache they cannot use: they swallow the argument. So a few random positions
are run in one piece, one by one after a prefill, and in two pieces; where the answers differ the
shard does without that ability, and says so.

    one by one differs   -> no KV cache: the shard is served stateless
    two pieces differ    -> no multi-token continuation: positions are fed one at a time (Jamba)
    not a number         -> the shard is refused

A difference counts against what losing the context altogether would do to the same positions,
so one rule serves every element type. The median over positions is taken: in low precision a
router near a tie may send a single position to another expert.

Legend: T positions, D hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from meshnet.core.protocol.marks import MARKS_MAX
from meshnet.core.vocabulary import KVBytes, ModelError, WeightFormat
from meshnet.engine.cache import copy_bytes, kv_bytes, unfilled_layers
from meshnet.engine.cuttings import Cuttings, CuttingTrial, Pair, features
from meshnet.engine.heap import raise_if_out_of_memory
from meshnet.engine.runner import Passing, Runner, Segment, positions_of

POSITIONS = 10
PREFILLS = (4, 8)
"""Lengths of the first pieces: the shorter is continued at once, the longer one by one."""
INPUT_SCALE = 0.1


@dataclass(frozen=True, slots=True)
class Closeness:
    """How far right answers lie apart, relative to what is expected.

    Quantised layers enlarge what rounding leaves: a value that falls to the other side of a step
    moves by the whole step.
    """

    tolerance: float
    """Between two cuts of the same work: never more, whatever a lost context would do."""
    noise: float
    """So much is nothing."""
    attention: float
    """Between two kernels for the same attention, over all layers."""


CLOSENESS = {
    WeightFormat.FP32: Closeness(1e-3, 1e-5, 1e-3),
    WeightFormat.FP16: Closeness(0.05, 2e-3, 0.05),
    WeightFormat.BF16: Closeness(0.15, 1.6e-2, 0.15),
    WeightFormat.INT8: Closeness(5e-3, 1e-3, 0.02),
    WeightFormat.INT8_FAST: Closeness(0.03, 1.6e-2, 0.2),
}
_OF_TYPE = {
    torch.float32: CLOSENESS[WeightFormat.FP32],
    torch.float16: CLOSENESS[WeightFormat.FP16],
    torch.bfloat16: CLOSENESS[WeightFormat.BF16],
}


@dataclass(frozen=True, slots=True)
class Findings:
    """What a shard can do. `notes` say in words what it cannot."""

    kv_cache: bool
    multi_token: bool
    kv_bytes: KVBytes
    truncate: bool = False
    marks: int = 0
    batch: bool = False
    exact: bool = False
    """Nothing depends on how the work is cut, bit for bit."""
    notes: tuple[str, ...] = ()


@torch.inference_mode()
def self_test(
    runner: Runner,
    positions_max: int,
    closeness: Closeness | None = None,
    *,
    context: int | None = None,
) -> Findings:
    """Try the held layers on a few random positions. Raises ModelError if they yield no numbers.

    Args:
        closeness: of the weight format; that of the element type if left out.
        context: positions that a session has at most.
    """
    trial = _Trial(runner, positions_max, closeness or closeness_of(runner.dtype))
    try:
        whole_TD = trial.run(0, trial.positions, None)
    except (RuntimeError, ValueError, TypeError) as error:
        raise_if_out_of_memory(error)
        raise ModelError(f"layers {runner.held}: the self-test failed: {error}") from error
    if not bool(torch.isfinite(whole_TD).all()):
        raise ModelError(f"layers {runner.held} yield NaN or infinity in {runner.dtype}")
    try:
        return _cached_findings(trial, whole_TD, context)
    except (RuntimeError, ValueError, TypeError, AttributeError, KeyError, IndexError) as error:
        raise_if_out_of_memory(error)
        return _no_cache(f"layers {runner.held} fail with a cache: {error}")


class _Trial:
    """Pieces of one random sequence through the held layers."""

    def __init__(self, runner: Runner, positions_max: int, closeness: Closeness) -> None:
        self.runner = runner
        self.closeness = closeness
        self.positions = min(POSITIONS, positions_max)
        self._positions_max = positions_max
        self._sequence = random_input(runner, self.positions)

    def new_cache(self) -> Any:
        return self.runner.new_cache(self.runner.held)

    def run(self, start: int, stop: int, cache: Any | None) -> Tensor:
        piece = positions_of(self._sequence, start, stop)
        segments = [Segment(start, stop - start, cache)]
        hidden = self.runner.passing(piece, self.runner.held, segments).hidden
        return features(hidden)

    def cuttings(self, like: Any) -> Cuttings:
        trial = CuttingTrial(self.runner, self._sequence, self.positions, self._positions_max)
        return trial.run(like)


def random_input(runner: Runner, positions: int) -> Tensor | Passing:
    """Ids BT, or hidden states for layers that do not embed; always the same."""
    generator = torch.Generator().manual_seed(0)
    if runner.held.start == 0:
        ids = torch.randint(0, runner.vocab_size, (1, positions), generator=generator)
        return ids.to(runner.device)

    def normal(*shape: int) -> Tensor:
        values = torch.randn(shape, generator=generator) * INPUT_SCALE
        return values.to(device=runner.device, dtype=runner.dtype)

    rest = runner.total - runner.held.start
    width = runner.per_layer_width
    return Passing(
        normal(*runner.leading_axes, 1, positions, runner.hidden_size),
        normal(1, positions, rest, width) if width else None,
    )


def _cached_findings(trial: _Trial, whole_TD: Tensor, context: int | None) -> Findings:
    short, long = PREFILLS
    caches = [trial.new_cache() for _ in range(3)]
    prefilled = list(zip((short, long, trial.positions), caches, strict=True))
    for length, cache in prefilled:
        trial.run(0, length, cache)
    promised = kv_bytes(prefilled, context)
    empty = unfilled_layers(caches[0])
    if empty:
        return _no_cache(f"layers {empty} hold nothing after a prefill: they swallow the cache")
    last = range(long, trial.positions)
    singles_TD = torch.cat([trial.run(at, at + 1, caches[1]) for at in last])
    alone_TD = torch.cat([trial.run(at, at + 1, None) for at in last])
    lost = distance(alone_TD, whole_TD[long:])
    if not _agree(distance(singles_TD, whole_TD[long:]), lost, trial.closeness):
        return _no_cache(f"layers {trial.runner.held} answer otherwise with a cache")
    piece_TD = trial.run(short, trial.positions, caches[0])
    multi_token = _agree(distance(piece_TD, whole_TD[short:]), lost, trial.closeness)
    note = f"layers {trial.runner.held} lose their state when several positions follow a cache"
    if not multi_token:
        return Findings(True, False, promised, notes=(note,))
    like = caches[2]
    del caches, prefilled, cache  # the next trial makes its own
    return _cut_findings(trial, like, promised, lost)


def _cut_findings(trial: _Trial, like: Any, promised: KVBytes, lost: float) -> Findings:
    findings = Findings(True, True, promised)
    if trial.positions < POSITIONS:
        return findings
    cuttings = trial.cuttings(like)

    def hold(pairs: Sequence[Pair]) -> bool:
        distances = [distance(pair.got, pair.expected) for pair in pairs]
        return bool(pairs) and _agree(max(distances), lost, trial.closeness)

    batch = hold(cuttings.shared)
    goes_back = cuttings.continued is not None and hold([cuttings.continued])
    copies = MARKS_MAX if goes_back and cuttings.sums_up else 0
    return replace(
        findings,
        kv_bytes=replace(promised, fixed=promised.fixed + copies * copy_bytes(like)),
        truncate=goes_back and not cuttings.sums_up,
        marks=copies,
        batch=batch,
        exact=cuttings.alone_equal and (cuttings.shared_equal or not batch),
    )


def distance(got_TD: Tensor, expected_TD: Tensor) -> float:
    """Median over positions of the difference, relative to what is expected."""
    expected_TD = expected_TD.float()
    difference_T = (got_TD.float() - expected_TD).norm(dim=-1)
    relative_T = difference_T / expected_TD.norm(dim=-1).clamp_min(1e-20)
    return float(relative_T.median())


def closeness_of(dtype: torch.dtype) -> Closeness:
    """Of weights that are not quantised."""
    return _OF_TYPE[dtype]


def _agree(distance: float, lost: float, closeness: Closeness) -> bool:
    return distance <= min(closeness.tolerance, max(lost / 2, closeness.noise))


def _no_cache(note: str) -> Findings:
    return Findings(False, False, KVBytes(0), notes=(note,))
