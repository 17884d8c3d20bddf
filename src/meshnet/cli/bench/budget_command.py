"""`meshnet bench budget`: the time of one token, line by line, and what meshnet itself costs of it.

Each round: one generation through a head in this process over real nodes, without drafts, the head
calling each node itself. Its calls are timed around its client; compute, queue and step are the
nodes' own counters between the first and the last token; a wire is as many bytes there and back
between two processes that do nothing else. Profiles of the same shards, each alone in a process,
tell attention and sampling.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Any

from meshnet.cli.bench.budget import COMPUTE, Budget, HopTimes, Shares, budget
from meshnet.cli.bench.call_clock import CallClock
from meshnet.cli.bench.echo import round_trip_s
from meshnet.cli.bench.load import LoadProbe
from meshnet.cli.bench.mesh import DEADLINE_S, BenchError, banning_stops, bench_mesh
from meshnet.cli.bench.node_times import NodeTimes, node_times
from meshnet.cli.bench.order import Order
from meshnet.cli.bench.paired import Rules, Sample, Values, spread, take_turns
from meshnet.cli.bench.picture import ranked
from meshnet.cli.bench.prompts import Prompts
from meshnet.cli.bench.report import Report, number, table
from meshnet.cli.bench.results import format_told, provenance
from meshnet.cli.bench.running import pin, tell
from meshnet.cli.bench.sides import environment_of
from meshnet.cli.bench.workers import Worker
from meshnet.cli.composition import Composition
from meshnet.cli.local_nodes import split_layers
from meshnet.cli.models import resolve_model
from meshnet.cli.serving import run_loop
from meshnet.cli.settings import Settings
from meshnet.core.vocabulary import (
    HIDDEN,
    Hop,
    LayerRange,
    NodeId,
    Route,
    ShardDescription,
    TensorSpec,
)
from meshnet.engine.models.pull import LocalModel
from meshnet.head import FinishEvent, GenerationRequest, HopClient

PROMPT_TOKENS = 32
FRAME_BYTES = 160
"""About what a step has beside its tensor."""
PROFILE_TOKENS = 24
"""Decodes of a profile, half of which count."""
MESH = "mesh"


@dataclass(frozen=True, slots=True)
class Counted:
    """What stood on all clocks at one moment."""

    at_s: float
    nodes: Mapping[NodeId, NodeTimes]
    called_s: Mapping[NodeId, float]


@dataclass(frozen=True, slots=True)
class Wire:
    """The bytes of a decode on one hop, and the port of a process that answers as many."""

    port: int
    sent: int
    received: int


@dataclass(frozen=True, slots=True)
class Bench:
    """All that takes part."""

    mesh: Composition
    clock: CallClock
    hops: tuple[Hop, ...]
    wires: tuple[Wire, ...]
    token: str | None

    async def counted(self) -> Counted:
        nodes = {hop.node: await node_times(hop.node, self.token) for hop in self.hops}
        return Counted(time.perf_counter(), nodes, dict(self.clock.called_s))


def budget_result(settings: Settings, order: Order, *, nodes: int, tokens: int) -> dict[str, Any]:
    """Run the rounds and the profiles. Raises MeshnetError."""
    pin(order.cores)
    source = resolve_model(settings.model, settings)
    layers = split_layers(source, nodes=nodes, split=None)
    # Without drafts: a step is then a token.
    own = settings.model_copy(
        update={"threads": settings.threads or 1, "drafts": "off", "routes": "star"}
    )
    budgets, samples = run_loop(lambda: _measure(own, source, layers, order.rules, tokens))
    owns = [each.own_ms for each in budgets]
    typical = min(budgets, key=lambda each: abs(each.own_ms - statistics.median(owns)))
    return {
        **provenance(source.name, format_told(settings), own.threads),
        "scenario": "budget",
        "layers": [str(held) for held in layers],
        "tokens": tokens,
        "rules": asdict(order.rules),
        "own_ms": spread(owns),
        "total_ms": spread([each.total_ms for each in budgets]),
        "compute_ms": spread([each.compute_ms for each in budgets]),
        "typical": asdict(typical),
        "disturbed": {MESH: sum(sample.disturbed for sample in samples)},
        "samples": [asdict(sample) for sample in samples],
    }


async def _measure(
    settings: Settings, source: LocalModel, layers: Sequence[LayerRange], rules: Rules, tokens: int
) -> tuple[list[Budget], list[Sample]]:
    middle = PROMPT_TOKENS + tokens // 2
    names = [str(held) for held in layers]
    shares = {str(held): await _shares(settings, held, middle) for held in layers}
    async with _bench(settings, source, layers) as bench:
        prompts = Prompts(lambda words: bench.mesh.text.encode(words, special=False))

        async def measure(side: str, number: int) -> Values:
            return await _round(bench, prompts.ids(number, PROMPT_TOKENS), tokens)

        pids = [node.pid for node in bench.mesh.directory.snapshot()]
        taken = await take_turns([MESH], measure, lambda side: LoadProbe(pids), rules, tell)
    samples = taken[MESH]
    return [_budget_of(sample.values, names, shares) for sample in samples], samples


async def _shares(settings: Settings, layers: LayerRange, position: int) -> Shares:
    threads = settings.threads or 1
    worker = Worker(["profile", str(layers)], environment_of(settings, nodes=1, threads=threads))
    try:
        await worker.start()
        told = await worker.ask({"position": position, "tokens": PROFILE_TOKENS})
    finally:
        await worker.stop()
    attention_s = told.get("attention_s")
    return Shares(
        attention=None if attention_s is None else attention_s / told["total_s"],
        sampling=told["sampling_s"] / told["total_s"],
    )


@asynccontextmanager
async def _bench(
    settings: Settings, source: LocalModel, layers: Sequence[LayerRange]
) -> AsyncIterator[Bench]:
    """Run the nodes, a head whose calls are timed, and for each hop a process that echoes."""
    clocks: list[CallClock] = []

    def through(client: HopClient) -> HopClient:
        clocks.append(CallClock(client))
        return clocks[0]

    async with AsyncExitStack() as stack:
        mesh = await stack.enter_async_context(
            bench_mesh(settings, source, layers, through=through)
        )
        route = mesh.directory.route(mesh.model)
        if not isinstance(route, Route):
            raise BenchError(str(route))
        wires = []
        for sent, received in map(_bytes_of, _shards(mesh, route)):
            echo = Worker(
                ["echo", str(sent), str(received)], environment_of(settings, nodes=1, threads=1)
            )
            stack.push_async_callback(echo.stop)
            wires.append(Wire((await echo.start())["port"], sent, received))
        secret = settings.mesh_token
        token = None if secret is None else secret.get_secret_value()
        yield Bench(mesh, clocks[0], tuple(route.hops), tuple(wires), token)


def _shards(mesh: Composition, route: Route) -> list[ShardDescription]:
    held = {shard.layers: shard for node in mesh.directory.snapshot() for shard in node.shards}
    return [held[hop.layers] for hop in route.hops]


def _bytes_of(shard: ShardDescription) -> tuple[int, int]:
    """Return how many bytes a decode puts on the wire, out and in."""
    hidden = TensorSpec(HIDDEN, shard.dtype, (1, 1, shard.hidden_size)).nbytes
    return (
        FRAME_BYTES + (hidden if shard.layers.start > 0 else 0),
        FRAME_BYTES + (0 if shard.is_tail else hidden),
    )


async def _round(bench: Bench, prompt: Sequence[int], tokens: int) -> Values:
    """One generation: per token, the whole, each node's own count and the calls to it."""
    request = GenerationRequest(
        prompt=tuple(prompt),
        tokens_max=tokens,
        sampling=banning_stops(bench.mesh, len(prompt), tokens),
        stop_ids=frozenset(),
        deadline_s=DEADLINE_S,
    )
    seen = 0
    began: Counted | None = None
    ended_s = 0.0
    async with aclosing(bench.mesh.head.generate(request)) as events:
        async for event in events:
            if isinstance(event, FinishEvent):
                continue
            seen, ended_s = seen + 1, time.perf_counter()
            began = began or await bench.counted()
    if began is None or seen != tokens:
        raise BenchError(f"expected {tokens} tokens, got {seen}")
    ended = await bench.counted()
    steps = tokens - 1
    values = {"total_s": (ended_s - began.at_s) / steps}
    for hop, wire in zip(bench.hops, bench.wires, strict=True):
        name, spent = str(hop.layers), ended.nodes[hop.node].since(began.nodes[hop.node])
        called_s = ended.called_s[hop.node] - began.called_s.get(hop.node, 0.0)
        values |= {
            f"compute_s {name}": spent.compute_s / steps,
            f"queue_s {name}": spent.queue_s / steps,
            f"step_s {name}": spent.step_s / steps,
            f"call_s {name}": called_s / steps,
            f"wire_s {name}": round_trip_s(wire.port, wire.sent, wire.received),
        }
    return values


