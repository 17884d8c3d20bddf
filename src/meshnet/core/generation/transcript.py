"""What enters and leaves the machines of a generation: events in, actions out.

    driver --event--> machine --actions--> driver

Every question a machine asks carries a reference; the answer brings it back, so an answer
to a question no longer asked is recognised and ignored. Values only.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from meshnet.core.generation.accounting import GenerationStats
from meshnet.core.generation.moves import FindMove, LetGo, Moved, TakeOver
from meshnet.core.protocol.marks import Marks
from meshnet.core.protocol.messages import (
    ForwardRequest,
    Refusal,
    Reply,
    Reserved,
    ReserveRequest,
)
from meshnet.core.vocabulary import (
    Hop,
    HopLost,
    NodeId,
    Route,
    SampledToken,
    SessionDescription,
    SessionId,
)


class FinishReason(Enum):
    STOP = "stop"
    LENGTH = "length"


class FailureCode(Enum):
    """Why there is no answer; the gateway maps these to statuses of its API."""

    OVERLOADED = "overloaded"
    NO_ROUTE = "no_route"
    UPSTREAM = "upstream"
    NUMERICAL = "numerical"
    TIMEOUT = "timeout"
    TOO_LARGE = "too_large"
    UNAUTHORIZED = "unauthorized"


class RefillReason(Enum):
    """What made a refill necessary."""

    MISS = "miss"
    LOST = "lost"
    MOVED = "moved"
    WAITED = "waited"
    STALE = "stale"
    DEGRADED = "degraded"
    CHAIN = "chain"
    NUMERICAL = "numerical"


@dataclass(frozen=True, slots=True)
class StepRef:
    """Names one question of a generation; `step` never repeats within one."""

    attempt: int
    step: int
    hop: int


# --- events -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Started:
    """The generation may begin."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """The consumer took every token emitted so far: the next step may be asked.

    So a slow consumer slows its generation, and one that left costs no further step. `void` says
    how many overtaken questions have not ended yet.
    """

    void: int = 0
    leaving: bool = False
    """Some hop would like to be rid of the session."""


@dataclass(frozen=True, slots=True)
class Replied:
    ref: StepRef
    reply: Reply
    hop: Hop | None = None
    """Who answered, where several hops were asked by one question."""


@dataclass(frozen=True, slots=True)
class Alive:
    """The hop that is asked gave a sign of life: it computes, or other steps are before ours."""

    ref: StepRef


@dataclass(frozen=True, slots=True)
class Lost:
    """The hop did not answer: refused, reset, timed out, or answered what nobody can read."""

    ref: StepRef
    reason: str
    hop: Hop | None = None
    """Which of several hops was lost, if that is known."""


@dataclass(frozen=True, slots=True)
class Located:
    """What each hop that was asked for it knows of the session; HopLost: it said nothing."""

    found: tuple[SessionDescription | HopLost | None, ...]


@dataclass(frozen=True, slots=True)
class Rerouted:
    route: Route


@dataclass(frozen=True, slots=True)
class NoRoute:
    """No route exists now; the machine decides when to ask again."""

    message: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed; a machine may be ticked at any time, and must be at its deadline."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Nobody wants the answer any more."""


GenerationEvent = (
    Started | Delivered | Replied | Alive | Lost | Located | Rerouted | NoRoute | Tick | Cancelled
)


@dataclass(frozen=True, slots=True)
class Answered:
    """A node answered a reservation."""

    ref: int
    answer: Reserved | Refusal


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A node did not answer a reservation."""

    ref: int
    reason: str


@dataclass(frozen=True, slots=True)
class PlaceFreed:
    """A generation of this head ended and its places are free: no need to wait longer."""


AdmissionEvent = (
    Started | Answered | Unanswered | PlaceFreed | Rerouted | NoRoute | Tick | Cancelled
)

# --- actions ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Forward:
    """Ask a hop; answer with `Replied` or `Lost`, at the latest after `timeout_s`.

    After `silence_s` without a sign of life the machine gives the hop up by itself.
    """

    ref: StepRef
    hop: Hop
    request: ForwardRequest
    timeout_s: float
    silence_s: float
    chain: tuple[Hop, ...] = ()
    """The hops that the step is handed on to; the last of them answers."""

    @property
    def hops(self) -> tuple[Hop, ...]:
        """All hops that work on the step, in order."""
        return (self.hop, *self.chain)


@dataclass(frozen=True, slots=True)
class Locate:
    """Ask these hops at the same time how far the session got; answer with `Located`."""

    session: SessionId
    hops: tuple[Hop, ...]
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Emit:
    """Hand this token to the consumer. It never changes and never comes twice."""

    token: SampledToken


@dataclass(frozen=True, slots=True)
class Overtaken:
    """What these questions built on was not drawn. Their answers mean nothing, but will come:
    what carries them carries what is asked now as well, and must not be broken off."""

    refs: tuple[StepRef, ...]


@dataclass(frozen=True, slots=True)
class Refilling:
    """Told, not asked: the session is being filled again, by all of its hops or some."""

    reason: RefillReason
    attempt: int
    positions: int = 0
    """That hops run again, those of each hop counted."""
    partial: bool = False
    """Some hops kept what they held (ADR-0041)."""


@dataclass(frozen=True, slots=True)
class Reroute:
    """Find a route, avoiding a hop where another can serve; answer `Rerouted` or `NoRoute`."""

    avoid: Hop | None
    reason: str
    fingerprint: str | None = None
    """Of the weights that the tokens so far came from: no others may continue them."""
    lost: bool = True
    """False: the hop to avoid is well, but has no room."""
    keep: tuple[Hop, ...] = ()
    """Hops that may still hold what the session needs."""


@dataclass(frozen=True, slots=True)
class Remains:
    """What an ended session holds on every hop: these ids, then what makes up `held` positions."""

    ids: tuple[int, ...]
    held: int
    prompt_length: int
    route: Route
    marks: Marks = Marks()  # noqa: RUF009


@dataclass(frozen=True, slots=True)
class Release:
    """Hint these nodes that the session is over. Nothing may depend on it arriving."""

    session: SessionId
    nodes: tuple[NodeId, ...]
    remains: Remains | None = None


@dataclass(frozen=True, slots=True)
class Finish:
    reason: FinishReason
    stats: GenerationStats


@dataclass(frozen=True, slots=True)
class Fail:
    code: FailureCode
    message: str
    retry_after_s: float | None = None


GenerationAction = (
    Forward
    | Locate
    | Overtaken
    | Emit
    | Refilling
    | Reroute
    | FindMove
    | TakeOver
    | LetGo
    | Moved
    | Release
    | Finish
    | Fail
)


@dataclass(frozen=True, slots=True)
class Reserve:
    """Ask a node for room; answer with `Answered` or `Unanswered`."""

    ref: int
    hop: Hop
    request: ReserveRequest
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Admitted:
    """Every hop of this route holds a place for the session."""

    route: Route


AdmissionAction = Reserve | Release | Reroute | Admitted | Fail
