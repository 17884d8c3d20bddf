"""What is worth telling: one frozen value per kind of event, without log or metric in sight.

Invariants
    * no event carries a prompt, a token id, a text or an activation;
    * an event that concerns one request carries its request id, one that concerns a session its
      session id, so that one `grep` follows a request over all processes; and its `trace`, the
      span that it is about or under, if the request has one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from meshnet.core.vocabulary import TraceContext


@dataclass(frozen=True, slots=True)
class ForwardServed:
    """A node answered `/forward`: `outcome` is `ok` or the wire name of the refusal.

    `positions` is how many its layers ran, 0 for what was sent again and for what failed.
    `queue_s` is how long the step waited for the device, `batch` how many steps ran with it and
    itself; 0 if it did not run.
    """

    mode: str
    outcome: str
    step_s: float
    compute_s: float
    queue_s: float = 0.0
    batch: int = 0
    session: str | None = None
    request: str | None = None
    positions: int = 0
    trace: TraceContext | None = None


@dataclass(frozen=True, slots=True)
class SessionsHeld:
    """What a node's stores hold now."""

    sessions: int
    kv_bytes: int
    kv_bytes_max: int = 0


@dataclass(frozen=True, slots=True)
class SessionEvicted:
    """A node forgot a session: `reason` is ttl, lru, bytes, torn, released or replaced."""

    reason: str
    session: str


@dataclass(frozen=True, slots=True)
class SessionTaken:
    """A node took a session over from another one, `bytes` of `layers` layers."""

    session: str
    layers: int
    bytes: int
    duration_s: float


@dataclass(frozen=True, slots=True)
class ShardLoaded:
    model: str
    layers: str
    kv_cache: bool
    multi_token: bool
    weight_bytes: int
    bytes_read: int
    load_s: float


@dataclass(frozen=True, slots=True)
class ShardDegraded:
    """A shard found out that it cannot do something; `stateless`: it stopped caching for good."""

    model: str
    layers: str
    note: str
    stateless: bool


@dataclass(frozen=True, slots=True)
class ShardFailed:
    model: str
    layers: str
    error: str


@dataclass(frozen=True, slots=True)
class GenerationAsked:
    """A generation waits for places; GenerationStarted or GenerationFinished follows."""

    session: str
    request: str | None = None
    trace: TraceContext | None = None


@dataclass(frozen=True, slots=True)
class StepAsked:
    """A head had a step run by `nodes`, which handed it on. Told of traced requests only."""

    mode: str
    nodes: tuple[str, ...]
    positions: int
    duration_s: float
    ok: bool
    session: str | None = None
    request: str | None = None
    trace: TraceContext | None = None


@dataclass(frozen=True, slots=True)
class GenerationStarted:
    """Every hop holds a place, `queue_s` after it was asked for."""

    session: str
    request: str | None
    hops: int
    prompt_tokens: int
    queue_s: float = 0.0
    trace: TraceContext | None = None


@dataclass(frozen=True, slots=True)
class Refilled:
    """The head fills a running generation again: `positions`, counted for each hop that runs them.

    `partial`: other hops kept what they held.
    """

    reason: str
    session: str
    attempt: int
    request: str | None = None
    positions: int = 0
    partial: bool = False
    trace: TraceContext | None = None


@dataclass(frozen=True, slots=True)
class Recovered:
    """The first token after a refill came, `duration_s` after its beginning."""

    reason: str
    session: str
    duration_s: float
    request: str | None = None
    trace: TraceContext | None = None


@dataclass(frozen=True, slots=True)
class FailedOver:
    """A hop of a generation is lost, and a route around it is looked for."""

    node: str
    session: str
    request: str | None = None
    trace: TraceContext | None = None


@dataclass(frozen=True, slots=True)
class SessionMoved:
    """A running generation changed nodes: about `bytes` went to `hops` of them."""

    session: str
    hops: int
    bytes: int
    duration_s: float
    request: str | None = None
    trace: TraceContext | None = None


@dataclass(frozen=True, slots=True)
class FirstToken:
    ttft_s: float
    session: str
    request: str | None = None
    trace: TraceContext | None = None


@dataclass(frozen=True, slots=True)
class GenerationFinished:
    """`outcome` is stop, length, cancelled or the failure code."""

    outcome: str
    tokens: int
    refills: int
    duration_s: float
    session: str
    request: str | None = None
    reused: int = 0
    ttft_s: float | None = None
    decode_s: float = 0.0
    """From the first token to the last, as they were there for the consumer."""
    inexact: int = 0
    """Hops of another arithmetic that took part half-way."""
    queue_s: float | None = None
    """None: it never got its places."""
    steps: int = 0
    """Steps of hops, those of each counted."""
    waited_s: float = 0.0
    """For them, by the head."""
    trace: TraceContext | None = None


@dataclass(frozen=True, slots=True)
class GatewayAnswered:
    method: str
    path: str
    status: int
    duration_s: float
    request: str
    trace: TraceContext | None = None


@dataclass(frozen=True, slots=True)
class ChildStarted:
    name: str
    pid: int
    url: str
    start_s: float


@dataclass(frozen=True, slots=True)
class ChildDied:
    name: str
    pid: int
    exit_code: int
    restart_in_s: float


@dataclass(frozen=True, slots=True)
class ShardAway:
    """Nobody hears of a shard that a launcher keeps elsewhere; it is started anew."""

    name: str
    url: str
    reason: str


@dataclass(frozen=True, slots=True)
class ProcessReady:
    role: str
    url: str
    pid: int


@dataclass(frozen=True, slots=True)
class MemberSeen:
    """A node of the mesh came, is in another state, or `left`."""

    node: str
    state: str
    layers: str | None = None
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class LayersAssigned:
    """Nodes were told what to hold; `missing` says why not all layers are held by that."""

    nodes: int
    epoch: int
    missing: str | None = None


@dataclass(frozen=True, slots=True)
class RegistryAway:
    """The registry does not answer; what it said last stays."""

    error: str


@dataclass(frozen=True, slots=True)
class Fault:
    """A bug that a process boundary caught: told once with its traceback, never hidden."""

    where: str
    error: str
    traceback: str = ""


Event = (
    ForwardServed
    | SessionsHeld
    | SessionEvicted
    | SessionTaken
    | ShardLoaded
    | ShardDegraded
    | ShardFailed
    | GenerationAsked
    | GenerationStarted
    | StepAsked
    | Refilled
    | Recovered
    | FailedOver
    | SessionMoved
    | FirstToken
    | GenerationFinished
    | GatewayAnswered
    | ChildStarted
    | ChildDied
    | ShardAway
    | ProcessReady
    | MemberSeen
    | LayersAssigned
    | RegistryAway
    | Fault
)

Record = Callable[[Event], None]
"""How a driver tells: it gets this function at construction and knows no log or metric."""


def record_nothing(event: Event) -> None:
    """Telemetry nobody listens to."""
