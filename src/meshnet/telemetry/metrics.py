"""Which figures a process exposes, and how each event moves them.

One registry per process and instance: nothing is registered at import, so two meshes in one
process (tests, `meshnet run`) never share a counter. Labels take values from closed sets only,
so that no peer can make the exposition grow.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from meshnet.telemetry.events import (
    ChildDied,
    ChildStarted,
    Event,
    Fault,
    FirstToken,
    ForwardServed,
    GatewayAnswered,
    GenerationFinished,
    GenerationStarted,
    LayersAssigned,
    MemberSeen,
    ProcessReady,
    Refilled,
    RegistryAway,
    SessionEvicted,
    SessionMoved,
    SessionsHeld,
    SessionTaken,
    ShardDegraded,
    ShardFailed,
    ShardLoaded,
)
from meshnet.telemetry.tallies import STEP_BUCKETS_S, StepTallies

CONTENT_TYPE = CONTENT_TYPE_LATEST


class Metrics:
    """The process's counters; `observe` moves them, `exposition` writes them for Prometheus."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self._steps = StepTallies()
        self.registry.register(self._steps)
        self._sessions = self._gauge("meshnet_sessions", "Sessions cached by this node")
        self._kv_bytes = self._gauge("meshnet_kv_bytes", "Bytes of KV cache held by this node")
        self._evictions = self._counter(
            "meshnet_evictions", "Sessions forgotten by this node", "reason"
        )
        self._taken = self._counter(
            "meshnet_sessions_taken", "Sessions taken over from other nodes"
        )
        self._taken_bytes = self._counter(
            "meshnet_taken_bytes", "Bytes of KV cache taken over from other nodes"
        )
        self._kv_enabled = self._gauge(
            "meshnet_kv_cache_enabled", "1 if the shard caches, 0 if it is stateless",
            "model", "layers",
        )  # fmt: skip
        self._weights = self._gauge(
            "meshnet_weight_bytes", "Bytes of weights held", "model", "layers"
        )
        self._load_failures = self._counter("meshnet_shard_failures", "Shards that did not load")
        self._add_head()
        self._gateway = self._counter(
            "meshnet_gateway_requests", "Requests answered by the gateway", "status"
        )
        self._restarts = self._counter("meshnet_child_restarts", "Node processes started again")
        self._faults = self._counter("meshnet_faults", "Bugs caught at a process boundary")

    def _add_head(self) -> None:
        self._refills = self._counter(
            "meshnet_refills", "Prefills that repaired a running generation", "reason"
        )
        self._moves = self._counter("meshnet_moves", "Sessions that changed nodes with their cache")
        self._partial_refills = self._counter(
            "meshnet_partial_refills", "Those of them in which some hops kept theirs", "reason"
        )
        self._refilled_positions = self._counter(
            "meshnet_refilled_positions", "Positions that hops ran again, of each hop", "reason"
        )
        self._inexact = self._counter(
            "meshnet_inexact_recoveries", "Hops of another arithmetic that took over half-way"
        )
        self._ttft = self._histogram("meshnet_ttft_seconds", "Time to the first token")
        self._tokens = self._counter("meshnet_tokens", "Tokens emitted by this head")
        self._reused = self._counter(
            "meshnet_tokens_reused", "Tokens of prompts that earlier sessions held"
        )
        self._started = self._counter("meshnet_generations_started", "Generations begun")
        self._generations = self._counter("meshnet_generations", "Generations ended", "outcome")

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, *labels: str) -> Histogram:
        return Histogram(name, text, labels, registry=self.registry, buckets=STEP_BUCKETS_S)

    def exposition(self) -> bytes:
        return generate_latest(self.registry)

    def observe(self, event: Event) -> None:
        if isinstance(event, ForwardServed):  # first, and apart: once per token
            self._steps.observe(event)
            return
        match event:
            case SessionsHeld() | SessionEvicted() | SessionTaken():
                self._observe_node(event)
            case ShardLoaded(model=model, layers=layers):
                self._kv_enabled.labels(model, layers).set(int(event.kv_cache))
                self._weights.labels(model, layers).set(event.weight_bytes)
            case ShardDegraded(model=model, layers=layers, stateless=True):
                self._kv_enabled.labels(model, layers).set(0)
            case ShardFailed():
                self._load_failures.inc()
            case GenerationStarted() | Refilled() | FirstToken() | GenerationFinished():
                self._observe_head(event)
            case SessionMoved():
                self._moves.inc()
            case GatewayAnswered(status=status):
                self._gateway.labels(str(status)).inc()
            case ChildDied():
                self._restarts.inc()
            case Fault():
                self._faults.inc()
            case ChildStarted() | ProcessReady() | ShardDegraded():
                pass
            case MemberSeen() | LayersAssigned() | RegistryAway():
                pass

    def _observe_node(self, event: SessionsHeld | SessionEvicted | SessionTaken) -> None:
        match event:
            case SessionsHeld():
                self._sessions.set(event.sessions)
                self._kv_bytes.set(event.kv_bytes)
            case SessionEvicted(reason=reason):
                self._evictions.labels(reason).inc()
            case SessionTaken():
                self._taken.inc()
                self._taken_bytes.inc(event.bytes)

    def _observe_head(
        self, event: GenerationStarted | Refilled | FirstToken | GenerationFinished
    ) -> None:
        match event:
            case GenerationStarted():
                self._started.inc()
            case Refilled(reason=reason):
                self._refills.labels(reason).inc()
                self._partial_refills.labels(reason).inc(int(event.partial))
                self._refilled_positions.labels(reason).inc(event.positions)
            case FirstToken():
                self._ttft.observe(event.ttft_s)
            case GenerationFinished(outcome=outcome):
                self._generations.labels(outcome).inc()
                self._tokens.inc(event.tokens)
                self._reused.inc(event.reused)
                self._inexact.inc(event.inexact)
