"""`meshnet bench flatness`: does a token cost the same at position 1,400 as at position 100?

Four answers from one run:

    cached      tokens per second by position, one generation, median of windows
    stateless   one step at sampled positions, since a whole stateless run is O(n^2)
    wire        tensor bytes of one decode, per hop, at two positions: must be equal
    operators   FLOPs of one decode outside attention, per shard, at two positions: must be equal

Each stateless step must draw the token that the cached run drew, or the measurement fails.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from meshnet.cli.bench.flatness_plot import plot_flatness
from meshnet.cli.bench.measured_client import MeasuredClient
from meshnet.cli.bench.mesh import (
    PROMPT,
    BenchError,
    Timed,
    banning_stops,
    bench_mesh,
    timed_generation,
)
from meshnet.cli.bench.paired import spread
from meshnet.cli.bench.results import provenance, result_path, write_result
from meshnet.cli.composition import Composition
from meshnet.cli.local_nodes import split_layers
from meshnet.cli.models import prompt_ids, resolve_model
from meshnet.cli.options import print_json
from meshnet.cli.serving import run_loop
from meshnet.cli.settings import Settings
from meshnet.core.protocol.messages import ActivationReply, ForwardRequest, Mode, TokenReply
from meshnet.core.vocabulary import Activation, LayerRange, Route, WeightFormat
from meshnet.engine.models.pull import LocalModel
from meshnet.head import HopClient

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
    def stateless(self) -> tuple[int, ...]:
        between = (self.early + (self.late - self.early) * step // 4 for step in range(5))
        return (1, *between)


def measure_flatness(
    settings: Settings, *, nodes: int, tokens: int, out: Path, as_json: bool
) -> None:
    """Measure, write JSON and a plot under `out`, and print. Raises MeshnetError."""
    settings = settings.model_copy(update={"routes": "star"})  # what each hop is sent is seen here
    source = resolve_model(settings.model, settings)
    layers = split_layers(source, nodes=nodes, split=None)
    plan = Plan(tokens)
    result = run_loop(lambda: _measure(settings, source, layers, plan))
    result["operators"] = _operators(source, layers, plan, result.pop("sequence"))
    path = result_path(out, source.name, "flatness")
    written = write_result(path, result)
    plotted = plot_flatness(result, path)
    if as_json:
        print_json(result)
        return
    _tell(result)
    print(f"written: {written}" + (f", {plotted}" if plotted else ""))


async def _measure(
    settings: Settings, source: LocalModel, layers: Sequence[LayerRange], plan: Plan
) -> dict[str, Any]:
    measured: list[MeasuredClient] = []

    def through(client: HopClient) -> HopClient:
        measured.append(MeasuredClient(client))
        return measured[0]

    async with bench_mesh(settings, source, layers, through=through) as composition:
        prompt = prompt_ids(composition.text, PROMPT)
        await timed_generation(composition, prompt, 16)
        positions = {at: len(prompt) + at for at in (plan.early, plan.late)}
        measured[0].watch(positions.values())
        timed = await timed_generation(composition, prompt, plan.tokens)
        stateless = [await _stateless(composition, timed, at) for at in plan.stateless]
        shards = [shard for node in composition.directory.snapshot() for shard in node.shards]
    return {
        **provenance(source.name, shards[0].dtype.value),
        "nodes": [str(held) for held in layers],
        "threads_per_node": settings.threads or "cores / nodes",
        "prompt_tokens": len(prompt),
        "generated_tokens": plan.tokens,
        "refills": timed.refills,
        "cached": _windows(timed),
        "stateless": stateless,
        "stateless_note": (
            "single stateless steps at sampled positions, median of "
            f"{STATELESS_REPEATS}: a whole stateless run costs O(n^2)"
        ),
        "flatness": _flatness(timed, plan),
        "wire": _wire(composition, measured[0], positions),
        "sequence": [*prompt, *timed.token_ids],
    }


def _flatness(timed: Timed, plan: Plan) -> dict[str, Any]:
    early, late = _rate_at(timed, plan.early), _rate_at(timed, plan.late)
    return {
        "early_position": plan.early,
        "late_position": plan.late,
        "early_tokens_per_s": round(early, 2),
        "late_tokens_per_s": round(late, 2),
        "ratio": round(late / early, 3),
    }


def _rate_at(timed: Timed, position: int) -> float:
    """Median rate of the tokens around `position`."""
    low, high = max(1, position - WINDOW), min(len(timed.at_s), position + WINDOW)
    gaps = [timed.at_s[at] - timed.at_s[at - 1] for at in range(low, high)]
    return 1.0 / statistics.median(gaps)


def _windows(timed: Timed) -> list[dict[str, float]]:
    width = 2 * WINDOW
    middles = range(WINDOW, len(timed.at_s) - WINDOW + 1, width)
    return [
        {"position": middle, "tokens_per_s": round(_rate_at(timed, middle), 3)}
        for middle in middles
    ]


async def _stateless(composition: Composition, timed: Timed, at: int) -> dict[str, Any]:
    """Time stateless steps that draw the token of position `at` from all ids before it."""
    ids = (*timed.prompt, *timed.token_ids[:at])
    route = composition.directory.route(composition.model)
    if not isinstance(route, Route):
        raise BenchError(str(route))
    rates = []
    for _ in range(STATELESS_REPEATS):
        started = time.perf_counter()
        token = await _stateless_step(composition, route, ids, len(timed.prompt))
        rates.append(1.0 / (time.perf_counter() - started))
        if token != timed.token_ids[at]:
            raise BenchError(
                f"position {at}: stateless drew {token}, cached drew {timed.token_ids[at]}"
            )
    return {"position": at, "tokens_per_s": spread(rates)}


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


def _tell(result: dict[str, Any]) -> None:
    flat = result["flatness"]
    print(
        f"{result['model']} ({result['dtype']}), layers {', '.join(result['nodes'])}: "
        f"{flat['early_tokens_per_s']} tokens/s at position {flat['early_position']}, "
        f"{flat['late_tokens_per_s']} at {flat['late_position']}, ratio {flat['ratio']}"
    )
    for sample in result["stateless"]:
        rate = sample["tokens_per_s"]["median"]
        print(f"stateless at position {sample['position']}: {rate} tokens/s")
    print(f"tensor bytes per hop and step equal: {result['wire']['tensor_bytes_equal']}")
    equal = result["operators"]["outside_attention_equal"]
    print(f"operator FLOPs outside attention equal: {equal}")