def _budget_of(values: Values, names: Sequence[str], shares: Mapping[str, Shares]) -> Budget:
    hops = [
        HopTimes(
            node=name,
            compute_s=values[f"compute_s {name}"],
            queue_s=values[f"queue_s {name}"],
            step_s=values[f"step_s {name}"],
            wire_s=values[f"wire_s {name}"],
            call_s=values[f"call_s {name}"],
        )
        for name in names
    ]
    return budget(values["total_s"], hops, shares)


def budget_report(result: Mapping[str, Any]) -> Report:
    typical = result["typical"]
    rows = [
        (line["where"], line["what"], number(line["ms"]), _percent(line["ms"], typical["total_ms"]))
        for line in typical["lines"]
    ]
    rows.append(("all", "total", number(typical["total_ms"]), "100 %"))
    own = result["own_ms"]
    told = (
        f"meshnet's own cost beside model compute: {number(own['median'])} ms "
        f"({number(own['min'])} to {number(own['max'])}) of "
        f"{number(result['total_ms']['median'])} ms a token."
    )
    colours = dict.fromkeys(COMPUTE, "C0")
    lying = [
        (f"{line['where']} {line['what']}", line["ms"], colours.get(line["what"], "C1"))
        for line in typical["lines"]
    ]
    return Report(
        f"of a token, layers {', '.join(result['layers'])}",
        (table(("where", "what", "ms", "share"), rows), told),
        (ranked("ms of a token; blue is model compute", lying),),
    )


def _percent(part: float, whole: float) -> str:
    return f"{100.0 * part / whole:.1f} %"
