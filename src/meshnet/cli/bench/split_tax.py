"""`meshnet bench split-tax`: what splitting costs, against the same engine unsplit.

Every variant is a real mesh of node processes behind a real head; all are up at once and take
turns, so a busy moment of the machine hits each alike. Ratios are paired within a round.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshnet.cli.bench.mesh import PROMPT, BenchError, bench_mesh, timed_generation
from meshnet.cli.bench.paired import spread
from meshnet.cli.bench.results import provenance, result_path, write_result
from meshnet.cli.composition import Composition
from meshnet.cli.local_nodes import split_layers
from meshnet.cli.models import prompt_ids, resolve_model
from meshnet.cli.options import print_json
from meshnet.cli.serving import run_loop
from meshnet.cli.settings import Settings
from meshnet.engine.models.pull import LocalModel


@dataclass(frozen=True, slots=True)
class Variant:
    nodes: int
    threads: int

    def __str__(self) -> str:
        nodes = "1 node" if self.nodes == 1 else f"{self.nodes} nodes"
        return f"{nodes} x {self.threads} thread{'s' if self.threads > 1 else ''}"


SPLIT = Variant(2, 1)
VARIANTS = (SPLIT, Variant(2, 2), Variant(1, 1), Variant(1, 2))
UNSPLIT = tuple(variant for variant in VARIANTS if variant.nodes == 1)


def measure_split_tax(
    settings: Settings, *, tokens: int, rounds: int, out: Path, as_json: bool
) -> None:
    """Measure, write JSON under `out`, and print. Raises MeshnetError."""
    source = resolve_model(settings.model, settings)
    result = run_loop(lambda: _measure(settings, source, tokens, rounds))
    written = write_result(result_path(out, source.name, "split-tax"), result)
    if as_json:
        print_json(result)
        return
    for name, rate in result["tokens_per_s"].items():
        print(f"{name}: {rate['median']} tokens/s ({rate['min']} to {rate['max']})")
    for name, ratio in result["ratios"].items():
        print(f"{name}: {ratio['median']} ({ratio['min']} to {ratio['max']})")
    print(f"written: {written}")


async def _measure(
    settings: Settings, source: LocalModel, tokens: int, rounds: int
) -> dict[str, Any]:
    async with AsyncExitStack() as stack:
        meshes = {}
        for variant in VARIANTS:
            layers = split_layers(source, nodes=variant.nodes, split=None)
            own = settings.model_copy(update={"threads": variant.threads})
            meshes[variant] = await stack.enter_async_context(bench_mesh(own, source, layers))
        rates, ids = await _rounds(meshes, tokens, rounds)
        shard = meshes[SPLIT].directory.snapshot()[0].shards[0]
    if len(set(ids)) != 1:
        raise BenchError("the variants drew different tokens: nothing was compared")
    return {
        **provenance(source.name, shard.dtype.value),
        "tokens": tokens,
        "rounds": rounds,
        "tokens_per_s": {str(variant): spread(rates[variant]) for variant in VARIANTS},
        "ratios": {
            f"{split} / {whole}": spread(
                [ours / theirs for ours, theirs in zip(rates[split], rates[whole], strict=True)]
            )
            for split in VARIANTS
            if split.nodes > 1
            for whole in UNSPLIT
        },
    }


async def _rounds(
    meshes: dict[Variant, Composition], tokens: int, rounds: int
) -> tuple[dict[Variant, list[float]], list[tuple[int, ...]]]:
    rates: dict[Variant, list[float]] = {variant: [] for variant in VARIANTS}
    ids = []
    for number in range(-1, rounds):
        for variant in _turned(VARIANTS, number):
            mesh = meshes[variant]
            timed = await timed_generation(mesh, prompt_ids(mesh.text, PROMPT), tokens)
            # Round -1 warms up: first touches of memory are not what is measured.
            if number >= 0:
                rates[variant].append(timed.tokens_per_s)
                ids.append(tuple(timed.token_ids))
    return rates, ids


def _turned(variants: Sequence[Variant], by: int) -> Sequence[Variant]:
    at = by % len(variants)
    return [*variants[at:], *variants[:at]]
