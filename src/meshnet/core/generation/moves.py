"""What a generation asks for, and is told, when some of its hops would like to be rid of it."""

from __future__ import annotations

from dataclasses import dataclass

from meshnet.core.protocol.moving import TakeRequest
from meshnet.core.routing.moving import Taking
from meshnet.core.vocabulary import Hop, HopLost, NodeId, Route, SessionDescription, SessionId


@dataclass(frozen=True, slots=True)
class FindMove:
    """Find a route for those of `route`'s layers whose nodes are leaving; answer with `MoveFound`,
    or with `NoRoute`."""

    route: Route
    length: int


@dataclass(frozen=True, slots=True)
class MoveFound:
    """Where to go. `takings` None: its new hops cannot take over what the old ones hold."""

    route: Route
    takings: tuple[Taking, ...] | None


@dataclass(frozen=True, slots=True)
class TakeOver:
    """Tell these hops, all at once, to take the session over; answer with `TakenOver`.

    A hop that gives no sign of life for `alive_s`, asked every `alive_s`, is lost.
    """

    orders: tuple[tuple[Hop, TakeRequest], ...]
    timeout_s: float
    alive_s: float


@dataclass(frozen=True, slots=True)
class TakenOver:
    """What each hop says that it holds of the session now; HopLost: why it holds nothing."""

    found: tuple[SessionDescription | HopLost, ...]


@dataclass(frozen=True, slots=True)
class LetGo:
    """Hint these nodes that the session goes on without them. Nothing may depend on it arriving."""

    session: SessionId
    nodes: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class Moved:
    """Told, not asked: the session goes on over new hops, and nothing of it was computed again."""

    hops: int
    bytes: int
    duration_s: float
