"""Which hops of a route kept their part of a session through a loss, and what the others need.

    confirmed   N positions that every hop had, by the head's own digest
    hop         holds N of these ids, or more and can be shortened: it survived
                anything else, or it cannot send again what the hop behind it lost: refilled
    spans       [A] B C [D]     A and D survived: A sends again what left it, B and C are filled
                    ^^^

A session's id is never used twice, so one that is longer than N begins with these N; where it does
not, because a late step of an older attempt changed it, the node refuses what builds on it, and the
hop is spoiled. Pure functions (ADR-0041).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from meshnet.core.protocol.digest import PrefixDigest
from meshnet.core.vocabulary import Hop, HopLost, Route, SessionDescription, segments_of

Found = SessionDescription | HopLost | None
"""What a hop said of the session; None: it does not know it."""


@dataclass(frozen=True, slots=True)
class Span:
    """Hops that follow each other and lost the session, and the one before them that did not.

    Without one the first of them holds the first layers, and gets ids.
    """

    hops: tuple[Hop, ...]
    source: Hop | None

    def stages(self, route: Route, *, chained: bool) -> tuple[tuple[Hop, ...], ...]:
        """Return who answers as one, with the source in front; the last stage ends a step."""
        hops = self.hops if self.source is None else (self.source, *self.hops)
        return segments_of(hops, route.onward if chained else ())


@dataclass(frozen=True, slots=True)
class Salvage:
    """What is to be filled, and how many positions the hops that survived hold at most."""

    spans: tuple[Span, ...]
    held: int

    @property
    def refilled(self) -> int:
        """How many hops run the confirmed positions again."""
        return sum(len(span.hops) for span in self.spans)


def candidates(route: Route, spoiled: Collection[Hop]) -> tuple[Hop, ...]:
    """Return the hops that could go on with what they hold, if they hold it."""
    return tuple(hop for hop in route.hops if hop.node in route.replay and hop not in spoiled)


def salvage(
    route: Route,
    found: Sequence[Found],
    *,
    confirmed: PrefixDigest,
    attempt: int,
    spoiled: Collection[Hop],
) -> Salvage | None:
    """Say what is to be filled; None if nothing survived. `attempt` is the session's latest."""
    able = candidates(route, spoiled)
    states: dict[Hop, SessionDescription] = {}
    for hop, state in zip(route.hops, found, strict=False):
        if not isinstance(state, SessionDescription) or hop not in able:
            continue
        if _survived(state, hop, confirmed, attempt, truncates=route.truncate):
            states[hop] = state
    good = [hop in states for hop in route.hops]
    for at in range(len(good) - 1, 0, -1):
        before = states.get(route.hops[at - 1])
        if not good[at] and before is not None and before.replayable < confirmed.length:
            good[at - 1] = False
    if not any(good):
        return None
    held = max(states[hop].length for hop, kept in zip(route.hops, good, strict=True) if kept)
    return Salvage(_spans(route.hops, good), held)


def _survived(
    state: SessionDescription, hop: Hop, confirmed: PrefixDigest, attempt: int, *, truncates: bool
) -> bool:
    if state.layers != hop.layers or state.attempt is None or state.attempt > attempt:
        return False
    if state.length == confirmed.length:
        return state.prefix == confirmed.hex
    return truncates and state.prefix is not None and state.length > confirmed.length


def _spans(hops: Sequence[Hop], good: Sequence[bool]) -> tuple[Span, ...]:
    spans: list[Span] = []
    lost: tuple[Hop, ...] = ()
    source: Hop | None = None
    for hop, kept in zip(hops, good, strict=True):
        if not kept:
            lost = (*lost, hop)
            continue
        if lost:
            spans.append(Span(lost, source))
        lost, source = (), hop
    return (*spans, Span(lost, source)) if lost else tuple(spans)
