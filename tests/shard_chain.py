"""Drives `TorchModelShard.run` hop by hop in one process, and the unsplit model beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from meshnet.core.vocabulary import (
    Activation,
    Drawn,
    LayerRange,
    SampledToken,
    SamplingParams,
    ShardStep,
    WeightFormat,
)
from meshnet.engine.loading import load_shard
from meshnet.engine.session_state import SessionState
from meshnet.engine.shard import TorchModelShard


@dataclass(frozen=True, slots=True)
class Answer:
    """Greedy ids and the logits each was drawn from."""

    ids: list[int]
    logits: torch.Tensor

    def difference(self, other: Answer) -> float:
        return float((self.logits - other.logits).abs().max())


def unsplit(path: Path, prompt: Sequence[int], tokens: int, **settings: Any) -> Answer:
    """What transformers' own `generate` says; `use_cache=False` evaluates everything each step."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    ids = torch.tensor([list(prompt)])
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=tokens,
        min_new_tokens=tokens,
        eos_token_id=None,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
        **settings,
    )
    return Answer(
        output.sequences[0, len(prompt) :].tolist(), torch.stack(output.logits, 1)[0].float()
    )


def load_chain(
    path: Path, cuts: Sequence[int], total: int, weights: WeightFormat = WeightFormat.FP32
) -> list[TorchModelShard]:
    """Shards of the model in `path`, cut before the layers `cuts`."""
    edges = [0, *cuts, total]
    return [
        load_shard(path, LayerRange(start, stop), weights=weights)
        for start, stop in pairwise(edges)
    ]


class Chain:
    """Shards in a row, each with the state of one session."""

    def __init__(
        self, shards: Sequence[TorchModelShard], layers: Sequence[LayerRange] | None = None
    ) -> None:
        self.shards = shards
        self.layers = layers or [shard.description.layers for shard in shards]
        self.states: list[SessionState | None] = []
        self.logits: list[torch.Tensor] = []
        self.drop()
        tail = shards[-1]
        original = tail._drawn

        def recording(logits_V: torch.Tensor, *rest: Any) -> SampledToken:
            self.logits.append(logits_V.float().clone())
            return original(logits_V, *rest)

        tail._drawn = recording  # type: ignore[method-assign]

    def drop(self) -> None:
        """Lose every state, as after an eviction."""
        self.states = [
            shard.new_state(layers) for shard, layers in zip(self.shards, self.layers, strict=True)
        ]

    def step(
        self, ids: Sequence[int], past: int, *, cached: bool = True, want_token: bool = True
    ) -> SampledToken | None:
        """Send new positions through every shard."""
        output: Activation | Drawn | None = None
        for shard, layers, state in zip(self.shards, self.layers, self.states, strict=True):
            assert output is None or isinstance(output, Activation)
            request = ShardStep(
                layers=layers,
                past_length=past,
                length=len(ids),
                tokens=tuple(ids),
                activation=output,
                sampling=SamplingParams(),
                want_token=want_token,
            )
            output = shard.run(request, state if cached else None)
        assert not isinstance(output, Activation)
        return None if output is None else output.tokens[-1]

    def generate(
        self,
        prompt: Sequence[int],
        tokens: int,
        *,
        cached: bool = True,
        chunk: int | None = None,
        miss_at: int | None = None,
    ) -> Answer:
        """Greedy tokens, the prompt in chunks, all states lost before token `miss_at`."""
        self.drop()
        self.logits.clear()
        ids, drawn = list(prompt), []
        past = 0
        for index in range(tokens):
            if index == miss_at:
                self.drop()
                past = 0
            if not cached:
                token = self.step(ids, 0, cached=False)
            else:
                while chunk and past + chunk < len(ids) and index == 0:
                    self.step(ids[past : past + chunk], past, want_token=False)
                    past += chunk
                token = self.step(ids[past:], past)
                past = len(ids)
            assert token is not None
            drawn.append(token.token_id)
            ids.append(token.token_id)
        return Answer(drawn, torch.stack(self.logits))
