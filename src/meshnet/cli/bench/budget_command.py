"""`meshnet bench budget`: the time of one token, line by line, and what meshnet itself costs of it.

Each round: one generation through a head in this process over real nodes. The head's calls are
timed around its client; compute is the nodes' own count between the first and the last token; an
exchange that computes nothing is a decode for a session that does not exist, refused by the node.
Profiles of the same shards, each alone in a process, tell attention and sampling.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, field
from typing import Any

from meshnet.cli.bench.budget import Budget, HopTimes, Shares, budget
from meshnet.cli.bench.load import LoadProbe
from meshnet.cli.bench.mesh import (
    DEADLINE_S,
    BenchError,
    banning_stops,
    bench_mesh,
)
from meshnet.cli.bench.paired import Rules, Values, spread, take_turns
from meshnet.cli.bench.paired_command import Order
from meshnet.cli.bench.passing_client import PassingClient
from meshnet.cli.bench.prompts import Prompts
from meshnet.cli.bench.report import number, table
from meshnet.cli.bench.results import provenance, publish, result_path
from meshnet.cli.bench.running import pin, tell
from meshnet.cli.bench.sides import environment_of
from meshnet.cli.bench.workers import Worker
from meshnet.cli.composition import Composition
from meshnet.cli.local_nodes import split_layers
from meshnet.cli.models import resolve_model
from meshnet.cli.serving import run_loop
from meshnet.cli.settings import Settings
from meshnet.core.protocol.messages import (
    ForwardRequest,
    Mode,
    Refusal,
    Reply,
)
from meshnet.core.vocabulary import (
    HIDDEN,
    Activation,
    Hop,
    HopLost,
    LayerRange,
    NodeId,
    Route,
    SamplingParams,
    SessionId,
    TensorSpec,
)
from meshnet.engine.models.pull import LocalModel
from meshnet.head import FinishEvent, GenerationRequest, HopClient

PROMPT_TOKENS = 32
EXCHANGES = 60
PROFILE_TOKENS = 24
"""Decodes of a profile, half of which count."""
MESH = "mesh"


class CallClock(PassingClient):
    """A HopClient that sums the time of the head's calls, by node."""

    def __init__(self, inner: HopClient) -> None:
        super().__init__(inner)
        self.called_s: dict[NodeId, float] = {}
        self.calls: dict[NodeId, int] = {}

    async def forward(self, node: NodeId, request: ForwardRequest, timeout_s: float) -> Reply:
        began = time.perf_counter()
        reply = await super().forward(node, request, timeout_s)
        self.called_s[node] = self.called_s.get(node, 0.0) + time.perf_counter() - began
        self.calls[node] = self.calls.get(node, 0) + 1
        return reply

    async def chain(
        self, nodes: Sequence[NodeId], request: ForwardRequest, timeout_s: float
    ) -> tuple[NodeId | None, Reply | HopLost]:
        """Counted for the first of the nodes: the head waits for all of them at once."""
        began = time.perf_counter()
        end = await super().chain(nodes, request, timeout_s)
        self.called_s[nodes[0]] = self.called_s.get(nodes[0], 0.0) + time.perf_counter() - began
        self.calls[nodes[0]] = self.calls.get(nodes[0], 0) + 1
        return end


@dataclass(slots=True)
class Counted:
    """What stood on all clocks at one moment."""

    at_s: float
    compute_s: dict[str, float]
    called_s: dict[NodeId, float]
    calls: dict[NodeId, int] = field(default_factory=dict)


def measure_budget(
    settings: Settings, order: Order, *, nodes: int, tokens: int, as_json: bool
) -> None:
    """Measure, write JSON and Markdown, and print. Raises MeshnetError."""
    result = budget_result(settings, order, nodes=nodes, tokens=tokens)
    path = result_path(order.out, str(result["model"]), "budget")
    publish(result, budget_page(result), path, as_json=as_json)


def budget_result(settings: Settings, order: Order, *, nodes: int, tokens: int) -> dict[str, Any]:
    """Run the rounds and the profiles. Raises MeshnetError."""
    cores = pin(order.cores)
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
        **provenance(source.name, settings.weights.value),
        "scenario": "budget",
        "layers": [str(held) for held in layers],
        "threads_per_node": own.threads,
        "tokens": tokens,
        "cores_used": cores,
        "rules": asdict(order.rules),
        "own_ms": spread(owns),
        "total_ms": spread([each.total_ms for each in budgets]),
        "compute_ms": spread([each.compute_ms for each in budgets]),
        "typical": asdict(typical),
        "disturbed": sum(sample.disturbed for sample in samples),
        "samples": [asdict(sample) for sample in samples],
    }


async def _measure(
    settings: Settings,
    source: LocalModel,
    layers: Sequence[LayerRange],
    rules: Rules,
    tokens: int,
) -> tuple[list[Budget], list[Any]]:
    middle = PROMPT_TOKENS + tokens // 2
    shares = [await _shares(settings, held, middle) for held in layers]
    clocks: list[CallClock] = []

    def through(client: HopClient) -> HopClient:
        clocks.append(CallClock(client))
        return clocks[0]

    async with bench_mesh(settings, source, layers, through=through) as mesh:
        text = mesh.text
        prompts = Prompts(lambda words: text.encode(words, special=False))
        route = mesh.directory.route(mesh.model)
        if not isinstance(route, Route):
            raise BenchError(str(route))

        async def measure(side: str, number: int) -> Values:
            prompt = prompts.ids(number, PROMPT_TOKENS)
            return await _round(mesh, clocks[0], route, prompt, tokens)

        pids = [node.pid for node in mesh.directory.snapshot()]
        samples = (await take_turns([MESH], measure, lambda side: LoadProbe(pids), rules, tell))[
            MESH
        ]
    names = [str(held) for held in layers]
    by_node = dict(zip(names, shares, strict=True))
    return [_budget_of(sample.values, names, by_node) for sample in samples], samples


