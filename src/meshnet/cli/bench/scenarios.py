"""What one turn of one side is: the questions that any server of one model can be asked.

    decode        one session: tokens/s after the first token
    prefill       a long prompt: tokens/s up to the first token
    positions     one long answer: tokens/s early and late, and their ratio
    concurrency   k sessions at once: tokens/s of all, prefill included
    ttft          a short prompt's first token, alone and while others decode
    turns         the second turn of a long chat against a cold prompt as long

Invariant: a scenario knows its side by the protocol of side.py alone.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from meshnet.cli.bench.mesh import BenchError
from meshnet.cli.bench.paired import Values
from meshnet.cli.bench.prompts import Prompts
from meshnet.cli.bench.side import Side, Stream
from meshnet.mesh.grouped import unwrapped

SPACING = 1000
"""Prompts of one turn are numbered below it."""
PROMPT_TOKENS = 32
WINDOW = 25
"""Half the width, in tokens, of the window around a position."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One number of a sample; `name@k` are the same number at several k."""

    name: str
    unit: str
    higher_is_better: bool = True


@dataclass(frozen=True, slots=True)
class Subject:
    """What is measured."""

    name: str
    title: str
    metrics: tuple[Metric, ...]


@dataclass(frozen=True, slots=True)
class Scenario(Subject):
    measure: Callable[[Side, Prompts, int], Awaitable[Values]]
    """A turn: the side, the prompts, and a number that is never the same twice."""
    sessions: int = 1
    """How many it runs at once."""
    positions: int = 2048
    """The longest sequence."""


def decode(tokens: int) -> Scenario:
    async def measure(side: Side, prompts: Prompts, number: int) -> Values:
        stream = await side.decode(prompts.ids(number * SPACING, PROMPT_TOKENS), tokens)
        return {"tokens_per_s": stream.tokens_per_s, "ttft_ms": 1e3 * stream.ttft_s}

    metrics = (Metric("tokens_per_s", "tokens/s"), Metric("ttft_ms", "ms", higher_is_better=False))
    title = f"one session, {tokens} tokens after a prompt of {PROMPT_TOKENS}"
    return Scenario("decode", title, metrics, measure, positions=PROMPT_TOKENS + tokens)


def prefill(length: int) -> Scenario:
    async def measure(side: Side, prompts: Prompts, number: int) -> Values:
        stream = await side.decode(prompts.ids(number * SPACING, length), 1)
        return {"tokens_per_s": length / stream.ttft_s, "ttft_ms": 1e3 * stream.ttft_s}

    metrics = (Metric("tokens_per_s", "tokens/s"), Metric("ttft_ms", "ms", higher_is_better=False))
    title = f"time to the first token of a prompt of {length} tokens"
    return Scenario("prefill", title, metrics, measure, positions=length + 1)


def positions(early: int, late: int) -> Scenario:
    async def measure(side: Side, prompts: Prompts, number: int) -> Values:
        prompt = prompts.ids(number * SPACING, PROMPT_TOKENS)
        stream = await side.decode(prompt, late + WINDOW + 1)
        at_early, at_late = (rate_at(stream, at) for at in (early, late))
        return {
            f"tokens_per_s@{early}": at_early,
            f"tokens_per_s@{late}": at_late,
            "flatness": at_late / at_early,
        }

    metrics = (
        Metric(f"tokens_per_s@{early}", "tokens/s"),
        Metric(f"tokens_per_s@{late}", "tokens/s"),
        Metric("flatness", ""),
    )
    title = f"one answer: rate around token {early} and token {late}"
    longest = PROMPT_TOKENS + late + WINDOW + 1
    return Scenario("positions", title, metrics, measure, positions=longest)


def rate_at(stream: Stream, position: int) -> float:
    """Return the mean rate of the tokens around `position`."""
    low, high = max(0, position - WINDOW), min(stream.tokens - 1, position + WINDOW)
    return (high - low) / (stream.token_at_s(high) - stream.token_at_s(low))


