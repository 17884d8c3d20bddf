"""`meshnet bench flatness`: does a token cost the same at position 1,400 as at position 100?

Four answers from one run:

    cached      tokens per second by position, median of windows
    stateless   single steps at sampled positions, since a whole stateless run is O(n^2)
    wire        tensor bytes of one decode, per hop, at two positions: must be equal
    operators   FLOPs of one decode outside attention, per shard, at two positions: must be equal

Each stateless step must draw the token that the cached run drew, or the measurement fails.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from meshnet.cli.bench.load import LoadProbe
from meshnet.cli.bench.measured_client import MeasuredClient
from meshnet.cli.bench.mesh import (
    PROMPT,
    BenchError,
    Timed,
    banning_stops,
    bench_mesh,
    timed_generation,
)
from meshnet.cli.bench.order import Order
from meshnet.cli.bench.paired import Rules, Sample, Values, take_turns
from meshnet.cli.bench.picture import lines
from meshnet.cli.bench.report import Report, paired_report
from meshnet.cli.bench.running import pin, result_of, tell
from meshnet.cli.bench.scenarios import Metric, Subject
from meshnet.cli.composition import Composition
from meshnet.cli.local_nodes import split_layers
from meshnet.cli.models import prompt_ids, resolve_model
from meshnet.cli.serving import run_loop
from meshnet.cli.settings import Settings
from meshnet.core.protocol.messages import ActivationReply, ForwardRequest, Mode, TokenReply
from meshnet.core.vocabulary import Activation, LayerRange, Route, WeightFormat
from meshnet.engine.models.pull import LocalModel
from meshnet.head import HopClient

MESH = "mesh"
WINDOW = 25
"""Half the width, in tokens, of the window around a position."""
STATELESS_REPEATS = 3
HOP_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Plan:
    """The positions looked at: counts of generated tokens."""

    tokens: int

    @property
    def early(self) -> int:
        return min(100, self.tokens // 4)

    @property
    def late(self) -> int:
        return min(1400, self.tokens - WINDOW)

    @property
    def windows(self) -> range:
        """Middles of windows that lie side by side."""
        return range(WINDOW, self.tokens - WINDOW + 1, 2 * WINDOW)

    @property
    def stateless(self) -> tuple[int, ...]:
        between = (self.early + (self.late - self.early) * step // 4 for step in range(5))
        return (1, *between)


def flatness_result(settings: Settings, order: Order, *, nodes: int, tokens: int) -> dict[str, Any]:
    """Run the generations and count operators. Raises MeshnetError."""
    pin(order.cores)
    # What each hop is sent is seen here, token by token.
    settings = settings.model_copy(update={"routes": "star", "drafts": "off"})
    source = resolve_model(settings.model, settings)
    layers = split_layers(source, nodes=nodes, split=None)
    plan = Plan(tokens)
    samples, told = run_loop(lambda: _measure(settings, source, layers, plan, order.rules))
    operators = _operators(source, layers, plan, told.pop("sequence"))
    return {
        **result_of(_subject(plan), settings, source.name, samples, order.rules),
        "threads": settings.threads,
        "layers": [str(held) for held in layers],
        **told,
        "operators": operators,
    }


def _subject(plan: Plan) -> Subject:
    metrics = (
        *(Metric(f"tokens_per_s@{at}", "tokens/s") for at in plan.windows),
        *(Metric(f"stateless@{at}", "tokens/s") for at in plan.stateless),
        Metric("flatness", f"{plan.late} / {plan.early}"),
    )
    title = f"one answer of {plan.tokens} tokens, and single stateless steps"
    return Subject("flatness", title, metrics)


def flatness_report(result: Mapping[str, Any]) -> Report:
    told = paired_report(result)
    (values,) = result["summary"].values()
    both = {
        name: {
            float(metric.partition("@")[2]): each
            for metric, each in values.items()
            if metric.startswith(f"{start}@")
        }
        for name, start in (
            ("K/V cache on every node", "tokens_per_s"),
            ("stateless, sampled", "stateless"),
        )
    }
    equal = (
        f"Tensor bytes per hop and step equal at both positions: "
        f"{_word(result['wire']['tensor_bytes_equal'])}. Floating-point operations outside "
        f"attention equal: {_word(result['operators']['outside_attention_equal'])}."
    )
    panel = lines("tokens/s by position", both, width=7.0)
    return Report(told.title, (*told.sections, equal), (panel,))


def _word(true: bool) -> str:
    return "yes" if true else "NO"


async def _measure(
    settings: Settings,
    source: LocalModel,
    layers: Sequence[LayerRange],
    plan: Plan,
    rules: Rules,
) -> tuple[dict[str, list[Sample]], dict[str, Any]]:
    clients: list[MeasuredClient] = []
    told: dict[str, Any] = {}

    def through(client: HopClient) -> HopClient:
        clients.append(MeasuredClient(client))
        return clients[0]

    async with bench_mesh(settings, source, layers, through=through) as mesh:
        prompt = prompt_ids(mesh.text, PROMPT)
        await timed_generation(mesh, prompt, 16)
        at = {position: len(prompt) + position for position in (plan.early, plan.late)}
        clients[0].watch(at.values())

        async def measure(side: str, number: int) -> Values:
            timed = await timed_generation(mesh, prompt, plan.tokens)
            told["wire"] = _wire(mesh, clients[0], at)
            told["sequence"] = [*timed.prompt, *timed.token_ids]
            return {**_rates(timed, plan), **await _stateless_rates(mesh, timed, plan)}

        pids = [node.pid for node in mesh.directory.snapshot()]
        samples = await take_turns([MESH], measure, lambda side: LoadProbe(pids), rules, tell)
    return samples, told


def _rates(timed: Timed, plan: Plan) -> dict[str, float]:
    rates = {f"tokens_per_s@{at}": _rate_at(timed, at) for at in plan.windows}
    early, late = _rate_at(timed, plan.early), _rate_at(timed, plan.late)
    return {**rates, "flatness": late / early}


def _rate_at(timed: Timed, position: int) -> float:
    """Median rate of the tokens around `position`."""
    low, high = max(1, position - WINDOW), min(len(timed.at_s), position + WINDOW)
    gaps = [timed.at_s[at] - timed.at_s[at - 1] for at in range(low, high)]
    return 1.0 / statistics.median(gaps)


async def _stateless_rates(mesh: Composition, timed: Timed, plan: Plan) -> dict[str, float]:
    return {f"stateless@{at}": await _stateless(mesh, timed, at) for at in plan.stateless}


async def _stateless(composition: Composition, timed: Timed, at: int) -> float:
    """Return the rate of stateless steps that draw the token of `at` from all ids before it."""
    ids = (*timed.prompt, *timed.token_ids[:at])
    route = composition.directory.route(composition.model)
    if not isinstance(route, Route):
        raise BenchError(str(route))
    times = []
    for _ in range(STATELESS_REPEATS):
        started = time.perf_counter()
        token = await _stateless_step(composition, route, ids, len(timed.prompt))
        times.append(time.perf_counter() - started)
        if token != timed.token_ids[at]:
            raise BenchError(
                f"position {at}: stateless drew {token}, cached drew {timed.token_ids[at]}"
            )
    return 1.0 / statistics.median(times)


async def _stateless_step(
    composition: Composition, route: Route, ids: tuple[int, ...], prompt_length: int
) -> int:
    activation: Activation | None = None
    for hop in route.hops:
        request = ForwardRequest(
            mode=Mode.STATELESS,
            layers=hop.layers,
            model=composition.model,
            wire=1,
            tokens=ids,
            sampling=banning_stops(composition, prompt_length, len(ids)),
            activation=activation,
        )
        reply = await composition.client.forward(hop.node, request, HOP_TIMEOUT_S)
        if isinstance(reply, TokenReply) and reply.drawn is not None:
            return reply.drawn.ids[-1]
        if not isinstance(reply, ActivationReply):
            raise BenchError(f"{hop.node} answered a stateless step with {reply}")
        activation = reply.activation
    raise BenchError("the tail drew no token")


def _wire(
    composition: Composition, measured: MeasuredClient, positions: dict[int, int]
) -> dict[str, Any]:
    by_position = {
        at: {composition.names[node]: asdict(cost) for node, cost in measured.at(past).items()}
        for at, past in positions.items()
    }
    tensors = [
        {name: (cost["tensor_bytes_out"], cost["tensor_bytes_in"]) for name, cost in hops.items()}
        for hops in by_position.values()
    ]
    return {"by_position": by_position, "tensor_bytes_equal": tensors[0] == tensors[1]}


def _operators(
    source: LocalModel,
    layers: Sequence[LayerRange],
    plan: Plan,
    sequence: Sequence[int],
) -> dict[str, Any]:
    from meshnet.engine.flops import decode_flops
    from meshnet.engine.loading import load_shard

    # The same operations in any format, but torch counts none of int8 operators.
    shards = [load_shard(source.path, held, weights=WeightFormat.FP32) for held in layers]
    prompt_length = len(sequence) - plan.tokens
    by_position = {
        at: {
            str(held): asdict(flops)
            for held, flops in zip(
                layers, decode_flops(shards, sequence[: prompt_length + at + 1]), strict=True
            )
        }
        for at in (plan.early, plan.late)
    }
    outside = [
        [flops["outside_attention"] for flops in hops.values()] for hops in by_position.values()
    ]
    return {"by_position": by_position, "outside_attention_equal": outside[0] == outside[1]}
