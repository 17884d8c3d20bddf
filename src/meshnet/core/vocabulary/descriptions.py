"""What shards, sessions and nodes tell of themselves."""

from __future__ import annotations

from dataclasses import dataclass, replace

from meshnet.core.vocabulary.activations import DType
from meshnet.core.vocabulary.capacity import Capacity
from meshnet.core.vocabulary.drawing import SamplingParams
from meshnet.core.vocabulary.identity import ModelId, NodeId, SessionId
from meshnet.core.vocabulary.layers import LayerRange


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a shard found out about itself at load (architecture, section 5)."""

    kv_cache: bool
    multi_token: bool
    truncate: bool = False
    """A session can be shortened, and answers then as if it had never been longer."""
    marks: int = 0
    """A session that cannot be shortened goes back to so many of its marks (protocol.marks)."""
    batch: bool = False
    """Steps of several sessions may share a call."""
    exact: bool = False
    """A position's result is bitwise the same in every chunk, batch, refill and truncation."""
    moves: bool = False
    """Sessions can be taken over by a shard of equal arithmetic, cache and all."""
    forced: bool = False
    """As a tail it draws what it is told to (`SamplingParams.forced`)."""
    grammar: bool = False
    """As a tail it draws only what a grammar allows."""

    def lack(self, sampling: SamplingParams) -> str:
        """Say what of `sampling` a tail like this cannot do; empty if it can do all."""
        if sampling.forced and not self.forced:
            return "tell the log probabilities of a prompt"
        if sampling.grammar and not self.grammar:
            return "keep an answer to a grammar"
        return ""

    @property
    def shortens(self) -> bool:
        """Whether a session can be shortened, to any length or to its marks."""
        return self.truncate or self.marks > 0


@dataclass(frozen=True, slots=True)
class KVBytes:
    """Bytes a session of n tokens takes on a shard: fixed + per_token * n, before slack.

    Tokens count in whole cells of `grid`, since so they are allocated.
    """

    per_token: int
    fixed: int = 0
    grid: int = 1
    spare: int = 0
    """Of `per_token`: what leaves the last layer, kept to be sent again (ADR-0041). It goes before
    any session goes."""

    def of(self, tokens: int) -> int:
        return self.fixed + self.per_token * self._cells(tokens)

    def spare_of(self, tokens: int) -> int:
        """Return how many of the bytes `of(tokens)` the session can do without."""
        return self.spare * self._cells(tokens)

    def without_spare(self) -> KVBytes:
        """What a session takes where nothing is kept to be sent again."""
        return replace(self, per_token=self.per_token - self.spare, spare=0)

    def _cells(self, tokens: int) -> int:
        return -(-tokens // self.grid) * self.grid


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
    replayable: int = 0
    """Of so many of its first positions what left the layers is kept, and can be sent again."""


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
    draining: bool = False
    """It serves the sessions it has, takes no others, and would like to be rid of them."""
    capacity: Capacity | None = None
    """None: it did not measure itself."""
    replay: bool = False
    """It knows replays, fills and attempts that rise without a prefill (ADR-0041)."""
    version: str = ""
    """Of its program, for people; empty: an older node."""
