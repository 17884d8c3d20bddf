"""One answer by shards in one process, cut, chunked, batched and refilled as asked: worker `exact`.

Every logit that a token is drawn from goes into the digest, and at the end all K and V of all
layers; a wrapper around the sampler, put there before anything is loaded, sees the logits.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from meshnet.cli.bench.digests import ids_digest
from meshnet.cli.bench.mesh import BenchError
from meshnet.cli.bench.prompts import Prompts
from meshnet.cli.local_nodes import split_layers
from meshnet.cli.models import format_of, load_text, resolve_model
from meshnet.cli.settings import Settings
from meshnet.core.vocabulary import Activation, Drawn, MeshnetError, SamplingParams, ShardStep
from meshnet.engine.loading import load_shard
from meshnet.engine.sampling import Sampler
from meshnet.engine.session_state import SessionState
from meshnet.engine.shard import TorchModelShard

PROMPT_TOKENS = 300
POSITIONS = 100_000
"""More than any answer has."""
SIDE = 100
"""Prompts of other sessions are numbered from here on."""

States = list[SessionState]


class ExactEngine:
    """Works out the same answer in different ways and returns its digest."""

    def __init__(self, settings: Settings) -> None:
        torch.set_num_threads(settings.threads or 1)
        self._settings = settings
        self._source = resolve_model(settings.model, settings)
        text = load_text(self._source)
        self._stop_ids = tuple(sorted(text.stop_ids))
        self._prompts = Prompts(lambda words: text.encode(words, special=False))
        self._logits: Callable[[torch.Tensor], None] = _ignored
        self._shards: list[TorchModelShard] = []
        self._watch_the_sampler()

    def answer(self, question: Mapping[str, Any]) -> dict[str, str]:
        """Return the `sha256` of `tokens` tokens by so many `shards`, and that of their ids.

        `chunk`: positions of a prefill step; `others`: sessions whose decodes share every step;
        `refills`: how often the caches are thrown away and filled again from ids.
        """
        self._load(int(question["shards"]))
        found = hashlib.sha256()
        chunk = int(question.get("chunk", 10**6))
        refills = _places(int(question.get("refills", 0)), int(question["tokens"]))
        ids = list(self._prompts.ids(0, PROMPT_TOKENS))
        self._logits = _ignored
        others = [self._other(at, chunk) for at in range(int(question.get("others", 0)))]
        self._logits = lambda logits_V: found.update(_bytes(logits_V))
        states, token = self._filled(ids, chunk)
        ids.append(token)
        for at in range(1, int(question["tokens"])):
            for _ in range(refills.count(at)):
                self._logits = _ignored
                states, _ = self._filled(ids[:-1], chunk)
                self._logits = lambda logits_V: found.update(_bytes(logits_V))
            ids.append(self._decoded(ids, states, others))
        found.update(repr(ids).encode())
        answer = ids[PROMPT_TOKENS:]
        for tensor in _cached(states):
            found.update(_bytes(tensor))
        return {"sha256": found.hexdigest(), "ids": ids_digest(answer)}

    def _load(self, count: int) -> None:
        if len(self._shards) != count:
            self._shards = []
            self._shards = [
                load_shard(self._source.path, held, weights=format_of(self._settings.weights))
                for held in split_layers(self._source, nodes=count, split=None)
            ]

    def _watch_the_sampler(self) -> None:
        draw = Sampler.draw

        def watched(sampler: Sampler, logits_V: torch.Tensor, *rest: Any) -> Any:
            self._logits(logits_V)
            return draw(sampler, logits_V, *rest)

        Sampler.draw = watched  # type: ignore[method-assign, assignment]

    def _filled(self, ids: Sequence[int], chunk: int) -> tuple[States, int]:
        """Prefill fresh caches; return them and the token drawn after the last position."""
        states = [shard.new_state(shard.description.layers) for shard in self._shards]
        token = -1
        for start in range(0, len(ids), chunk):
            part = tuple(ids[start : start + chunk])
            last = start + chunk >= len(ids)
            result: Any = None
            for shard, state in zip(self._shards, states, strict=True):
                result = shard.run(self._step(shard, start, part, result, wants=last), state)
            token = result.ids[-1] if isinstance(result, Drawn) else token
        return states, token

    def _other(self, number: int, chunk: int) -> tuple[list[int], States]:
        """Return the ids of another session, and its caches of all but the last."""
        ids = list(self._prompts.ids(SIDE + number, PROMPT_TOKENS // 3 + number))
        states, token = self._filled(ids, chunk)
        return [*ids, token], states

    def _decoded(
        self, ids: list[int], states: States, others: list[tuple[list[int], States]]
    ) -> int:
        """Run one decode of the session, with those of the others in the same forward."""
        sessions = [(ids, states), *others]
        results: list[Any] = [None] * len(sessions)
        for place, shard in enumerate(self._shards):
            work = [
                (self._step(shard, len(their) - 1, (their[-1],), result), held[place])
                for (their, held), result in zip(sessions, results, strict=True)
            ]
            # The logits of others are not the answer's: only the first row is looked at.
            results = list(self._first_heard(shard, work))
        for (their, _), result in zip(others, results[1:], strict=True):
            their.append(result.ids[-1])
        token: int = results[0].ids[-1]
        return token

    def _step(
        self,
        shard: TorchModelShard,
        past: int,
        ids: tuple[int, ...],
        entering: Any,
        *,
        wants: bool = True,
    ) -> ShardStep:
        return ShardStep(
            layers=shard.description.layers,
            past_length=past,
            length=len(ids),
            tokens=ids,
            activation=entering if isinstance(entering, Activation) else None,
            sampling=SamplingParams(banned=self._stop_ids, banned_until=POSITIONS),
            want_token=wants,
        )

    def _first_heard(
        self, shard: TorchModelShard, work: list[tuple[ShardStep, SessionState]]
    ) -> Sequence[Any]:
        heard, count = self._logits, 0

        def first(logits_V: torch.Tensor) -> None:
            nonlocal count
            if count == 0:
                heard(logits_V)
            count += 1

        self._logits = first
        try:
            results = shard.run_batch(work)
        finally:
            self._logits = heard
        for result in results:
            if isinstance(result, MeshnetError):
                raise result
        return results


def _ignored(logits_V: torch.Tensor) -> None:
    """Logits that are not the answer's."""


def _places(count: int, tokens: int) -> list[int]:
    """Return where in the answer to refill: anywhere, also twice at one place."""
    drawn = random.Random(count)
    return [drawn.randrange(1, tokens) for _ in range(count)]


def _cached(states: States) -> list[torch.Tensor]:
    """Return K and V of every layer, in the order of the model's layers. Raises BenchError."""
    layers = [layer for state in states for layer in state.cache.layers]
    buffers = [layer.buffer for layer in layers if hasattr(layer, "buffer")]
    found = [
        tensor
        for buffer in buffers
        if buffer.length > buffer.start
        for tensor in buffer.last(buffer.length - buffer.start)
    ]
    if not found:
        raise BenchError("the caches show no keys and values: nothing was compared")
    return found


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().view(torch.uint8).numpy().tobytes()
