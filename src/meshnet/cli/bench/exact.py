"""`meshnet bench exact`: one answer, worked out in every way there is; one sha256 or several.

Two kinds of evidence:

    mesh      real node processes, a real head: the ids of the answer, and the log-probability of
              each token and of its 20 best rivals, to the last bit
    engine    the same shards in one process: ids, all logits, and all K and V at the end

Both kinds must draw the same ids. A variant is one line of VARIANTS or ENGINE_VARIANTS. The last
word is one sha256 over all of it, or an error: exit code 1.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from meshnet.cli.bench.arguments import Asked
from meshnet.cli.bench.digests import Told, agree, told_of, whole
from meshnet.cli.bench.mesh import DEADLINE_S, BenchError, banning_stops, bench_mesh
from meshnet.cli.bench.order import Order
from meshnet.cli.bench.picture import ranked
from meshnet.cli.bench.prompts import Prompts
from meshnet.cli.bench.report import Report, table
from meshnet.cli.bench.results import format_told, provenance, publish
from meshnet.cli.bench.running import pin, tell
from meshnet.cli.bench.sides import environment_of
from meshnet.cli.bench.workers import Worker
from meshnet.cli.composition import RESTART_WAIT_S, Composition
from meshnet.cli.local_nodes import split_layers
from meshnet.cli.models import resolve_model
from meshnet.cli.serving import run_loop
from meshnet.cli.settings import Settings, load_settings
from meshnet.core.vocabulary import LOGPROBS_MAX, SampledToken
from meshnet.engine.models.pull import LocalModel
from meshnet.head import GenerationRequest, TokenEvent
from meshnet.mesh.grouped import unwrapped

PROMPT_TOKENS = 300
"""More than one cell of the attention's key grid."""
OTHERS = 100
"""Prompts of others are numbered from here on."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to the answer on a mesh."""

    name: str
    nodes: int
    settings: tuple[tuple[str, str], ...] = ()
    others: int = 0
    """Sessions that generate at the same time."""
    killed: bool = False
    """A node dies in the middle, as often as the user says."""
    second_turn: bool = False
    """Half of the answer, then the rest of it as the next turn of the same chat."""


VARIANTS = (
    Variant("1 node", 1),
    Variant("2 nodes", 2),
    Variant("3 nodes", 3),
    Variant("2 nodes, prompt in chunks of 7", 2, (("prefill_chunk", "7"),)),
    Variant("2 nodes, in a batch of 8", 2, others=7),
    Variant("2 nodes, as a second turn", 2, second_turn=True),
    Variant("2 nodes, with drafts", 2, (("drafts", "4"),)),
    Variant("2 nodes, without drafts", 2, (("drafts", "off"),)),
    Variant("3 nodes, killed", 3, killed=True),
)

ENGINE_VARIANTS: tuple[dict[str, Any], ...] = (
    {"name": "1 shard", "shards": 1},
    {"name": "2 shards", "shards": 2},
    {"name": "3 shards", "shards": 3},
    {"name": "2 shards, prompt in chunks of 7", "shards": 2, "chunk": 7},
    {"name": "3 shards, prompt in chunks of 64", "shards": 3, "chunk": 64},
    {"name": "2 shards, in a batch of 8", "shards": 2, "others": 7},
    {"name": "2 shards, refilled 20 times", "shards": 2, "refills": 20},
)


def measure_exact(asked: Asked, *, tokens: int, kills: int) -> None:
    """Work the answer out in all ways, write all files, tell the sha256. Raises BenchError."""
    result = exact_result(asked.settings, asked.order, tokens=tokens, kills=kills)
    publish(result, exact_report(result), asked)
    if not result["equal"]:
        raise BenchError("the answers are not the same to the last bit")
    tell(f"one sha256: {result['sha256']}")


def exact_result(settings: Settings, order: Order, *, tokens: int, kills: int) -> dict[str, Any]:
    """Work the answer out in all ways. Raises MeshnetError."""
    pin(order.cores)
    source = resolve_model(settings.model, settings)
    own = settings.model_copy(update={"threads": settings.threads or 1})
    found = run_loop(lambda: _measure(own, source, tokens, kills))
    digests = {
        kind: {way: [told.bits for told in answers] for way, answers in found[kind].items()}
        for kind in found
    }
    ids = {told.ids for ways in found.values() for answers in ways.values() for told in answers}
    return {
        **provenance(source.name, format_told(settings), own.threads),
        "scenario": "exact",
        "prompt_tokens": PROMPT_TOKENS,
        "tokens": tokens,
        "kills": kills,
        **digests,
        "ids": sorted(ids),
        "equal": all(map(agree, digests.values())) and len(ids) == 1,
        "sha256": whole(digests, ids),
    }


async def _measure(
    settings: Settings, source: LocalModel, tokens: int, kills: int
) -> dict[str, dict[str, list[Told]]]:
    engine: dict[str, list[Told]] = {}
    worker = Worker(["exact"], environment_of(settings, nodes=1, threads=settings.threads or 1))
    try:
        await worker.start()
        for variant in ENGINE_VARIANTS:
            told = await worker.ask({**variant, "tokens": tokens})
            engine[variant["name"]] = [Told(told["sha256"], told["ids"])]
            tell(f"engine, {variant['name']}: {told['sha256'][:16]}")
    finally:
        await worker.stop()
    mesh: dict[str, list[Told]] = {}
    for way in VARIANTS:
        mesh[way.name] = await _on_a_mesh(way, settings, source, tokens, kills)
        tell(f"mesh, {way.name}: {_short(told.bits for told in mesh[way.name])}")
    return {"mesh": mesh, "engine": engine}


