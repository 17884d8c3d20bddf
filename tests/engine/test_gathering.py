"""Sessions of layers that keep a state share a forward, and none meets another's state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.families import LAYERS, VOCAB_SIZE, save_family

from meshnet.core.vocabulary import LayerRange, WeightFormat
from meshnet.engine.cache import allocated_bytes, tensors
from meshnet.engine.gathering import GatheringForward
from meshnet.engine.loading import load_shard
from meshnet.engine.runner import Passing, Runner, Segment, joined, positions_of
from meshnet.engine.shard import TorchModelShard

NAMES = ["qwen3_next", "lfm2", "bamba", "falcon_h1", "nemotron_h", "kimi_linear", "mamba2"]
PASTS = (5, 17, 0, 9, 0, 0)
LENGTHS = (1, 1, 3, 1, 3, 2)
"""Three decodes, which share a call, and three prefills, which do not."""


@pytest.fixture(scope="module")
def shard_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., TorchModelShard]:
    """Shards by family, layers and weights, each loaded once."""

    @cache
    def saved(name: str) -> Path:
        return save_family(tmp_path_factory.mktemp(name), name)

    @cache
    def make(
        name: str, start: int, stop: int, weights: WeightFormat = WeightFormat.INT8
    ) -> TorchModelShard:
        return load_shard(saved(name), LayerRange(start, stop), weights=weights, token_text=str)

    return make


class Sessions:
    """Random sessions on the held layers of one shard."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.layers = runner.held
        self.inputs = [self._input(seed) for seed in range(len(PASTS))]
        self.caches = [runner.new_cache(self.layers) for _ in PASTS]
        self.pasts = list(PASTS)
        for session, past in enumerate(PASTS):
            if past:
                self._pass([session], [0], [past])

    def together(self, lengths: Sequence[int]) -> torch.Tensor:
        return self._advance([range(len(self.pasts))], lengths)

    def one_by_one(self, lengths: Sequence[int]) -> torch.Tensor:
        return self._advance([[session] for session in range(len(self.pasts))], lengths)

    def _advance(self, calls: Sequence[Sequence[int]], lengths: Sequence[int]) -> torch.Tensor:
        rows = [
            self._pass(call, [self.pasts[s] for s in call], [lengths[s] for s in call])
            for call in calls
        ]
        self.pasts = [past + length for past, length in zip(self.pasts, lengths, strict=True)]
        return torch.cat(rows, dim=-2)

    @torch.inference_mode()
    def _pass(
        self, sessions: Sequence[int], pasts: Sequence[int], lengths: Sequence[int]
    ) -> torch.Tensor:
        parts = [
            positions_of(self.inputs[session], past, past + length)
            for session, past, length in zip(sessions, pasts, lengths, strict=True)
        ]
        passing = [part for part in parts if isinstance(part, Passing)]
        entering = joined(passing) if passing else torch.cat(parts, 1)  # type: ignore[arg-type]
        segments = [
            Segment(past, length, self.caches[session])
            for session, past, length in zip(sessions, pasts, lengths, strict=True)
        ]
        return self.runner.passing(entering, self.layers, segments).hidden

    def _input(self, seed: int) -> torch.Tensor | Passing:
        generator = torch.Generator().manual_seed(seed)
        if self.layers.start == 0:
            return torch.randint(3, VOCAB_SIZE, (1, 32), generator=generator)
        return Passing(torch.randn(1, 32, self.runner.hidden_size, generator=generator) * 0.3)


def held(session: Any) -> list[torch.Tensor]:
    return [tensor for _, tensor in tensors(session)]


@pytest.mark.parametrize(
    ("name", "layers"), [*((name, (0, LAYERS)) for name in NAMES), ("qwen3_next", (2, 3))]
)
def test_sessions_of_one_call_come_out_as_each_alone(
    shard_of: Callable[..., TorchModelShard], name: str, layers: tuple[int, int]
):
    """Bitwise with int8 weights: only products have sums, and those are the same."""
    shard = shard_of(name, *layers)
    alone, together = Sessions(shard._runner), Sessions(shard._runner)

    for lengths in (LENGTHS, (1,) * len(PASTS)):
        expected, got = alone.one_by_one(lengths), together.together(lengths)

        assert torch.equal(got, expected)
    for mine, theirs in zip(together.caches, alone.caches, strict=True):
        assert mine.length == theirs.length
        assert all(map(torch.equal, held(mine), held(theirs)))


@pytest.mark.parametrize(
    ("name", "weights"),
    [*((name, WeightFormat.INT8) for name in NAMES), ("qwen3_next", WeightFormat.FP32)],
)
def test_shards_find_out_that_they_can_gather(
    shard_of: Callable[..., TorchModelShard], name: str, weights: WeightFormat
):
    capabilities = shard_of(name, 0, LAYERS, weights).description.capabilities

    assert capabilities.batch
    assert not capabilities.exact


def test_a_mixer_is_called_once_for_all_decodes(
    shard_of: Callable[..., TorchModelShard],
):
    shard = shard_of("qwen3_next", 0, 2)
    sessions = Sessions(shard._runner)
    shapes: list[tuple[int, ...]] = []
    layer = shard._runner.model.meshnet_layers.layer(1)
    mixer = next(m for m in layer.modules() if isinstance(m.forward, GatheringForward))
    mixer.forward = GatheringForward(_noting(mixer.forward._forward, shapes), 1)

    sessions.together(LENGTHS)

    assert [shape[:2] for shape in shapes] == [(3, 1), (1, 3), (1, 3), (1, 2)]


def test_no_session_keeps_the_memory_of_another_alive(shard_of: Callable[..., TorchModelShard]):
    shard = shard_of("bamba", 0, LAYERS)
    alone, together = Sessions(shard._runner), Sessions(shard._runner)

    alone.one_by_one(LENGTHS)
    together.together(LENGTHS)

    assert list(map(allocated_bytes, together.caches)) == list(map(allocated_bytes, alone.caches))


def test_a_mixer_that_takes_more_than_rows_does_not_batch(
    shard_of: Callable[..., TorchModelShard],
):
    """What else it reads would be another session's, or none's."""
    shard = shard_of("lfm2", 0, 2)
    sessions = Sessions(shard._runner)
    layer = shard._runner.model.meshnet_layers.layer(0)
    conv = layer.conv

    def with_mask(module: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return args, {**kwargs, "attention_mask": torch.ones(1, sum(LENGTHS))}

    conv.register_forward_pre_hook(with_mask, with_kwargs=True)

    with pytest.raises(TypeError, match="more than rows"):
        sessions.together(LENGTHS)


def _noting(forward: Callable[..., Any], shapes: list[tuple[int, ...]]) -> Callable[..., Any]:
    def noted(*args: Any, **kwargs: Any) -> Any:
        rows = [v for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor)]
        shapes.append(tuple(rows[0].shape))
        return forward(*args, **kwargs)

    return noted
