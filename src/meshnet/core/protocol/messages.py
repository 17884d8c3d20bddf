"""What a head asks a node and what it answers, as values. Their bytes are codec.py's subject.

ForwardRequest  -> Activation reply | Token reply | Refusal
ReserveRequest  -> Reserved | Refusal
release         -> nothing            (a hint: always granted)
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from meshnet.core.vocabulary import (
    Activation,
    Drawn,
    DType,
    Hop,
    LayerRange,
    MissReason,
    ModelId,
    SamplingParams,
    SessionId,
    TraceContext,
)


class Mode(Enum):
    """`X-Meshnet-Cache`; STATELESS is its absence."""

    STATELESS = "stateless"
    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class ForwardRequest:
    """One hop of one step. `None` means absent, and absence has a meaning (docs/wire.md)."""

    mode: Mode
    session: SessionId | None = None
    past_length: int = 0
    layers: LayerRange | None = None
    model: ModelId | None = None
    fingerprint: str | None = None
    """Of the weights asked for: other ones under the same model id must not run the step."""
    attempt: int | None = None
    prefix: str | None = None
    deadline_ms: int | None = None
    wire: int = 0
    tokens: tuple[int, ...] = ()
    sampling: SamplingParams | None = None
    want_token: bool = True
    drafts: int = 0
    """How many of the last `tokens` are guesses (a decode only)."""
    truncate: bool = False
    """A session that holds more than `past_length` is to be shortened first (a decode only)."""
    adopt: SessionId | None = None
    """The session that ended under this name goes on as `session` (a decode with `prefix` only)."""
    activation: Activation | None = None
    raw: bytes | bytearray | memoryview = b""
    """A body without shape headers (an ADR-0022 peer): the node that knows its hidden size reads it
    with `codec.activation_of`, which also holds it against `raw_shape` and `raw_dtype`."""
    raw_shape: tuple[int, ...] | None = None
    """`X-Meshnet-Shape` of a body without `X-Meshnet-Dtype`."""
    raw_dtype: DType | None = None
    """`X-Meshnet-Dtype` of a body without `X-Meshnet-Shape`."""
    trace: str | None = None
    """`X-Meshnet-Request`: the API request's id, for log lines."""
    owner: str | None = None
    """Whose step it is, opaque: nodes let owners take turns. Without it each session is its own."""
    route: tuple[Hop, ...] = ()
    """The hops still to come: whoever runs the step hands it on (a decode on a stream only)."""
    stages: int = 1
    """Into so many groups the node divides the sessions that step in it, so that they overlap."""
    replay: bool = False
    """Answer with what was kept of these positions, and change nothing (a decode with ids only)."""
    fill: bool = False
    """Whoever ends the step says that it holds the positions, and sends nothing on or back."""
    traceparent: TraceContext | None = None
    """The span of the generation, for whoever tells spans."""


@dataclass(frozen=True, slots=True)
class ReserveRequest:
    """Room for `tokens` positions of a session on one shard, before its first prefill."""

    session: SessionId
    tokens: int
    model: ModelId | None = None
    layers: LayerRange | None = None
    attempt: int | None = None
    adopt: SessionId | None = None
    """The session that is to be adopted: its place and bytes are what is asked for, or a part."""


@dataclass(frozen=True, slots=True)
class ActivationReply:
    activation: Activation
    cached: int | None
    compute_us: int = 0


@dataclass(frozen=True, slots=True)
class TokenReply:
    """The tail's answer. `drawn` is None if none was wanted, or if the tail predates `token_id`."""

    drawn: Drawn | None
    text: str
    cached: int | None
    compute_us: int = 0


class Code(Enum):
    """Error codes on the wire and the HTTP status of each."""

    BAD_REQUEST = ("bad_request", 400)
    UNAUTHORIZED = ("unauthorized", 401)
    FORBIDDEN = ("forbidden", 403)
    NOT_FOUND = ("not_found", 404)
    CACHE_MISS = ("cache_miss", 409)
    STALE_ATTEMPT = ("stale_attempt", 412)
    TOO_LARGE = ("too_large", 413)
    NO_ROOM = ("no_room", 429)
    INTERNAL = ("internal", 500)
    HOP_FAILED = ("hop_failed", 502)
    NUMERICAL_ERROR = ("numerical_error", 500)
    NOT_READY = ("not_ready", 503)
    OUT_OF_MEMORY = ("out_of_memory", 503)
    DEADLINE = ("deadline", 503)
    DRAINING = ("draining", 503)

    @property
    def wire_name(self) -> str:
        return self.value[0]

    @property
    def status(self) -> int:
        return self.value[1]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a node did not do what was asked; `reason` details a cache miss."""

    code: Code
    message: str
    retry_after_s: float | None = None
    reason: MissReason | None = None


@dataclass(frozen=True, slots=True)
class Reserved:
    session: SessionId
    tokens: int
    running: bool = False
    """A step of the session runs here, or others' steps are before it."""


Reply = ActivationReply | TokenReply | Refusal