async def _on_a_mesh(
    variant: Variant, settings: Settings, source: LocalModel, tokens: int, kills: int
) -> list[Told]:
    values = {name: value for name, value in settings if name in settings.model_fields_set}
    needed = max(settings.kv_max_sessions, variant.others + 1)
    given = {**values, "threads": settings.threads, "kv_max_sessions": needed}
    own = load_settings(given, assigned=dict(variant.settings))
    layers = split_layers(source, nodes=variant.nodes, split=None)
    async with bench_mesh(own, source, layers, route_wait_s=RESTART_WAIT_S) as mesh:
        prompts = Prompts(lambda words: mesh.text.encode(words, special=False))
        if variant.killed:
            return [await _killed(mesh, prompts, place, tokens) for place in range(kills)]
        if variant.second_turn:
            return [await _in_two_turns(mesh, prompts.ids(0, PROMPT_TOKENS), tokens)]
        return [await _among_others(mesh, prompts, variant.others, tokens)]


async def _among_others(mesh: Composition, prompts: Prompts, others: int, tokens: int) -> Told:
    """Tell the answer that is worked out while others are."""
    under_way = [asyncio.Event() for _ in range(others)]
    with unwrapped():
        async with asyncio.TaskGroup() as group:
            crowd = [
                group.create_task(
                    answer(
                        mesh,
                        prompts.ids(OTHERS + at, PROMPT_TOKENS // 2),
                        3 * tokens,
                        _telling(event),
                    )
                )
                for at, event in enumerate(under_way)
            ]
            for event in under_way:
                await event.wait()
            found = await answer(mesh, prompts.ids(0, PROMPT_TOKENS), tokens)
            for task in crowd:
                task.cancel()
    return told_of(found)


def _telling(event: asyncio.Event) -> Callable[[int], None]:
    return lambda count: event.set()


async def _in_two_turns(mesh: Composition, prompt: tuple[int, ...], tokens: int) -> Told:
    first = await answer(mesh, prompt, tokens // 2, owner="one")
    longer = (*prompt, *(token.token_id for token in first))
    second = await answer(mesh, longer, tokens - tokens // 2, owner="one")
    if not mesh.head.counters.reused:
        raise BenchError("the second turn was filled anew: nothing of the first was reused")
    return told_of([*first, *second])


async def _killed(mesh: Composition, prompts: Prompts, place: int, tokens: int) -> Told:
    """Tell an answer in the middle of which a node died."""
    nodes = mesh.directory.snapshot()
    victim = nodes[place % len(nodes)].node
    pid = (await mesh.client.describe(victim, DEADLINE_S)).pid
    at = random.Random(place).randrange(1, tokens)

    def kill(count: int) -> None:
        if count == at:
            os.kill(pid, signal.SIGKILL)

    found = await answer(mesh, prompts.ids(0, PROMPT_TOKENS), tokens, kill)
    while not mesh.readiness().ready:  # noqa: ASYNC110  # the directory tells nobody
        await asyncio.sleep(0.1)
    return told_of(found)


async def answer(
    mesh: Composition,
    prompt: tuple[int, ...],
    tokens: int,
    seen: Callable[[int], None] = lambda count: None,
    owner: str | None = None,
) -> list[SampledToken]:
    """Generate exactly `tokens` greedy tokens; `seen` is told how many there are, at each."""
    sampling = replace(banning_stops(mesh, len(prompt), tokens), logprobs=LOGPROBS_MAX)
    request = GenerationRequest(
        prompt=prompt,
        tokens_max=tokens,
        sampling=sampling,
        stop_ids=frozenset(),
        deadline_s=DEADLINE_S,
        prefix_owner=owner,
    )
    found: list[SampledToken] = []
    async with aclosing(mesh.head.generate(request)) as events:
        async for event in events:
            if isinstance(event, TokenEvent):
                found.append(event.token)
                seen(len(found))
    if len(found) != tokens:
        raise BenchError(f"expected {tokens} tokens, got {len(found)}")
    return found


def exact_report(result: Mapping[str, Any]) -> Report:
    told = (
        f"All equal: {'yes' if result['equal'] else 'NO'}. "
        f"One sha256 over everything: `{result['sha256']}`. Different sequences of ids over both "
        f"kinds: {len(result['ids'])}."
    )
    tables = []
    panels = []
    for kind in ("engine", "mesh"):
        ways = result[kind]
        rows = [(name, str(len(found)), f"`{_short(found)}`") for name, found in ways.items()]
        tables.append(table((kind, "answers", "sha256"), rows))
        colours = {bits: f"C{at}" for at, bits in enumerate(_different(ways))}
        lying = [
            (
                f"{name}: {_short(found)}",
                float(len(found)),
                colours[found[0]] if len(set(found)) == 1 else "black",
            )
            for name, found in ways.items()
        ]
        panels.append(ranked(f"{kind}: answers; a colour is a sha256", lying))
    return Report(
        f"{result['tokens']} tokens after a prompt of {result['prompt_tokens']}, "
        f"{result['kills']} answers with a node killed",
        (told, *tables),
        tuple(panels),
    )


def _different(ways: Mapping[str, Sequence[str]]) -> list[str]:
    return list(dict.fromkeys(bits for found in ways.values() for bits in found))


def _short(digests: Iterable[str]) -> str:
    return ", ".join(sorted({each[:16] for each in digests}))
