"""What happened, as people read it. Of no event more than its figures and names."""

from __future__ import annotations

from urllib.parse import urlsplit

from meshnet.cli.live.feed import Happening
from meshnet.cli.live.steps import SessionNumbers
from meshnet.cli.report import bytes_text
from meshnet.telemetry.events import (
    ChildDied,
    ChildStarted,
    Event,
    GenerationFinished,
    GenerationStarted,
    LayersAssigned,
    MemberSeen,
    Refilled,
    RegistryAway,
    SessionMoved,
    ShardAway,
)

_GENERATION = GenerationStarted | GenerationFinished | Refilled | SessionMoved


def happening_of(event: Event, numbers: SessionNumbers) -> Happening | None:
    """Return what whoever watches is told; None: nothing."""
    match event:
        case GenerationStarted() | GenerationFinished() | Refilled() | SessionMoved():
            return _of_generation(event, f"Answer {numbers.of(event.session)}")
        case ChildStarted(name=name, pid=pid):
            return Happening("joined", "good", f"{name} runs (pid {pid})", name)
        case ChildDied(name=name):
            how = _exit(event.exit_code)
            again = f"starts again in {event.restart_in_s:g} s"
            return Happening("died", "bad", f"{name} died ({how}); {again}", name)
        case ShardAway(name=name, reason=reason):
            return Happening("died", "bad", f"{name} is away: {reason}", name)
        case MemberSeen():
            return _of_member(event)
        case LayersAssigned(nodes=nodes, missing=missing):
            text = f"Layers assigned to {_count(nodes, 'node')}" + (
                f": {missing}" if missing else ""
            )
            return Happening("assigned", "warn" if missing else "note", text)
        case RegistryAway(error=error):
            return Happening("registry", "bad", f"The registry does not answer: {error}")
        case _:
            return None


def _of_generation(event: _GENERATION, answer: str) -> Happening:
    match event:
        case GenerationStarted(hops=hops, prompt_tokens=tokens):
            text = f"{answer} begins: {_count(tokens, 'token')} of prompt, {_count(hops, 'hop')}"
            return Happening("began", "note", text)
        case Refilled(reason=reason, positions=positions, partial=partial):
            who = "the hops that lost it" if partial else "all hops"
            text = f"{answer} recovers ({reason}): {_count(positions, 'position')} again, by {who}"
            return Happening("refill", "warn", text)
        case SessionMoved(hops=hops, bytes=size):
            text = f"{answer} moved to {_count(hops, 'node')} with {bytes_text(size)} of cache"
            return Happening("moved", "warn", text)
        case GenerationFinished():
            return _of_end(event, answer)


def _of_end(event: GenerationFinished, answer: str) -> Happening:
    tokens = _count(event.tokens, "token")
    again = f", {_count(event.refills, 'recovery', 'recoveries')}" if event.refills else ""
    if event.outcome == "cancelled":
        return Happening("stopped", "note", f"{answer} stopped after {tokens}{again}")
    if event.outcome not in ("stop", "length"):
        text = f"{answer} failed after {tokens}: {event.outcome.replace('_', ' ')}"
        return Happening("failed", "bad", text)
    text = f"{answer} is done: {tokens} in {event.duration_s:.1f} s{again}"
    return Happening("done", "note", text)


def _of_member(event: MemberSeen) -> Happening:
    name = urlsplit(event.node).netloc
    layers = f" layers {event.layers}" if event.layers else ""
    if event.failure:
        return Happening("member", "bad", f"{name}: {event.failure}", name)
    match event.state:
        case "joining":
            return Happening("joined", "good", f"{name} joined", name)
        case "loading":
            return Happening("member", "note", f"{name} loads{layers}", name)
        case "ready":
            return Happening("member", "good", f"{name} serves{layers}", name)
        case "draining":
            return Happening("member", "warn", f"{name} drains: it takes no new sessions", name)
        case "left":
            return Happening("left", "bad", f"{name} left", name)
        case state:
            return Happening("member", "note", f"{name} is {state}", name)


def _exit(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"
