"""`meshnet bench latency`: tokens over long wires, against what the delay alone must cost.

Every link has the same one-way delay d: head to node, node to head, node to node. One proxy
stands before each node, and the head and the other nodes know it by the address of its proxy.

    star    2 n d + c      the head asks each of the n nodes in turn
    chain   (n + 1) d + c  each node hands on to the next, the tail answers the head

c is the time of a token where d is 0, measured in the same rounds. The delay that was really there
is measured too: half of what a question without work takes longer than without it.

A variant is one line of VARIANTS: how the head works, and what text it continues.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Any

from meshnet.cli.bench.load import LoadProbe
from meshnet.cli.bench.mesh import timed_generation
from meshnet.cli.bench.order import Order
from meshnet.cli.bench.paired import Rules, Sample, Values, ratios, spread, take_turns
from meshnet.cli.bench.picture import lines
from meshnet.cli.bench.prompts import Prompts
from meshnet.cli.bench.report import Report, number, table
from meshnet.cli.bench.results import format_told, provenance
from meshnet.cli.bench.running import pin, tell
from meshnet.cli.bench.sides import environment_of
from meshnet.cli.bench.workers import Worker
from meshnet.cli.composition import Composition, composed
from meshnet.cli.gateway_process import quiet_telemetry
from meshnet.cli.local_nodes import HOST, free_ports, local_launcher, split_layers
from meshnet.cli.models import load_text, resolve_model
from meshnet.cli.serving import run_loop
from meshnet.cli.settings import Settings, load_settings
from meshnet.core.vocabulary import ModelId
from meshnet.engine.models.pull import LocalModel

PROMPT_TOKENS = 96
REPEATED_TOKENS = 24
"""A repeating prompt says so many tokens again and again."""
ECHOES = 7
HOP_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Variant:
    """A way of working over the wires. `messages` of a token, one after the other, by nodes."""

    name: str
    messages_per_node: int
    messages_more: int
    settings: tuple[tuple[str, str], ...] = ()
    repeats: bool = False
    """Whether the prompt repeats itself, so that a guess can be right."""
    drawn: bool = False
    """Whether tokens are drawn at random, so that the text does not fall into repeating itself."""
    against: str | None = None
    """The variant that it is held against, at the same delay."""

    def messages(self, nodes: int) -> int:
        return self.messages_per_node * nodes + self.messages_more


STAR = (("routes", "star"), ("drafts", "off"))
CHAIN = (("routes", "chain"), ("drafts", "off"))
DRAFTS = (("routes", "chain"), ("drafts", "auto"))
VARIANTS = (
    Variant("star", 2, 0, STAR),
    Variant("chain", 1, 1, CHAIN, against="star"),
    Variant("star, repeating text", 2, 0, STAR, repeats=True),
    Variant("drafts, repeating text", 1, 1, DRAFTS, repeats=True, against="star, repeating text"),
    Variant("chain, drawn text", 1, 1, CHAIN, drawn=True),
    Variant("drafts, drawn text", 1, 1, DRAFTS, drawn=True, against="chain, drawn text"),
)


@dataclass(frozen=True, slots=True)
class Turn:
    variant: Variant
    delay_ms: float

    def __str__(self) -> str:
        return f"{self.variant.name} at {self.delay_ms:g} ms"


def latency_result(
    settings: Settings, order: Order, *, nodes: int, tokens: int, delays_ms: Sequence[float]
) -> dict[str, Any]:
    """Run every variant at every delay, in turns. Raises MeshnetError."""
    pin(order.cores)
    source = resolve_model(settings.model, settings)
    own = settings.model_copy(update={"threads": settings.threads or 1})
    delays = sorted({0.0, *delays_ms})
    samples = run_loop(lambda: _measure(own, source, order.rules, nodes, tokens, delays))
    return {
        **provenance(source.name, format_told(settings), own.threads),
        "scenario": "latency",
        "nodes": nodes,
        "tokens": tokens,
        "rules": asdict(order.rules),
        "rows": latency_rows(samples, nodes),
        "disturbed": {
            str(turn): sum(each.disturbed for each in taken) for turn, taken in samples.items()
        },
        "samples": {str(turn): [asdict(each) for each in taken] for turn, taken in samples.items()},
    }


def latency_rows(samples: Mapping[Turn, Sequence[Sample]], nodes: int) -> list[dict[str, Any]]:
    """Compare each turn with its variant at no delay, round by round."""
    still = {turn.variant: taken for turn, taken in samples.items() if turn.delay_ms == 0.0}
    by_name: dict[tuple[str | None, float], Sequence[Sample]] = {
        (turn.variant.name, turn.delay_ms): taken for turn, taken in samples.items()
    }
    known = {variant.name: variant for variant in still}
    rows: list[dict[str, Any]] = []
    for turn, taken in samples.items():
        other = known.get(turn.variant.against or "")
        messages = turn.variant.messages(nodes)
        over = [
            sample.values["token_ms"]
            / (messages * sample.values["wire_ms"] + quiet.values["token_ms"])
            for sample, quiet in zip(taken, still[turn.variant], strict=True)
        ]
        rows.append(
            {
                "variant": turn.variant.name,
                "delay_ms": turn.delay_ms,
                "messages": messages,
                "wire_ms": spread([sample.values["wire_ms"] for sample in taken]),
                "token_ms": spread([sample.values["token_ms"] for sample in taken]),
                "over_formula": spread(over),
                "against": _against(taken, by_name.get((turn.variant.against, turn.delay_ms))),
                "over_expected": None
                if other is None
                else _over_expected(
                    (taken, messages),
                    (samples[Turn(other, turn.delay_ms)], other.messages(nodes)),
                    still[other],
                ),
                "disturbed": sum(sample.disturbed for sample in taken),
            }
        )
    return rows


def _against(taken: Sequence[Sample], others: Sequence[Sample] | None) -> dict[str, float] | None:
    """Return the time of a token over that of the other variant, round by round."""
    return None if others is None else spread(ratios(taken, others, "token_ms"))


def _over_expected(
    one: tuple[Sequence[Sample], int], other: tuple[Sequence[Sample], int], quiet: Sequence[Sample]
) -> dict[str, float]:
    """Return a token's time over the other variant's, over what their messages make of that.

    `quiet`: the other variant without delay; both do the same work.
    """

    def alone_ms(sample: Sample, messages: int, still: Sample) -> float:
        return messages * sample.values["wire_ms"] + still.values["token_ms"]

    return spread(
        [
            (mine.values["token_ms"] / its.values["token_ms"])
            / (alone_ms(mine, one[1], still) / alone_ms(its, other[1], still))
            for mine, its, still in zip(one[0], other[0], quiet, strict=True)
        ]
    )


async def _measure(
    settings: Settings,
    source: LocalModel,
    rules: Rules,
    nodes: int,
    tokens: int,
    delays_ms: Sequence[float],
) -> dict[Turn, list[Sample]]:
    turns = [Turn(variant, delay) for variant in VARIANTS for delay in delays_ms]
    async with _heads(settings, source, nodes) as (heads, wires, pids):
        text = next(iter(heads.values())).text
        prompts = Prompts(lambda words: text.encode(words, special=False))

        async def measure(turn: Turn, number: int) -> Values:
            head = heads[turn.variant]
            await wires.ask({"delay_s": 0.0})
            bare_s = await _echo_s(head)
            await wires.ask({"delay_s": turn.delay_ms / 1e3})
            wire_s = (await _echo_s(head) - bare_s) / 2 if turn.delay_ms else 0.0
            prompt = _prompt(prompts, turn.variant, number)
            seed = number if turn.variant.drawn else None
            timed = await timed_generation(head, prompt, tokens, seed=seed)
            return {"token_ms": 1e3 / timed.tokens_per_s, "wire_ms": 1e3 * max(0.0, wire_s)}

        return await take_turns(turns, measure, lambda turn: LoadProbe(pids), rules, tell)


def _prompt(prompts: Prompts, variant: Variant, number: int) -> tuple[int, ...]:
    if not variant.repeats:
        return prompts.ids(number, PROMPT_TOKENS)
    return prompts.ids(number, REPEATED_TOKENS) * (PROMPT_TOKENS // REPEATED_TOKENS)


async def _echo_s(head: Composition) -> float:
    """Return the median time of a question to the first node that costs no work."""
    node = head.directory.snapshot()[0].node
    times = []
    for _ in range(ECHOES):
        began = time.perf_counter()
        await head.client.describe(node, HOP_TIMEOUT_S)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


@asynccontextmanager
async def _heads(
    settings: Settings, source: LocalModel, nodes: int
) -> AsyncIterator[tuple[dict[Variant, Composition], Worker, list[int]]]:
    """Run the nodes, a proxy before each, and a head per variant over the proxies."""
    record = quiet_telemetry(settings).record
    layers = split_layers(source, nodes=nodes, split=None)
    ports = free_ports(nodes)
    async with AsyncExitStack() as stack:
        wires = Worker(["wires", *map(str, ports)], environment_of(settings, nodes=1, threads=1))
        stack.push_async_callback(wires.stop)
        near = [f"http://{HOST}:{port}" for port in (await wires.start())["ports"]]
        launcher = local_launcher(settings, layers, record, ports=ports, peers=near)
        await stack.enter_async_context(launcher.running())
        await launcher.ready()
        urls = {child.name: url for child, url in zip(launcher.children, near, strict=True)}
        text = load_text(source)
        heads = {}
        for variant in VARIANTS:
            own = _settings_of(variant, settings)
            heads[variant] = await stack.enter_async_context(
                composed(own, ModelId(source.name), text, urls, record)
            )
        yield heads, wires, [wires.pid, *(child.pid for child in launcher.children)]


def _settings_of(variant: Variant, settings: Settings) -> Settings:
    values = {name: value for name, value in settings if name in settings.model_fields_set}
    given = {"hop_timeout_seconds": HOP_TIMEOUT_S, **values}
    return load_settings(given, assigned=dict(variant.settings))


def latency_report(result: Mapping[str, Any]) -> Report:
    rows = [
        (
            f"{row['variant']}, {row['delay_ms']:g} ms",
            number(row["wire_ms"]["median"]),
            str(row["messages"]),
            number(row["token_ms"]["median"]),
            f"{number(row['token_ms']['min'])} to {number(row['token_ms']['max'])}",
            number(row["over_formula"]["median"]),
            number(row["against"]["median"]) if row["against"] else "–",
        )
        for row in result["rows"]
    ]
    titles = (
        "variant, delay", "measured d", "messages m", "ms a token", "spread", "/ (m d + c)",
        "/ other",
    )  # fmt: skip
    legend = (
        "d: one-way delay of every link; c: a token's time without delay, of the same round; "
        "/ other: over the star without drafts on the same text; of drawn text, over the chain "
        "without drafts."
    )
    series: dict[str, dict[float, Any]] = {}
    for row in result["rows"]:
        series.setdefault(row["variant"], {})[row["delay_ms"]] = row["token_ms"]
    return Report(
        f"{result['nodes']} nodes behind delaying proxies",
        (table(titles, rows), legend),
        (lines("ms a token, by one-way delay in ms", series, width=6.0),),
    )
