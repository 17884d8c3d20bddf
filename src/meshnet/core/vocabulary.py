"""The words every other module speaks: ids, layer ranges, activations, steps, descriptions.

Values only; the errors live next door and are imported from here. Each value is valid once
constructed; sizes are bytes, lengths are tokens, layer ranges are half-open. Shapes are named in
the glossary (docs/glossary.md).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NewType

from meshnet.core.errors import (
    BadField as BadField,
)
from meshnet.core.errors import (
    HopLost as HopLost,
)
from meshnet.core.errors import (
    KVCacheMiss as KVCacheMiss,
)
from meshnet.core.errors import (
    MeshnetError as MeshnetError,
)
from meshnet.core.errors import (
    MissReason as MissReason,
)
from meshnet.core.errors import (
    ModelError as ModelError,
)
from meshnet.core.errors import (
    NoRoom as NoRoom,
)
from meshnet.core.errors import (
    NoTemplate as NoTemplate,
)
from meshnet.core.errors import (
    NumericalError as NumericalError,
)
from meshnet.core.errors import (
    StaleAttempt as StaleAttempt,
)
from meshnet.core.errors import (
    StepTorn as StepTorn,
)
from meshnet.core.errors import (
    TemplateError as TemplateError,
)
from meshnet.core.errors import (
    TextTooLong as TextTooLong,
)
from meshnet.core.errors import (
    TooLarge as TooLarge,
)
from meshnet.core.errors import (
    WrongShard as WrongShard,
)

NodeId = NewType("NodeId", str)
SessionId = NewType("SessionId", str)
ModelId = NewType("ModelId", str)

WIRE_VERSION = 1

Buffer = bytes | bytearray | memoryview


class DType(Enum):
    """Element types an activation may have on the wire; the value is the wire name."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"

    @property
    def itemsize(self) -> int:
        return 4 if self is DType.FP32 else 2


class WeightFormat(Enum):
    """How weights are held in memory; int8 ones take activations in fp32."""

    INT8 = "int8"
    INT8_FAST = "int8-fast"
    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"


@dataclass(frozen=True, slots=True, order=True)
class LayerRange:
    """Half-open interval of absolute layer indices, never empty."""

    start: int
    stop: int

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.stop:
            raise ValueError(f"layers: expected 0 <= start < stop, got {self.start}-{self.stop}")

    def __str__(self) -> str:
        return f"{self.start}-{self.stop}"

    def __len__(self) -> int:
        return self.stop - self.start

    def holds(self, other: LayerRange) -> bool:
        return self.start <= other.start and other.stop <= self.stop

    @classmethod
    def parse(cls, text: str) -> LayerRange:
        """Read `a-b`, half-open: `0-10` is layers 0 to 9. Raises ValueError."""
        match = re.fullmatch(r"([0-9]{1,6})-([0-9]{1,6})", text, re.ASCII)
        if match is None:
            raise ValueError(f"layers: expected A-B (half-open, for example 0-10), got {text!r}")
        return cls(int(match[1]), int(match[2]))


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """What one tensor of a body is: its name, element type and shape."""

    name: str
    dtype: DType
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.shape or any(size <= 0 for size in self.shape):
            raise ValueError(f"shape of {self.name!r}: expected positive sizes, got {self.shape}")

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


HIDDEN = "hidden"
"""Name of the hidden states among an activation's tensors; architectures may add others."""


