"""The baselines without a mesh: one process, the whole model, no wire.

`LoneEngine` is the shard of meshnet over all layers, driven by a bare loop: what splitting, head,
wire and API cost is what it does not have. `Transformers` is `generate` on the same files.
Both decode greedily with the model's stop ids banned, and time each token as it is there.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from meshnet.cli.models import format_of, load_text, resolve_model
from meshnet.cli.settings import Settings, Weights
from meshnet.core.vocabulary import Drawn, LayerRange, SamplingParams, ShardStep
from meshnet.engine.loading import layers_total, load_shard
from meshnet.engine.shard import TorchModelShard


class LoneEngine:
    def __init__(self, shard: TorchModelShard, stop_ids: Sequence[int]) -> None:
        self._shard, self._stop_ids = shard, tuple(sorted(stop_ids))

    @classmethod
    def loaded(cls, settings: Settings) -> LoneEngine:
        """Load the whole model of `settings`. Raises MeshnetError."""
        torch.set_num_threads(settings.threads or 1)
        source = resolve_model(settings.model, settings)
        layers = LayerRange(0, layers_total(source.path))
        shard = load_shard(source.path, layers, weights=format_of(settings.weights))
        return cls(shard, sorted(load_text(source).stop_ids))

    def answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Return `ids` and `at_s` of exactly `tokens` greedy tokens after `prompt`."""
        prompt, tokens = question["prompt"], int(question["tokens"])
        began = time.perf_counter()
        ids: list[int] = []
        at_s: list[float] = []
        sampling = SamplingParams(
            prompt_length=len(prompt),
            banned=self._stop_ids,
            banned_until=len(prompt) + tokens,
        )
        state = self._shard.new_state(self._shard.description.layers)
        new, past = tuple(prompt), 0
        while len(ids) < tokens:
            step = ShardStep(
                layers=self._shard.description.layers,
                past_length=past,
                length=len(new),
                tokens=new,
                activation=None,
                sampling=sampling,
            )
            drawn = self._shard.run(step, state)
            assert isinstance(drawn, Drawn)
            at_s.append(time.perf_counter() - began)
            ids.append(drawn.ids[-1])
            past, new = past + len(new), (ids[-1],)
        return {"ids": ids, "at_s": at_s}


class Transformers:
    def __init__(self, model: Any, stop_ids: Sequence[int]) -> None:
        self._model, self._stop_ids = model, list(stop_ids)

    @classmethod
    def loaded(cls, settings: Settings) -> Transformers:
        """Load the model as transformers does; bf16 if asked for, else fp32."""
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(settings.threads or 1)
        source = resolve_model(settings.model, settings)
        kind = torch.bfloat16 if settings.weights is Weights.BF16 else torch.float32
        model = AutoModelForCausalLM.from_pretrained(source.path, dtype=kind, local_files_only=True)
        return cls(model.eval(), sorted(load_text(source).stop_ids))

    def answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Return `ids` and `at_s` of exactly `tokens` greedy tokens after `prompt`."""
        prompt, tokens = question["prompt"], int(question["tokens"])
        clock = _TokenClock()
        ids_BT = torch.tensor([list(prompt)])
        with torch.inference_mode():
            self._model.generate(
                ids_BT,
                attention_mask=torch.ones_like(ids_BT),
                max_new_tokens=tokens,
                min_new_tokens=tokens,
                do_sample=False,
                suppress_tokens=self._stop_ids or None,
                pad_token_id=self._stop_ids[0] if self._stop_ids else 0,
                streamer=clock,
            )
        return {"ids": clock.ids, "at_s": clock.at_s}


class _TokenClock:
    """A streamer that notes when each token was there; the first call is the prompt."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._prompt_seen = False
        self.ids: list[int] = []
        self.at_s: list[float] = []

    def put(self, value: Any) -> None:
        if not self._prompt_seen:
            self._prompt_seen = True
            return
        self.at_s.append(time.perf_counter() - self._began)
        self.ids.extend(value.reshape(-1).tolist())

    def end(self) -> None:
        pass
