"""`meshnet run`: one question on a private mesh, its answer, and who computed what."""

from __future__ import annotations

import asyncio
import sys
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any

import typer
from rich.console import Console

from meshnet.cli.composition import Composition
from meshnet.cli.gateway_process import quiet_telemetry, reports
from meshnet.cli.local_mesh import local_mesh
from meshnet.cli.local_nodes import local_launcher, split_layers
from meshnet.cli.models import prompt_ids, resolve_model
from meshnet.cli.options import print_json
from meshnet.cli.report import NodeReport, as_json, print_table
from meshnet.cli.serving import run_loop, stop_on_signals
from meshnet.cli.settings import Settings
from meshnet.cli.up import announce_start
from meshnet.core.vocabulary import MeshnetError, SamplingParams
from meshnet.engine.models.pull import LocalModel
from meshnet.head import FinishEvent, GenerationRequest

INTERRUPTED = 130
"""Exit status of a shell command that SIGINT ended."""
DESCRIBED_S, LOOK_S = 20.0, 0.1
"""How long nodes are asked what they hold after an answer, and how often."""


class PromptTooLong(MeshnetError):
    def __init__(self, tokens: int, context_length: int) -> None:
        super().__init__(
            f"PROMPT: {tokens} tokens, and the context of the model holds {context_length}, "
            "at least one for the answer"
        )


@dataclass(frozen=True, slots=True)
class Ask:
    prompt: str
    tokens_max: int
    temperature: float


@dataclass(slots=True)
class Answer:
    """What came so far."""

    prompt_tokens: int
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    finish: FinishEvent | None = None
    nodes: list[NodeReport] = field(default_factory=list)


def ask_once(settings: Settings, ask: Ask, *, nodes: int, split: str | None, as_json: bool) -> None:
    """Answer `ask` and print it. Raises MeshnetError."""
    source = resolve_model(settings.model, settings)
    run_loop(lambda: _ask_once(settings, source, ask, nodes, split, as_json))


async def _ask_once(
    settings: Settings,
    source: LocalModel,
    ask: Ask,
    nodes: int,
    split: str | None,
    as_json: bool,
) -> None:
    telemetry = quiet_telemetry(settings)
    layers = split_layers(source, nodes=nodes, split=split)
    launcher = local_launcher(settings, layers, telemetry.record)
    with stop_on_signals() as stop:
        if not as_json:
            announce_start(source.name, layers)
        async with local_mesh(settings, source, launcher, telemetry.record, stop) as composition:
            if composition is None:
                raise typer.Exit(INTERRUPTED)
            answer = await _answered(settings, composition, ask, stop, quiet=as_json)
    if as_json:
        print_json(_values(answer))
    else:
        _show(answer)
    if answer.finish is None:
        raise typer.Exit(INTERRUPTED)


async def _answered(
    settings: Settings, composition: Composition, ask: Ask, stop: asyncio.Event, *, quiet: bool
) -> Answer:
    prompt = prompt_ids(composition.text, ask.prompt)
    if len(prompt) >= composition.text.context_length:
        raise PromptTooLong(len(prompt), composition.text.context_length)
    answer = Answer(prompt_tokens=len(prompt))
    decoder = composition.text.decoder()
    request = GenerationRequest(
        prompt=tuple(prompt),
        tokens_max=ask.tokens_max,
        sampling=SamplingParams(temperature=ask.temperature, prompt_length=len(prompt)),
        stop_ids=composition.text.stop_ids,
        deadline_s=settings.request_timeout_seconds,
    )
    async with aclosing(composition.head.generate(request)) as events:
        async for event in events:
            if isinstance(event, FinishEvent):
                answer.finish = event
                break
            answer.token_ids.append(event.token.token_id)
            _say(answer, decoder.push(event.token.token_id), quiet)
            if stop.is_set():
                break
        _say(answer, decoder.flush(), quiet)
        # The session is still held on every node: what it takes can be seen now only.
        answer.nodes = await _described(composition)
    return answer


async def _described(composition: Composition) -> list[NodeReport]:
    """Ask again where a node was too busy to tell in a directory's time of the steps it ran."""
    with suppress(TimeoutError):
        async with asyncio.timeout(DESCRIBED_S):
            await composition.directory.refresh()
            while any(node.steps == 0 for node in composition.directory.snapshot()):
                await asyncio.sleep(LOOK_S)
                await composition.directory.refresh()
    return reports(composition)


def _say(answer: Answer, words: str, quiet: bool) -> None:
    answer.text += words
    if words and not quiet:
        print(words, end="", flush=True)


def _timing(answer: Answer) -> dict[str, Any]:
    finish = answer.finish
    if finish is None or finish.ttft_s is None:
        return {"ttft_s": None, "tokens_per_s": None}
    after_first_s = finish.duration_s - finish.ttft_s
    later = len(answer.token_ids) - 1
    rate = later / after_first_s if later > 0 and after_first_s > 0 else None
    return {
        "ttft_s": round(finish.ttft_s, 4),
        "tokens_per_s": None if rate is None else round(rate, 2),
    }


def _values(answer: Answer) -> dict[str, Any]:
    completion = len(answer.token_ids)
    return {
        "text": answer.text,
        "token_ids": answer.token_ids,
        "usage": {
            "prompt_tokens": answer.prompt_tokens,
            "completion_tokens": completion,
            "total_tokens": answer.prompt_tokens + completion,
        },
        "nodes": as_json(answer.nodes),
        "timing": _timing(answer),
    }


def _show(answer: Answer) -> None:
    print(flush=True)
    console = Console()
    console.print()
    print_table(console, answer.nodes, urls=False)
    timing = _timing(answer)
    if timing["tokens_per_s"] is not None:
        console.print(
            f"{len(answer.token_ids)} tokens, {timing['tokens_per_s']} tokens/s after the first, "
            f"which took {timing['ttft_s']} s",
            highlight=False,
        )
    sys.stdout.flush()
