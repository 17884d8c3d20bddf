"""What a generation is given, and the states its machine can be in. Values only."""

from __future__ import annotations

from dataclasses import dataclass

from meshnet.core.generation.pipeline import Pipeline, Question
from meshnet.core.generation.sequence import Adoption
from meshnet.core.generation.stopping import StopRules
from meshnet.core.generation.transcript import RefillReason, Reroute
from meshnet.core.protocol.messages import Refusal
from meshnet.core.protocol.moving import TakeRequest
from meshnet.core.vocabulary import Hop, Route, SamplingParams, SessionId, TraceContext


@dataclass(frozen=True, slots=True)
class GenerationSpec:
    """What one generation is asked for. `deadline_at` is on the clock that `now` is read from."""

    session: SessionId
    prompt: tuple[int, ...]
    sampling: SamplingParams
    stop: StopRules
    deadline_at: float
    reserved: bool = False
    """The route's nodes hold a place for the session: they are released even if never asked."""
    trace: str | None = None
    owner: str | None = None
    adoption: Adoption | None = None
    """The session to start from, if the route is the one that holds it."""
    lingers: bool = False
    """A later generation may go on with its session."""
    traceparent: TraceContext | None = None


@dataclass(frozen=True, slots=True)
class Idle:
    """Not started."""


@dataclass(frozen=True, slots=True)
class Asking:
    pipeline: Pipeline


@dataclass(frozen=True, slots=True)
class Delivering:
    """The consumer has not taken the last token yet; further windows may be on their way."""

    pipeline: Pipeline | None = None


@dataclass(frozen=True, slots=True)
class Waiting:
    until: float
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class Locating:
    """A chain fell silent: its hops are asked how far the step got, until then."""

    question: Question
    until: float


@dataclass(frozen=True, slots=True)
class Surveying:
    """The hops of a route are asked what they still hold, until then."""

    reason: RefillReason
    until: float


@dataclass(frozen=True, slots=True)
class Rerouting:
    """`ask_at` None: a Reroute is being carried out; else the time to ask for the next."""

    ask: Reroute
    refill: RefillReason
    tries: int
    ask_at: float | None
    no_route: str | None = None
    """Why there was no route when it was last asked for."""
    refusal: Refusal | None = None
    """Why the route that there is will not do now."""


@dataclass(frozen=True, slots=True)
class Moving:
    """The session changes nodes. `route` None: another way is being looked for."""

    began_at: float
    until: float
    ids: tuple[int, ...]
    """Of the positions that every hop has confirmed."""
    route: Route | None = None
    orders: tuple[tuple[Hop, TakeRequest], ...] = ()
    bytes: int = 0
    """About as many come over."""


@dataclass(frozen=True, slots=True)
class Done:
    """Ended; whatever comes is ignored."""


State = Idle | Asking | Delivering | Waiting | Locating | Surveying | Rerouting | Moving | Done


def own_deadline(state: State) -> float | None:
    """When the state itself has waited long enough."""
    match state:
        case Asking(pipeline):
            return pipeline.until
        case Waiting(until=until) | Locating(until=until) | Surveying(until=until):
            return until
        case Moving(until=until):
            return until
        case Rerouting(ask_at=ask_at):
            return ask_at
        case _:
            return None
