"""Sides that take turns, and what may be concluded from it.

round -w..-1   warm-up, thrown away
round r        every side once, the first one another each round:   A B C | B C A | C A B

A sample during which others kept more than `other_max` cores busy is disturbed: it is taken again,
a bounded number of times; if none is quiet the quietest one stays, and is marked.

Invariants
    * a ratio is formed within a round, of samples taken one after the other;
    * every sample tells how busy others were; none is dropped silently.
"""

from __future__ import annotations

import statistics
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

S = TypeVar("S")

Values = Mapping[str, float]
"""What one turn of one side measured, by metric."""


@dataclass(frozen=True, slots=True)
class Rules:
    rounds: int = 5
    warmups: int = 1
    other_max: float = 0.12
    """Cores. Beyond it a sample is disturbed."""
    repeats_max: int = 2
    """How often a disturbed sample is taken again."""

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.warmups < 0 or self.repeats_max < 0:
            raise ValueError(f"rules: expected at least one round, got {self}")


@dataclass(frozen=True, slots=True)
class Sample:
    values: Values
    other_cores: float
    disturbed: bool
    tries: int = 1


class Probe(Protocol):
    def other_cores(self) -> float: ...


def turns(sides: Sequence[S], number: int) -> list[S]:
    """Return the order of round `number`; over len(sides) rounds each is first once."""
    at = number % len(sides)
    return [*sides[at:], *sides[:at]]


async def take_turns(
    sides: Sequence[S],
    measure: Callable[[S, int], Awaitable[Values]],
    probe: Callable[[S], Probe],
    rules: Rules,
    tell: Callable[[str], None] = lambda line: None,
) -> dict[S, list[Sample]]:
    """Measure every side once a round and return the samples, by round.

    `measure(side, number)` gets a number that is never the same twice for one side, to make
    prompts of that share no prefix; equal over the sides of a round unless one was disturbed.
    """
    samples: dict[S, list[Sample]] = {side: [] for side in sides}
    for number in range(-rules.warmups, rules.rounds):
        for side in turns(sides, number):
            if number < 0:
                await measure(side, _numbered(number + rules.warmups, 0, rules))
                continue
            sample = await _sample(side, number + rules.warmups, measure, probe, rules)
            samples[side].append(sample)
            tell(f"round {number + 1} of {rules.rounds}: {side}: {told(sample)}")
    return samples


def told(sample: Sample) -> str:
    """Say a sample in one line."""
    values = ", ".join(f"{name} {value:.4g}" for name, value in sample.values.items())
    mark = f" [disturbed: others used {sample.other_cores:.2f} cores]" if sample.disturbed else ""
    return values + mark


async def _sample(
    side: S,
    number: int,
    measure: Callable[[S, int], Awaitable[Values]],
    probe: Callable[[S], Probe],
    rules: Rules,
) -> Sample:
    tried: list[tuple[float, Values]] = []
    for repeat in range(rules.repeats_max + 1):
        watch = probe(side)
        values = await measure(side, _numbered(number, repeat, rules))
        tried.append((watch.other_cores(), values))
        if tried[-1][0] <= rules.other_max:
            break
    other, values = min(tried, key=lambda each: each[0])
    return Sample(values, round(other, 3), other > rules.other_max, len(tried))


def _numbered(number: int, repeat: int, rules: Rules) -> int:
    return number + repeat * (rules.rounds + rules.warmups)


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return the median, the middle half and the extremes of `values`."""
    low, high = _quartiles(values)
    return {
        "median": _rounded(statistics.median(values)),
        "q1": _rounded(low),
        "q3": _rounded(high),
        "min": _rounded(min(values)),
        "max": _rounded(max(values)),
    }


def _quartiles(values: Sequence[float]) -> tuple[float, float]:
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def _rounded(value: float) -> float:
    """Five significant digits: more would be noise."""
    return float(f"{value:.5g}")


def ratios(ours: Sequence[Sample], theirs: Sequence[Sample], metric: str) -> list[float]:
    """Return ours / theirs of each round in which both told the metric."""
    return [
        our.values[metric] / their.values[metric]
        for our, their in zip(ours, theirs, strict=True)
        if metric in our.values and their.values.get(metric)
    ]
