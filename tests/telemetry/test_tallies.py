"""Steps counted in plain numbers read as prometheus_client's own would."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.exposition import generate_latest

from meshnet.telemetry.events import ForwardServed
from meshnet.telemetry.tallies import SIZE_BUCKETS, STEP_BUCKETS_S, StepTallies

SECONDS = st.one_of(st.sampled_from((0.0, *STEP_BUCKETS_S)), st.floats(0.0, 100.0))
STEPS = st.builds(
    ForwardServed,
    mode=st.sampled_from(("prefill", "decode")),
    outcome=st.sampled_from(("ok", "cache_miss")),
    step_s=SECONDS,
    compute_s=SECONDS,
    queue_s=SECONDS,
    batch=st.integers(0, 20),
    positions=st.integers(0, 600),
)


class Reference:
    """The same figures by prometheus_client's own classes."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._served = Counter(
            "meshnet_forward_requests",
            "Steps served by this node",
            ("mode", "outcome"),
            registry=self.registry,
        )
        self._positions = Counter(
            "meshnet_positions",
            "Positions that this node's layers ran",
            registry=self.registry,
        )
        self._step = self._histogram(
            "meshnet_step_seconds", "Time of a step in this node, queue included"
        )
        self._compute = self._histogram(
            "meshnet_compute_seconds", "Time of a step in the shard's layers"
        )
        self._queue = self._histogram(
            "meshnet_queue_seconds", "Time that a step waited for the device"
        )
        self._batch = Histogram(
            "meshnet_batch_steps",
            "Steps in the batch that a step ran in",
            registry=self.registry,
            buckets=SIZE_BUCKETS,
        )

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(name, text, ("mode",), registry=self.registry, buckets=STEP_BUCKETS_S)

    def observe(self, step: ForwardServed) -> None:
        self._served.labels(step.mode, step.outcome).inc()
        self._positions.inc(step.positions)
        self._step.labels(step.mode).observe(step.step_s)
        self._compute.labels(step.mode).observe(step.compute_s)
        if step.batch:
            self._queue.labels(step.mode).observe(step.queue_s)
            self._batch.observe(step.batch)


def exposed(registry: CollectorRegistry) -> list[str]:
    lines = generate_latest(registry).decode().splitlines()
    return sorted(line for line in lines if "_created" not in line)


@given(st.lists(STEPS, max_size=20))
def test_a_scrape_reads_as_that_of_the_library(steps):
    tallies, registry, reference = StepTallies(), CollectorRegistry(), Reference()
    registry.register(tallies)

    for step in steps:
        tallies.observe(step)
        reference.observe(step)

    assert exposed(registry) == exposed(reference.registry)
