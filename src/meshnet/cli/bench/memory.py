"""`meshnet bench memory`: what a node takes beside its weights and its K/V.

over = (resident memory of a node - resident memory of the same process holding no layer)
       / (bytes of its weights + bytes of its K/V as allocated)
peak = the most it ever took until it was ready, against base + shard + one layer

Taken in the middle of a long answer, once the nodes have been at rest: then they have given back
what computing needed. The process that holds no layer has loaded a layer just as the node does,
with the same ends, has tried it, and has let go of it; so it has imported and compiled all that
the node has, and what only loading many layers leaves behind counts against the node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from meshnet.cli.bench.mesh import DEADLINE_S, BenchError, banning_stops, bench_mesh
from meshnet.cli.bench.order import Order
from meshnet.cli.bench.picture import stacked
from meshnet.cli.bench.prompts import Prompts
from meshnet.cli.bench.report import Report, number, table
from meshnet.cli.bench.results import format_told, provenance
from meshnet.cli.bench.running import pin
from meshnet.cli.bench.sides import environment_of
from meshnet.cli.bench.workers import Worker
from meshnet.cli.composition import Composition
from meshnet.cli.local_nodes import split_layers
from meshnet.cli.models import resolve_model
from meshnet.cli.serving import run_loop
from meshnet.cli.settings import Settings
from meshnet.core.vocabulary import LayerRange
from meshnet.engine.models.depth import depth
from meshnet.engine.models.pull import LocalModel
from meshnet.head import GenerationRequest, TokenEvent

ANSWER_TOKENS = 16
HELD_AT = ANSWER_TOKENS // 2
"""Before the last token: the session is let go of before that is told."""
AT_REST_S = 3.0
"""Longer than a node waits for more work before it rests."""


@dataclass(frozen=True, slots=True)
class NodeMemory:
    """Bytes of one node."""

    layers: str
    layer_count: int
    base: int
    """Of the process that holds no layer."""
    peak: int
    """Until it was ready; 0 where the system does not tell."""
    resident: int
    weights: int
    kv: int

    @property
    def beside(self) -> int:
        """What it takes beyond base, weights and K/V."""
        return self.resident - self.base - self.weights - self.kv

    @property
    def over(self) -> float:
        return (self.resident - self.base) / (self.weights + self.kv)

    @property
    def peak_over(self) -> float:
        """Peak over what it may be: base, shard and one layer more."""
        return self.peak / (self.base + self.weights + self.weights / self.layer_count)


def memory_result(settings: Settings, order: Order, *, nodes: int, length: int) -> dict[str, Any]:
    """Start a mesh and a bare process, and compare. Raises MeshnetError."""
    pin(order.cores)
    source = resolve_model(settings.model, settings)
    # Without drafts: the answer then comes token by token, and can be held in its middle.
    own = settings.model_copy(update={"threads": settings.threads or 1, "drafts": "off"})
    layers = split_layers(source, nodes=nodes, split=None)
    measured = run_loop(lambda: _measure(own, source, layers, length))
    return {
        **provenance(source.name, format_told(settings), own.threads),
        "scenario": "memory",
        "positions": length + HELD_AT,
        "nodes": [
            {
                **asdict(node),
                "beside": node.beside,
                "over": round(node.over, 4),
                "peak_over": round(node.peak_over, 4),
            }
            for node in measured
        ],
    }


async def _measure(
    settings: Settings, source: LocalModel, layers: Sequence[LayerRange], length: int
) -> list[NodeMemory]:
    # The first process after a change of the engine compiles it, and takes more; the next ones
    # find it compiled.
    await _base(settings, source, layers[-1])
    bases = [await _base(settings, source, held) for held in layers]
    async with bench_mesh(settings, source, layers) as mesh:
        peaks = {node.pid: peak_bytes(node.pid) for node in mesh.directory.snapshot()}
        return [
            NodeMemory(
                layers=str(node.shards[0].layers),
                layer_count=len(node.shards[0].layers),
                base=base,
                peak=peaks[node.pid],
                resident=resident,
                weights=sum(shard.weight_bytes for shard in node.shards),
                kv=node.kv_bytes,
            )
            for base, (node, resident) in zip(bases, await _while_held(mesh, length), strict=True)
        ]


async def _base(settings: Settings, source: LocalModel, held: LayerRange) -> int:
    """Return the resident bytes of a process that is to a node of `held` what an empty one is."""
    like = ends_like(held, *depth(source.path))
    threads = settings.threads or 1
    bare = Worker(["bare", str(like)], environment_of(settings, nodes=1, threads=threads))
    try:
        await bare.start()
        await asyncio.sleep(AT_REST_S)
        return int(psutil.Process(bare.pid).memory_info().rss)
    finally:
        await bare.stop()


def ends_like(held: LayerRange, total: int, runs: Sequence[LayerRange]) -> LayerRange:
    """Return the fewest layers that may be cut off and have the ends that `held` has."""
    cuts = [
        at
        for at in range(held.start, held.stop + 1)
        if not any(run.start < at < run.stop for run in runs)
    ]
    if held.stop < total:
        return LayerRange(cuts[0], cuts[1])
    return LayerRange(cuts[-2] if held.start > 0 else 0, held.stop)


async def _while_held(mesh: Composition, length: int) -> list[tuple[Any, int]]:
    """Return each node's description and resident bytes while a session of `length` is held."""
    prompts = Prompts(lambda words: mesh.text.encode(words, special=False))
    request = GenerationRequest(
        prompt=prompts.ids(0, length),
        tokens_max=ANSWER_TOKENS,
        sampling=banning_stops(mesh, length, ANSWER_TOKENS),
        stop_ids=frozenset(),
        deadline_s=DEADLINE_S,
    )
    seen = 0
    async with aclosing(mesh.head.generate(request)) as events:
        async for event in events:
            seen += isinstance(event, TokenEvent)
            if seen == HELD_AT:
                await asyncio.sleep(AT_REST_S)
                found = [
                    await mesh.client.describe(node.node, DEADLINE_S)
                    for node in mesh.directory.snapshot()
                ]
                if not all(node.kv_bytes for node in found):
                    raise BenchError("a node holds no session in the middle of an answer")
                return [(node, psutil.Process(node.pid).memory_info().rss) for node in found]
    raise BenchError(f"expected {ANSWER_TOKENS} tokens, got {seen}")


def peak_bytes(pid: int) -> int:
    """Return the most resident bytes a process ever had; 0 where the system does not tell."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    found = (line.split()[1] for line in lines if line.startswith("VmHWM:"))
    return 1024 * int(next(found, "0"))


def memory_report(result: Mapping[str, Any]) -> Report:
    names = ("base", "weights", "kv", "resident", "beside", "peak")
    rows = [
        (
            node["layers"],
            *(number(node[name] / 2**20) for name in names),
            number(node["over"]),
            number(node["peak_over"]),
        )
        for node in result["nodes"]
    ]
    titles = ("layers", *names, "over", "peak / (base + shard + layer)")
    legend = (
        "MiB. over = (resident - base) / (weights + K/V as allocated); base: the same process, "
        "which has loaded one layer, tried it and let go of it; beside: what nobody accounts for"
    )
    parts = ("base", "weights", "kv", "beside")
    stacks = {
        f"{node['layers']}": {part: node[part] / 2**20 for part in parts}
        for node in result["nodes"]
    }
    return Report(
        f"a session of {result['positions']} tokens held by each node",
        (table(titles, rows), legend),
        (stacked("resident, MiB", stacks, width=5.0),),
    )
