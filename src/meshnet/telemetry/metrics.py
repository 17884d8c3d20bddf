"""Which figures a process exposes, and how each event moves them.

One registry per process and instance: nothing is registered at import, so two meshes in one
process (tests, `meshnet run`) never share a counter. Labels take values from closed sets only,
so that no peer can make the exposition grow.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from meshnet.telemetry.events import (
    ChildDied,
    ChildStarted,
    Event,
    FailedOver,
    Fault,
    FirstToken,
    ForwardServed,
    GatewayAnswered,
    GenerationAsked,
    GenerationFinished,
    GenerationStarted,
    LayersAssigned,
    MemberSeen,
    ProcessReady,
    Recovered,
    Refilled,
    RegistryAway,
    SessionEvicted,
    SessionMoved,
    SessionsHeld,
    SessionTaken,
    ShardAway,
    ShardDegraded,
    ShardFailed,
    ShardLoaded,
    StepAsked,
)
from meshnet.telemetry.families import BOTH, GATEWAY, NODE, Families, Family
from meshnet.telemetry.tallies import StepTallies

CONTENT_TYPE = CONTENT_TYPE_LATEST
REQUEST_BUCKETS_S = (
    0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0,
)  # fmt: skip
TOKEN_BUCKETS_S = (
    0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5,
)  # fmt: skip


class Metrics:
    """The process's counters; `observe` moves them, `exposition` writes them for Prometheus."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self._steps = StepTallies()
        self.registry.register(self._steps)
        made = Families(self.registry)
        self._add_node(made)
        self._add_requests(made)
        self._add_tokens(made)
        self._add_recoveries(made)
        self._faults = made.counter(BOTH, "meshnet_faults", "Bugs caught at a process boundary")
        self.families: tuple[Family, ...] = (*self._steps.families, *made.made)

    def _add_node(self, made: Families) -> None:
        self._sessions = made.gauge(NODE, "meshnet_sessions", "Sessions cached by this node")
        self._kv_bytes = made.gauge(NODE, "meshnet_kv_bytes", "Bytes of KV cache held by this node")
        self._kv_bytes_max = made.gauge(
            NODE, "meshnet_kv_bytes_max", "Bytes of KV cache that this node may hold"
        )
        self._evictions = made.counter(
            NODE, "meshnet_evictions", "Sessions forgotten by this node", "reason"
        )
        self._taken = made.counter(
            NODE, "meshnet_sessions_taken", "Sessions taken over from other nodes"
        )
        self._taken_bytes = made.counter(
            NODE, "meshnet_taken_bytes", "Bytes of KV cache taken over from other nodes"
        )
        self._kv_enabled = made.gauge(
            NODE, "meshnet_kv_cache_enabled", "1 if the shard caches, 0 if it is stateless",
            "model", "layers",
        )  # fmt: skip
        self._weights = made.gauge(
            NODE, "meshnet_weight_bytes", "Bytes of weights held", "model", "layers"
        )
        self._load_failures = made.counter(
            NODE, "meshnet_shard_failures", "Shards that did not load"
        )

    def _add_requests(self, made: Families) -> None:
        self._answered = made.counter(
            GATEWAY, "meshnet_gateway_requests", "Requests answered by the gateway", "status"
        )
        self._running = made.gauge(
            GATEWAY, "meshnet_num_requests_running", "Generations that hold their places"
        )
        self._waiting = made.gauge(
            GATEWAY, "meshnet_num_requests_waiting", "Generations that wait for places"
        )
        self._started = made.counter(
            GATEWAY, "meshnet_generations_started", "Generations that got their places"
        )
        self._generations = made.counter(
            GATEWAY, "meshnet_generations", "Generations ended", "outcome"
        )
        self._latency = made.histogram(
            "meshnet_e2e_request_latency_seconds", "Time of a generation, its wait included",
            REQUEST_BUCKETS_S,
        )  # fmt: skip
        self._queue = made.histogram(
            "meshnet_request_queue_time_seconds", "Time until a generation had its places",
            REQUEST_BUCKETS_S,
        )  # fmt: skip
        self._ttft = made.histogram(
            "meshnet_time_to_first_token_seconds", "Time to the first token, the wait included",
            REQUEST_BUCKETS_S,
        )  # fmt: skip
        self._tpot = made.histogram(
            "meshnet_request_time_per_output_token_seconds",
            "Mean time per token after the first, of each generation",
            TOKEN_BUCKETS_S,
        )

    def _add_tokens(self, made: Families) -> None:
        self._prompt_tokens = made.counter(
            GATEWAY, "meshnet_prompt_tokens", "Tokens of prompts that got their places"
        )
        self._reused = made.counter(
            GATEWAY, "meshnet_tokens_reused", "Tokens of prompts that earlier sessions held"
        )
        self._tokens = made.counter(
            GATEWAY, "meshnet_generation_tokens", "Tokens emitted by this head"
        )
        self._steps_asked = made.counter(
            GATEWAY, "meshnet_hop_steps", "Steps of hops that ended generations asked for"
        )
        self._waited = made.counter(
            GATEWAY, "meshnet_hop_wait_seconds",
            "Time they waited for hops: less the nodes' `meshnet_step_seconds`, the wire",
        )  # fmt: skip

    def _add_recoveries(self, made: Families) -> None:
        self._refills = made.counter(
            GATEWAY, "meshnet_refills", "Prefills that repaired a running generation", "reason"
        )
        self._partial_refills = made.counter(
            GATEWAY, "meshnet_partial_refills", "Those of them in which some hops kept theirs",
            "reason",
        )  # fmt: skip
        self._refilled_positions = made.counter(
            GATEWAY, "meshnet_refilled_positions", "Positions that hops ran again, of each hop",
            "reason",
        )  # fmt: skip
        self._recovery = made.histogram(
            "meshnet_recovery_seconds", "Time from a refill to the token after it",
            REQUEST_BUCKETS_S,
        )  # fmt: skip
        self._failovers = made.counter(
            GATEWAY, "meshnet_failovers", "Searches for another route because a hop was lost"
        )
        self._inexact = made.counter(
            GATEWAY, "meshnet_inexact_recoveries",
            "Hops of another arithmetic that took over half-way",
        )  # fmt: skip
        self._moves = made.counter(
            GATEWAY, "meshnet_moves", "Sessions that changed nodes with their cache"
        )
        self._restarts = made.counter(
            GATEWAY, "meshnet_child_restarts", "Node processes started again"
        )

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
            case GenerationAsked() | GenerationStarted() | FirstToken() | GenerationFinished():
                self._observe_generation(event)
            case Refilled() | Recovered() | FailedOver() | SessionMoved():
                self._observe_recovery(event)
            case GatewayAnswered(status=status):
                self._answered.labels(str(status)).inc()
            case ChildDied() | ShardAway():
                self._restarts.inc()
            case Fault():
                self._faults.inc()
            case ChildStarted() | ProcessReady() | ShardDegraded() | StepAsked():
                pass
            case MemberSeen() | LayersAssigned() | RegistryAway():
                pass

    def _observe_node(self, event: SessionsHeld | SessionEvicted | SessionTaken) -> None:
        match event:
            case SessionsHeld():
                self._sessions.set(event.sessions)
                self._kv_bytes.set(event.kv_bytes)
                self._kv_bytes_max.set(event.kv_bytes_max)
            case SessionEvicted(reason=reason):
                self._evictions.labels(reason).inc()
            case SessionTaken():
                self._taken.inc()
                self._taken_bytes.inc(event.bytes)

    def _observe_generation(
        self, event: GenerationAsked | GenerationStarted | FirstToken | GenerationFinished
    ) -> None:
        match event:
            case GenerationAsked():
                self._waiting.inc()
            case GenerationStarted():
                self._waiting.dec()
                self._running.inc()
                self._started.inc()
                self._queue.observe(event.queue_s)
                self._prompt_tokens.inc(event.prompt_tokens)
            case FirstToken():
                self._ttft.observe(event.ttft_s)
            case GenerationFinished():
                self._observe_end(event)

    def _observe_end(self, event: GenerationFinished) -> None:
        (self._waiting if event.queue_s is None else self._running).dec()
        self._generations.labels(event.outcome).inc()
        self._latency.observe(event.duration_s)
        if event.tokens > 1:
            self._tpot.observe(event.decode_s / (event.tokens - 1))
        self._tokens.inc(event.tokens)
        self._reused.inc(event.reused)
        self._steps_asked.inc(event.steps)
        self._waited.inc(event.waited_s)
        self._inexact.inc(event.inexact)

    def _observe_recovery(self, event: Refilled | Recovered | FailedOver | SessionMoved) -> None:
        match event:
            case Refilled(reason=reason):
                self._refills.labels(reason).inc()
                self._partial_refills.labels(reason).inc(int(event.partial))
                self._refilled_positions.labels(reason).inc(event.positions)
            case Recovered():
                self._recovery.observe(event.duration_s)
            case FailedOver():
                self._failovers.inc()
            case SessionMoved():
                self._moves.inc()