async def _shares(settings: Settings, layers: LayerRange, position: int) -> Shares:
    threads = settings.threads or 1
    worker = Worker(["profile", str(layers)], environment_of(settings, nodes=1, threads=threads))
    try:
        await worker.start()
        told = await worker.ask({"position": position, "tokens": PROFILE_TOKENS})
    finally:
        await worker.stop()
    return Shares(
        attention=told["attention_s"] / told["total_s"],
        sampling=told["sampling_s"] / told["total_s"],
    )


async def _round(
    mesh: Composition, clock: CallClock, route: Route, prompt: Sequence[int], tokens: int
) -> Values:
    """One generation: per token, the whole, each node's compute and the calls to it."""
    request = GenerationRequest(
        prompt=tuple(prompt),
        tokens_max=tokens,
        sampling=banning_stops(mesh, len(prompt), tokens),
        stop_ids=frozenset(),
        deadline_s=DEADLINE_S,
    )
    seen = 0
    began: Counted | None = None
    ended_s = 0.0
    async with aclosing(mesh.head.generate(request)) as events:
        async for event in events:
            if isinstance(event, FinishEvent):
                continue
            seen, ended_s = seen + 1, time.perf_counter()
            began = began or await _counted(mesh, clock, route)
    if began is None or seen != tokens:
        raise BenchError(f"expected {tokens} tokens, got {seen}")
    ended = await _counted(mesh, clock, route)
    values = {"total_s": (ended_s - began.at_s) / (tokens - 1)}
    # Where a call goes on from node to node, only the first of them is called.
    each_called = all(
        ended.calls.get(hop.node, 0) > began.calls.get(hop.node, 0) for hop in route.hops
    )
    for hop in route.hops:
        name = str(hop.layers)
        computed_s = ended.compute_s[name] - began.compute_s[name]
        values[f"compute_s {name}"] = computed_s / (tokens - 1)
        if each_called:
            called_s = ended.called_s[hop.node] - began.called_s.get(hop.node, 0.0)
            values[f"call_s {name}"] = called_s / (tokens - 1)
        values[f"exchange_s {name}"] = await _exchange(mesh, hop)
    return values


async def _counted(mesh: Composition, clock: CallClock, route: Route) -> Counted:
    compute_s = {
        str(hop.layers): (await mesh.client.describe(hop.node, DEADLINE_S)).compute_s
        for hop in route.hops
    }
    return Counted(time.perf_counter(), compute_s, dict(clock.called_s), dict(clock.calls))


async def _exchange(mesh: Composition, hop: Hop) -> float:
    """Return the median time of a decode that the node refuses: it holds no such session."""
    shard = next(
        shard
        for node in mesh.directory.snapshot()
        for shard in node.shards
        if shard.layers == hop.layers
    )
    activation = None
    if hop.layers.start > 0:
        spec = TensorSpec(HIDDEN, shard.dtype, (1, 1, shard.hidden_size))
        activation = Activation((spec,), bytes(spec.nbytes))
    request = ForwardRequest(
        mode=Mode.DECODE,
        layers=hop.layers,
        model=mesh.model,
        wire=hop.wire,
        session=SessionId("0" * 60),
        past_length=1,
        tokens=(1,),
        sampling=SamplingParams(),
        activation=activation,
        attempt=1,
        prefix="0" * 16,
    )
    times = []
    for _ in range(EXCHANGES):
        began = time.perf_counter()
        reply = await mesh.client.forward(hop.node, request, DEADLINE_S)
        times.append(time.perf_counter() - began)
        if not isinstance(reply, Refusal):
            raise BenchError(f"{hop.node} served a session that does not exist: {reply}")
    return statistics.median(times)


def _budget_of(values: Values, names: Sequence[str], shares: Mapping[str, Shares]) -> Budget:
    hops = [
        HopTimes(
            node=name,
            compute_s=values[f"compute_s {name}"],
            call_s=values.get(f"call_s {name}"),
            exchange_s=values[f"exchange_s {name}"],
        )
        for name in names
    ]
    return budget(values["total_s"], hops, shares)


def budget_page(result: Mapping[str, Any]) -> str:
    """Return the Markdown page of a budget."""
    typical = result["typical"]
    rows = [
        (line["where"], line["what"], number(line["ms"]), _percent(line["ms"], typical["total_ms"]))
        for line in typical["lines"]
    ]
    rows.append(("all", "total", number(typical["total_ms"]), "100 %"))
    own = result["own_ms"]
    return (
        f"# budget of a token: {result['model']}, layers {', '.join(result['layers'])}\n\n"
        f"{table(('where', 'what', 'ms', 'share'), rows)}\n\n"
        f"meshnet's own cost beside model compute: {number(own['median'])} ms "
        f"({number(own['min'])} to {number(own['max'])}) of "
        f"{number(result['total_ms']['median'])} ms a token.\n"
    )


def _percent(part: float, whole: float) -> str:
    return f"{100.0 * part / whole:.1f} %"