def concurrency(sessions: Sequence[int], tokens: int) -> Scenario:
    async def measure(side: Side, prompts: Prompts, number: int) -> Values:
        values: dict[str, float] = {}
        first = number * SPACING
        for count in sessions:
            streams = await _at_once(side, prompts, range(first, first + count), tokens)
            # All were sent at the same moment, from which each counts.
            elapsed_s = max(stream.at_s[-1] for stream in streams)
            values[f"tokens_per_s@{count}"] = count * tokens / elapsed_s
            values[f"ttft_ms@{count}"] = 1e3 * statistics.median(each.ttft_s for each in streams)
            first += count
        low, high = min(sessions), max(sessions)
        values["gain"] = values[f"tokens_per_s@{high}"] / values[f"tokens_per_s@{low}"]
        return values

    metrics = (
        *(Metric(f"tokens_per_s@{count}", "tokens/s") for count in sessions),
        *(Metric(f"ttft_ms@{count}", "ms", higher_is_better=False) for count in sessions),
        Metric("gain", ""),
    )
    title = f"sessions at once, each {tokens} tokens after a prompt of {PROMPT_TOKENS}: all tokens"
    return Scenario(
        "concurrency",
        title,
        metrics,
        measure,
        sessions=max(sessions),
        positions=PROMPT_TOKENS + tokens,
    )


async def _at_once(
    side: Side, prompts: Prompts, numbers: Sequence[int], tokens: int
) -> list[Stream]:
    with unwrapped():
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(side.decode(prompts.ids(number, PROMPT_TOKENS), tokens))
                for number in numbers
            ]
    return [task.result() for task in tasks]


def ttft(others: int, probes: int, other_tokens: int) -> Scenario:
    async def measure(side: Side, prompts: Prompts, number: int) -> Values:
        first = number * SPACING
        alone = await _first_tokens(side, prompts, range(first, first + probes))
        first += probes
        crowd = range(first, first + others)
        async with crowded(side, prompts, crowd, other_tokens) as still_busy:
            first += others
            busy = await _first_tokens(side, prompts, range(first, first + probes))
            still_busy()
        return {"alone_ms": 1e3 * alone, "busy_ms": 1e3 * busy, "ratio": busy / alone}

    metrics = tuple(
        Metric(name, unit, higher_is_better=False)
        for name, unit in (("alone_ms", "ms"), ("busy_ms", "ms"), ("ratio", ""))
    )
    title = f"first token of a prompt of {PROMPT_TOKENS}, alone and while {others} others decode"
    return Scenario(
        "ttft",
        title,
        metrics,
        measure,
        sessions=others + 1,
        positions=PROMPT_TOKENS + other_tokens,
    )


async def _first_tokens(side: Side, prompts: Prompts, numbers: Sequence[int]) -> float:
    """Return the median time to the first token of prompts sent one after the other."""
    times = []
    for number in numbers:
        times.append((await side.decode(prompts.ids(number, PROMPT_TOKENS), 1)).ttft_s)
    return statistics.median(times)


@asynccontextmanager
async def crowded(
    side: Side, prompts: Prompts, numbers: Sequence[int], tokens: int
) -> AsyncIterator[Callable[[], None]]:
    """Run sessions that decode until the block is left; entered when each has a first token.

    What it yields raises BenchError if one of them is over: then they were not there any more.
    """
    decoding = [asyncio.Event() for _ in numbers]
    with unwrapped():
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(
                    side.decode(prompts.ids(number, PROMPT_TOKENS), tokens, event.set)
                )
                for number, event in zip(numbers, decoding, strict=True)
            ]
            for event in decoding:
                await event.wait()

            def still_busy() -> None:
                if any(task.done() for task in tasks):
                    raise BenchError(f"{side.name}: others ended early, give them more tokens")

            try:
                yield still_busy
            finally:
                for task in tasks:
                    task.cancel()


def turns(length: int, answer: int, question: int) -> Scenario:
    async def measure(side: Side, prompts: Prompts, number: int) -> Values:
        first = number * SPACING
        prompt = prompts.ids(first, length)
        stream = await side.decode(prompt, answer)
        told = stream.token_ids or prompts.continued(stream.text)
        asked = prompts.ids(first + 1, question)
        second = await side.decode((*prompt, *told, *asked), 1)
        whole = len(prompt) + len(told) + len(asked)
        cold = await side.decode(prompts.ids(first + 2, whole), 1)
        return {
            "cold_ms": 1e3 * cold.ttft_s,
            "second_ms": 1e3 * second.ttft_s,
            "ratio": second.ttft_s / cold.ttft_s,
        }

    metrics = tuple(
        Metric(name, unit, higher_is_better=False)
        for name, unit in (("cold_ms", "ms"), ("second_ms", "ms"), ("ratio", ""))
    )
    title = f"second turn of a chat of {length} + {answer} tokens against a cold prompt as long"
    longest = length + 2 * answer + question + 1
    return Scenario("turns", title, metrics, measure, positions=longest)
