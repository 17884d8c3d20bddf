"""`meshnet bench memory`: what a node takes beside its weights and its K/V.

over = (resident memory of a node - resident memory of the same process holding no layer)
       / (bytes of its weights + bytes of its K/V as allocated)
peak = the most it ever took until it was ready, against base + shard + one layer

Taken while a long session is held. The process that holds no layer has imported everything that a
node imports, the model's own code included, and has read no tensor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from meshnet.cli.bench.mesh import DEADLINE_S, BenchError, banning_stops, bench_mesh
from meshnet.cli.bench.paired_command import Order
from meshnet.cli.bench.prompts import Prompts
from meshnet.cli.bench.report import number, table
from meshnet.cli.bench.results import provenance, publish, result_path
from meshnet.cli.bench.running import pin
from meshnet.cli.bench.sides import environment_of
from meshnet.cli.bench.workers import Worker
from meshnet.cli.composition import Composition
from meshnet.cli.local_nodes import split_layers
from meshnet.cli.models import resolve_model
from meshnet.cli.serving import run_loop
from meshnet.cli.settings import Settings
from meshnet.core.vocabulary import LayerRange
from meshnet.engine.models.pull import LocalModel
from meshnet.head import GenerationRequest, TokenEvent

ANSWER_TOKENS = 16


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
    def over(self) -> float:
        return (self.resident - self.base) / (self.weights + self.kv)

    @property
    def peak_over(self) -> float:
        """Peak over what it may be: base, shard and one layer more."""
        return self.peak / (self.base + self.weights + self.weights / self.layer_count)


def measure_memory(
    settings: Settings, order: Order, *, nodes: int, length: int, as_json: bool
) -> None:
    """Measure, write JSON and Markdown, and print. Raises MeshnetError."""
    result = memory_result(settings, order, nodes=nodes, length=length)
    path = result_path(order.out, str(result["model"]), "memory")
    publish(result, memory_page(result), path, as_json=as_json)


def memory_result(settings: Settings, order: Order, *, nodes: int, length: int) -> dict[str, Any]:
    """Start a mesh and a bare process, and compare. Raises MeshnetError."""
    pin(order.cores)
    source = resolve_model(settings.model, settings)
    own = settings.model_copy(update={"threads": settings.threads or 1})
    layers = split_layers(source, nodes=nodes, split=None)
    measured = run_loop(lambda: _measure(own, source, layers, length))
    return {
        **provenance(source.name, settings.weights.value),
        "scenario": "memory",
        "positions": length + ANSWER_TOKENS,
        "nodes": [
            {**asdict(node), "over": round(node.over, 4), "peak_over": round(node.peak_over, 4)}
            for node in measured
        ],
    }


async def _measure(
    settings: Settings, source: LocalModel, layers: Sequence[LayerRange], length: int
) -> list[NodeMemory]:
    bare = Worker(["bare"], environment_of(settings, nodes=1, threads=settings.threads or 1))
    try:
        await bare.start()
        base = psutil.Process(bare.pid).memory_info().rss
    finally:
        await bare.stop()
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
            for node, resident in await _while_held(mesh, length)
        ]


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
            if seen == ANSWER_TOKENS - 1:
                found = [
                    await mesh.client.describe(node.node, DEADLINE_S)
                    for node in mesh.directory.snapshot()
                ]
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


def memory_page(result: Mapping[str, Any]) -> str:
    """Return the Markdown page."""
    names = ("base", "weights", "kv", "resident", "peak")
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
    return (
        f"# memory: {result['model']}, {result['dtype']}, a session of {result['positions']} "
        f"tokens; MiB\n\n{table(titles, rows)}\n\n"
        "over = (resident - base) / (weights + K/V as allocated)\n"
    )