@dataclass(frozen=True, slots=True)
class Activation:
    """What travels between two hops: described tensors and their raw bytes, in order."""

    tensors: tuple[TensorSpec, ...]
    data: Buffer

    def __post_init__(self) -> None:
        expected = sum(spec.nbytes for spec in self.tensors)
        if not self.tensors or len(self.data) != expected:
            raise ValueError(f"activation: expected {expected} bytes, got {len(self.data)}")

    @property
    def hidden(self) -> TensorSpec:
        return self.tensors[0]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the tail draws: a pure function of these, the logits, the ids so far, the position."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    logprobs: int | None = None
    prompt_length: int = 0
    banned: tuple[int, ...] = ()
    banned_until: int = 0
    """`banned` ids cannot be drawn for positions below `banned_until` (min_tokens, ignore_eos)."""

    def __post_init__(self) -> None:
        _check("temperature", self.temperature, 0.0, 2.0)
        _check("top_k", self.top_k, 0, 1_000_000)
        _check("top_p", self.top_p, 0.0, 1.0)
        _check("min_p", self.min_p, 0.0, 1.0)
        _check("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _check("repetition_penalty", self.repetition_penalty, 1e-3, 100.0)
        _check("seed", self.seed, 0, 2**64 - 1)
        _check("logprobs", self.logprobs or 0, 0, LOGPROBS_MAX)
        _check("prompt_length", self.prompt_length, 0, POSITIONS_MAX)
        _check("banned_until", self.banned_until, 0, POSITIONS_MAX)
        _check("len(logit_bias)", len(self.logit_bias), 0, LOGIT_BIAS_MAX)
        _check("len(banned)", len(self.banned), 0, LOGIT_BIAS_MAX)
        for token, bias in self.logit_bias:
            _check("logit_bias token", token, 0, TOKEN_ID_MAX)
            _check("logit_bias value", bias, -100.0, 100.0)
        for token in self.banned:
            _check("banned token", token, 0, TOKEN_ID_MAX)


LOGPROBS_MAX = 20
LOGIT_BIAS_MAX = 1024
TOKEN_ID_MAX = 2**31 - 1
POSITIONS_MAX = 2**24


def _check(field: str, value: float, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ValueError(f"{field}: expected a number from {low} to {high}, got {value!r}")


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    token_id: int
    logprob: float


@dataclass(frozen=True, slots=True)
class SampledToken:
    """The tail's draw. `logprob` and `top`, if asked for: log-softmax of the raw logits."""

    token_id: int
    logprob: float | None = None
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Drawn:
    """What the tail drew in one step: a token, or with drafts the accepted run and one more."""

    tokens: tuple[SampledToken, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.tokens) <= DRAFTS_MAX + 1:
            raise ValueError(
                f"drawn: expected 1 to {DRAFTS_MAX + 1} tokens, got {len(self.tokens)}"
            )

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(token.token_id for token in self.tokens)


DRAFTS_MAX = 16
"""Guesses of one step at most."""


@dataclass(frozen=True, slots=True)
class ShardStep:
    """One step for one shard: T new positions at `past_length`, through `layers`.

    A hop that starts at layer 0 gets token ids and embeds them; every other gets an
    `activation` whose hidden tensor is [..., T, hidden]. `tokens` are the ids of the T new
    positions where the head sent them, else empty (an ADR-0022 peer).
    `want_token` is False for a prefill chunk that is not the last: a tail then draws nothing.
    The last `drafts` of the tokens are guesses: the tail draws at each position from the one
    before the first guess on, and stops at the first draw that differs from the guess.
    """

    layers: LayerRange
    past_length: int
    length: int
    tokens: tuple[int, ...]
    activation: Activation | None
    sampling: SamplingParams
    want_token: bool = True
    drafts: int = 0


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a shard found out about itself at load (architecture, section 5)."""

    kv_cache: bool
    multi_token: bool
    truncate: bool = False
    """A session can be shortened, and answers then as if it had never been longer."""
    batch: bool = False
    """Steps of several sessions may share a call."""
    exact: bool = False
    """A position's result is bitwise the same in every chunk, batch, refill and truncation."""


@dataclass(frozen=True, slots=True)
class KVBytes:
    """Bytes a session of n tokens takes on a shard: fixed + per_token * n, before slack.

    Tokens count in whole cells of `grid`, since so they are allocated.
    """

    per_token: int
    fixed: int = 0
    grid: int = 1

    def of(self, tokens: int) -> int:
        return self.fixed + self.per_token * (-(-tokens // self.grid) * self.grid)


@dataclass(frozen=True, slots=True)
class ShardDescription:
    """One loaded shard as `GET /node` tells it."""

    model: ModelId
    fingerprint: str
    """Digest of config, weights' names and shapes, tokenizer: equal on all nodes of a model."""
    layers: LayerRange
    layers_total: int
    dtype: DType
    hidden_size: int
    vocab_size: int
    context_length: int
    capabilities: Capabilities
    kv_bytes: KVBytes
    """For all layers held."""
    weight_bytes: int
    bytes_read: int
    arithmetic: str
    """Digest of what decides the low bits: format, library versions, attention, device kind."""
    inseparable: tuple[LayerRange, ...] = ()
    """Runs of layers that no route may cut (KV sharing)."""
    weights: str = ""
    """A `WeightFormat`, or what a later version calls its own; empty: an older node."""
    operators: str = ""
    """What multiplies the weights, as its self-test chose."""

    @property
    def is_tail(self) -> bool:
        return self.layers.stop == self.layers_total


@dataclass(frozen=True, slots=True)
class SessionDescription:
    session: SessionId
    layers: LayerRange
    length: int
    prefix: str | None
    attempt: int | None
    kv_bytes: int


@dataclass(frozen=True, slots=True)
class NodeDescription:
    """A node as `GET /node` tells it."""

    node: NodeId
    wire: int
    pid: int
    ready: bool
    shards: tuple[ShardDescription, ...]
    sessions: int
    sessions_max: int
    kv_bytes: int
    kv_bytes_max: int
    compute_s: float
    steps: int
    device: str = "cpu"
    stream: bool = False
    """Sessions may have streams (docs/wire.md); without one, each step is a request."""
    chain: bool = False
    peers: tuple[NodeId, ...] = ()
    """It answers steps that were handed on to it, and hands its own on to these nodes."""


@dataclass(frozen=True, slots=True)
class Hop:
    """One visit of a step: a node, the layers it runs, and the wire version it speaks."""

    node: NodeId
    layers: LayerRange
    wire: int = WIRE_VERSION


@dataclass(frozen=True, slots=True)
class Route:
    """Ordered hops that cover layers [0, total) once."""

    model: ModelId
    hops: tuple[Hop, ...]
    kv_cache: bool = True
    multi_token: bool = True
    truncate: bool = False
    chain: bool = False
    fingerprint: str = ""
    """Of the model on all its hops; a generation never changes it half-way."""

    def __post_init__(self) -> None:
        check_cover([hop.layers for hop in self.hops])


def check_cover(ranges: Sequence[LayerRange]) -> None:
    """Raise ValueError unless the ranges follow each other from layer 0 without gap or overlap."""
    expected = 0
    for layers in ranges:
        if layers.start != expected:
            raise ValueError(f"route: expected a hop from layer {expected}, got layers {layers}")
        expected = layers.stop
    if not ranges:
        raise ValueError("route: expected at least one hop, got none")
