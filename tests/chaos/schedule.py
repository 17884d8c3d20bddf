"""What goes wrong, where, and for how long: drawn from a seed, and from nothing else.

Invariants
    * equal seeds and lists of places give equal schedules;
    * among any run of as many events as there are kinds (of those that are possible), each kind
      comes once: a short schedule has tried everything that a long one tries often.

A seed replays what is done to whom and in which order, not the instant: events wait for tokens
to be read, and how far each stream is by then is up to the machine.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from tests.chaos.fault_proxy import (
    HALF_THEN_RESET,
    HALF_THEN_SHUT,
    SHUT,
    TRICKLE,
    Passage,
    Weather,
)


class Fault(Enum):
    """What can be done to a mesh. The words are those of the report."""

    KILL_NODE = "node killed"
    STOP_NODE = "node stopped, then continued"
    SLOW_NODE = "node slowed down"
    RESTART_NODE = "node asked to end, started again"
    DRAIN_NODE = "node drained, started again"
    SQUEEZE_NODE = "node started again with little memory"
    KILL_HEAD = "head killed"
    RESTART_HEAD = "head asked to end, started again"
    STOP_HEAD = "head stopped, then continued"
    HANG_UP = "client leaves in the middle"
    PARTITION = "node cut off"
    DEAF = "link passes nothing there"
    MUTE = "link passes nothing back"
    RESET = "connections reset"
    HALF_BODY = "half a message, then a reset"
    HALF_SILENT = "half a message, then silence"
    TRICKLE = "one byte a second"
    DELAY = "link delayed"
    NARROW = "link of little bandwidth"


OF_NODES = frozenset(
    {
        Fault.KILL_NODE,
        Fault.STOP_NODE,
        Fault.SLOW_NODE,
        Fault.RESTART_NODE,
        Fault.DRAIN_NODE,
        Fault.SQUEEZE_NODE,
        Fault.PARTITION,
    }
)
OF_HEADS = frozenset({Fault.KILL_HEAD, Fault.RESTART_HEAD, Fault.STOP_HEAD})
OF_CLIENTS = frozenset({Fault.HANG_UP})
OF_LINKS = frozenset(Fault) - OF_NODES - OF_HEADS - OF_CLIENTS

WEATHERS = {
    Fault.PARTITION: SHUT,
    Fault.DEAF: Weather(there=Passage.SHUT),
    Fault.MUTE: Weather(back=Passage.SHUT),
    Fault.HALF_BODY: HALF_THEN_RESET,
    Fault.HALF_SILENT: HALF_THEN_SHUT,
    Fault.TRICKLE: TRICKLE,
}


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that goes wrong, once so many tokens more were read, for `lasts_s`.

    `source` is who dials the broken link; None where the fault is not one of a single link.
    """

    number: int
    fault: Fault
    target: str
    source: str | None
    after_tokens: int
    lasts_s: float
    weather: Weather | None = None

    def __str__(self) -> str:
        link = f"{self.source} to {self.target}" if self.source else self.target
        return f"{self.number}: {self.fault.value}: {link}, {self.lasts_s:g} s"


@dataclass(frozen=True, slots=True)
class Pace:
    """How dense a schedule is. Long faults outlast the deadline of a step, short ones do not."""

    tokens_between: int = 60
    short_s: tuple[float, float] = (0.1, 1.0)
    long_s: tuple[float, float] = (5.0, 9.0)
    long_share: float = 0.4


def links_between(nodes: Mapping[str, str], heads: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return who may dial whom while steps go their ways: heads all nodes, nodes the next one.

    `nodes` maps names to layers, `0-2`.
    """
    held = {name: tuple(map(int, layers.split("-"))) for name, layers in nodes.items()}
    onward = [
        (name, other)
        for name, (_, stop) in held.items()
        for other, (start, end) in held.items()
        if start <= stop < end
    ]
    return (*((head, node) for head in heads for node in nodes), *onward)


def schedule(
    seed: int,
    events: int,
    *,
    nodes: Mapping[str, str],
    heads: Sequence[str],
    pace: Pace | None = None,
    without: Sequence[Fault] = (),
) -> tuple[Event, ...]:
    """Draw `events` events over these places; `nodes` maps names to layers."""
    drawn = random.Random(f"meshnet chaos {seed}")
    pace = pace or Pace()
    kinds = [fault for fault in Fault if fault not in without]
    links = links_between(nodes, heads)
    found: list[Event] = []
    while len(found) < events:
        drawn.shuffle(kinds)
        found += [
            _event(len(found) + place, fault, drawn, (tuple(nodes), heads, links), pace)
            for place, fault in enumerate(kinds[: events - len(found)], start=1)
        ]
    return tuple(found)


def rolling(nodes: Sequence[str], rounds: int, *, after_tokens: int) -> tuple[Event, ...]:
    """Drain every node in turn and start it again: an upgrade, in which nothing may fail."""
    return tuple(
        Event(number, Fault.DRAIN_NODE, node, None, after_tokens, 0.0)
        for number, node in enumerate([*nodes] * rounds, start=1)
    )


def registry_deaths(head: str, times: int, *, after_tokens: int) -> tuple[Event, ...]:
    """Kill the gateway that keeps the registry, again and again: other gateways go on."""
    return tuple(
        Event(number, Fault.KILL_HEAD, head, None, after_tokens, 0.0)
        for number in range(1, times + 1)
    )


def _event(
    number: int,
    fault: Fault,
    drawn: random.Random,
    places: tuple[Sequence[str], Sequence[str], Sequence[tuple[str, str]]],
    pace: Pace,
) -> Event:
    nodes, heads, links = places
    source = None
    if fault in OF_LINKS:
        source, target = drawn.choice(links)
    else:
        target = drawn.choice(heads if fault in OF_HEADS | OF_CLIENTS else nodes)
    is_long = drawn.random() < pace.long_share
    return Event(
        number=number,
        fault=fault,
        target=target,
        source=source,
        after_tokens=drawn.randint(pace.tokens_between // 2, pace.tokens_between * 3 // 2),
        lasts_s=round(drawn.uniform(*(pace.long_s if is_long else pace.short_s)), 2),
        weather=_weather(fault, drawn),
    )


def _weather(fault: Fault, drawn: random.Random) -> Weather | None:
    match fault:
        case Fault.DELAY:
            return Weather(delay_s=round(drawn.uniform(0.02, 0.4), 3))
        case Fault.NARROW:
            return Weather(bytes_per_s=float(drawn.randint(500, 20_000)))
        case _:
            return WEATHERS.get(fault)
