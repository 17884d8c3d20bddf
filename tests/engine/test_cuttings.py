"""With int8 weights a position's bits do not depend on how the work was cut, in any way at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.families import LAYERS, VOCAB_SIZE, save_family

from meshnet.core.vocabulary import LayerRange, WeightFormat
from meshnet.engine import lean_choice
from meshnet.engine.compiled.runner import CompiledRunner
from meshnet.engine.forward import LayerRunner
from meshnet.engine.kv import KEY_GRID, BufferedLayer
from meshnet.engine.lean import LeanRunner
from meshnet.engine.loading import load_shard
from meshnet.engine.runner import Passing, Runner, Segment
from meshnet.engine.shard import TorchModelShard

COMPILED = ["llama", "qwen2", "qwen3", "mistral-swa"]
PLAIN = "qwen3, operator by operator"
NAMES = [*COMPILED, PLAIN, "gemma3", "gpt_oss", "deepseek_v3"]
LENGTH = 2 * KEY_GRID + 40
"""Of the longest session: three cells, and windows of 8 that are left far behind."""


@dataclass
class Whole:
    """A model in one piece, and sessions prefilled at once in it: what everything must equal."""

    shard: TorchModelShard
    ids: list[torch.Tensor]
    logits: list[torch.Tensor]
    caches: list[Any]

    @property
    def runner(self) -> Runner:
        return self.shard._runner


@dataclass(frozen=True)
class Step:
    """New positions of some sessions in one call; those that are not `kept` are undone first."""

    lengths: tuple[int, ...]
    """Of each session; 0: not in this call."""
    undone: int
    refilled: bool


@dataclass
class Session:
    ids: torch.Tensor
    caches: list[Any]
    past: int = 0
    rows: list[torch.Tensor] = field(default_factory=list)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Whole]:
    made: dict[str, Whole] = {}

    def make(name: str) -> Whole:
        if name not in made:
            made[name] = _whole(tmp_path_factory.mktemp(name), name)
        return made[name]

    return make


@torch.inference_mode()
def _whole(path: Path, name: str) -> Whole:
    save_family(path, name.partition(",")[0], max_position_embeddings=2048)
    with pytest.MonkeyPatch.context() as patch:
        if name == PLAIN:
            patch.setattr(lean_choice, "_compiled", lambda *arguments: None)
        shard = load_shard(path, LayerRange(0, LAYERS), weights=WeightFormat.INT8)
    generator = torch.Generator().manual_seed(3)
    ids = [torch.randint(3, VOCAB_SIZE, (1, LENGTH), generator=generator) for _ in range(3)]
    whole = Whole(shard, ids, [], [])
    for sequence in ids:
        cache = whole.runner.new_cache(LayerRange(0, LAYERS))
        segments = [Segment(0, LENGTH, cache)]
        every = range(LENGTH)
        whole.logits.append(
            whole.runner.logits(sequence, LayerRange(0, LAYERS), segments, every).clone()
        )
        whole.caches.append(cache)
    return whole


@st.composite
def cuts(draw: st.DrawFn) -> list[LayerRange]:
    between = draw(st.sets(st.integers(1, LAYERS - 1), max_size=3))
    return [LayerRange(*pair) for pair in pairwise([0, *sorted(between), LAYERS])]


LENGTHS = st.one_of(st.just(0), st.just(1), st.integers(1, 9), st.sampled_from([64, 255, 256, 300]))
STEPS = st.lists(
    st.builds(
        Step,
        lengths=st.tuples(LENGTHS, LENGTHS, LENGTHS),
        undone=st.sampled_from([0, 0, 0, 1, 3, 100, 255]),
        refilled=st.sampled_from([False, False, False, False, True]),
    ),
    min_size=1,
    max_size=14,
)


@pytest.mark.parametrize("name", NAMES)
def test_a_shard_finds_out_that_it_is_exact(whole: Callable[[str], Whole], name: str):
    capabilities = whole(name).shard.description.capabilities

    assert capabilities.exact
    assert capabilities.truncate
    assert capabilities.batch


@pytest.mark.parametrize("name", NAMES)
def test_what_is_cut_here_is_compiled_where_it_can_be(whole: Callable[[str], Whole], name: str):
    kind = CompiledRunner if name in COMPILED else LeanRunner if name == PLAIN else LayerRunner

    assert type(whole(name).runner) is kind


@pytest.mark.parametrize("name", ["lfm2", "bamba", "qwen3_next"])
def test_a_state_summed_up_over_chunks_is_never_called_exact(tmp_path: Path, name: str):
    """A few positions may well come out equal; a long prefill in chunks would not."""
    path = save_family(tmp_path, name)

    shard = load_shard(path, LayerRange(0, LAYERS), weights=WeightFormat.INT8)

    assert not shard.description.capabilities.exact
    assert not shard.description.capabilities.truncate


@pytest.mark.parametrize("name", NAMES)
@settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(parts=cuts(), steps=STEPS)
def test_no_cut_changes_a_bit(
    whole: Callable[[str], Whole], name: str, parts: list[LayerRange], steps: list[Step]
):
    """Splits, chunks, single positions, truncation, refills and company, mixed at random."""
    model = whole(name)
    sessions = [Session(ids, _new_caches(model, parts)) for ids in model.ids]

    for step in steps:
        _run(model, parts, sessions, step)

    for session, logits, cache in zip(sessions, model.logits, model.caches, strict=True):
        for row in session.rows:
            position = int(row[0])
            assert torch.equal(row[1:], logits[position])
        _assert_same_state(session, parts, cache)


def _new_caches(model: Whole, parts: Sequence[LayerRange]) -> list[Any]:
    return [model.runner.new_cache(layers) for layers in parts]


@torch.inference_mode()
def _run(
    model: Whole, parts: Sequence[LayerRange], sessions: Sequence[Session], step: Step
) -> None:
    for session in sessions:
        if step.refilled:
            session.caches, session.past = _new_caches(model, parts), 0
        else:
            _undo(session, step.undone)
    wanted = [
        (session, min(length, LENGTH - session.past))
        for session, length in zip(sessions, step.lengths, strict=True)
    ]
    calls = [(session, length) for session, length in wanted if length]
    if model.shard.description.capabilities.batch:
        _advance(model, parts, calls)
    else:
        for call in calls:
            _advance(model, parts, [call])


def _undo(session: Session, positions: int) -> None:
    length = max(0, session.past - positions)
    if all(cache.can_truncate(length) for cache in session.caches):
        for cache in session.caches:
            cache.truncate(length)
        session.past = length


def _advance(
    model: Whole, parts: Sequence[LayerRange], calls: Sequence[tuple[Session, int]]
) -> None:
    if not calls:
        return
    entering: torch.Tensor | Passing = torch.cat(
        [session.ids[:, session.past : session.past + length] for session, length in calls], 1
    )
    total = sum(length for _, length in calls)
    for index, layers in enumerate(parts):
        segments = [
            Segment(session.past, length, session.caches[index]) for session, length in calls
        ]
        if layers.stop < LAYERS:
            entering = model.runner.passing(entering, layers, segments)
        else:
            logits = model.runner.logits(entering, layers, segments, range(total))
    at = 0
    for session, length in calls:
        for position in range(session.past, session.past + length):
            row = logits[at]
            session.rows.append(torch.cat([row.new_tensor([float(position)]), row]))
            at += 1
        session.past += length


def _assert_same_state(session: Session, parts: Sequence[LayerRange], expected: Any) -> None:
    for layers, cache in zip(parts, session.caches, strict=True):
        assert cache.length == session.past
        for index in range(layers.start, layers.stop):
            held, whole = cache.layers[index], expected.layers[index]
            assert isinstance(held, BufferedLayer)
            first = max(held.buffer.start, whole.buffer.start)
            if session.past > first:
                for ours, theirs in zip(
                    held.buffer.last(session.past - first),
                    whole.buffer.last(LENGTH - first),
                    strict=True,
                ):
                    assert torch.equal(ours, theirs[:, : session.past - first])
