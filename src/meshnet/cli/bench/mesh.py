"""A private mesh for measurements, and one timed generation on it.

Every generation has the same length: the model's stop ids are banned, so it cannot end early.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace

from meshnet.cli.composition import ROUTE_WAIT_S, Composition, composed
from meshnet.cli.gateway_process import quiet_telemetry
from meshnet.cli.local_nodes import local_launcher
from meshnet.cli.models import load_text
from meshnet.cli.settings import Settings
from meshnet.core.vocabulary import LayerRange, MeshnetError, ModelId, SamplingParams
from meshnet.engine.models.pull import LocalModel
from meshnet.head import FinishEvent, GenerationRequest, HopClient

PROMPT = "Write a very long story about a machine that counts its own steps."
DEADLINE_S = 3600.0


class BenchError(MeshnetError):
    """A measurement that would say nothing: wrong length, or tokens that differ."""


@asynccontextmanager
async def bench_mesh(
    settings: Settings,
    source: LocalModel,
    layers: Sequence[LayerRange],
    *,
    through: Callable[[HopClient], HopClient] = lambda client: client,
    route_wait_s: float = ROUTE_WAIT_S,
) -> AsyncIterator[Composition]:
    """Run nodes of `layers` and a head over them until the block is left."""
    record = quiet_telemetry(settings).record
    launcher = local_launcher(settings, layers, record)
    async with launcher.running():
        text = load_text(source)
        await launcher.ready()
        nodes = {child.name: child.url for child in launcher.children}
        async with composed(
            settings,
            ModelId(source.name),
            text,
            nodes,
            record,
            through=through,
            route_wait_s=route_wait_s,
        ) as composition:
            yield composition


@dataclass(slots=True)
class Timed:
    """The tokens of one generation and when each arrived, seconds after the start."""

    prompt: tuple[int, ...]
    token_ids: list[int] = field(default_factory=list)
    at_s: list[float] = field(default_factory=list)
    refills: int = 0

    @property
    def tokens_per_s(self) -> float:
        """Rate after the first token."""
        return (len(self.at_s) - 1) / (self.at_s[-1] - self.at_s[0])


async def timed_generation(
    composition: Composition, prompt: Sequence[int], tokens: int, *, seed: int | None = None
) -> Timed:
    """Generate exactly `tokens` tokens, greedy ones without a seed.

    Raises GenerationFailed, BenchError.
    """
    timed = Timed(tuple(prompt))
    sampling = banning_stops(composition, len(prompt), tokens)
    if seed is not None:
        sampling = replace(sampling, temperature=1.0, seed=seed)
    request = GenerationRequest(
        prompt=timed.prompt,
        tokens_max=tokens,
        sampling=sampling,
        stop_ids=frozenset(),
        deadline_s=DEADLINE_S,
    )
    started = time.perf_counter()
    async with aclosing(composition.head.generate(request)) as events:
        async for event in events:
            if isinstance(event, FinishEvent):
                timed.refills = event.refills
                continue
            timed.at_s.append(time.perf_counter() - started)
            timed.token_ids.append(event.token.token_id)
    if len(timed.token_ids) != tokens:
        raise BenchError(f"expected {tokens} tokens, got {len(timed.token_ids)}")
    return timed


def banning_stops(composition: Composition, prompt_length: int, tokens: int) -> SamplingParams:
    return SamplingParams(
        prompt_length=prompt_length,
        banned=tuple(sorted(composition.text.stop_ids)),
        banned_until=prompt_length + tokens,
    )
