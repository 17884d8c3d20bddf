"""Steps counted in plain numbers, which take Prometheus's form only when somebody scrapes.

A step passes here once per token and node. prometheus_client's own counters and histograms take
some 90 calls of Python for one, each with a lock; these take a handful.

Not thread-safe: steps are told, and scrapes served, on the event loop.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from meshnet.telemetry.events import ForwardServed
from meshnet.telemetry.families import NODE, Family

STEP_BUCKETS_S = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
)  # fmt: skip
SIZE_BUCKETS = (1.0, 2.0, 4.0, 8.0, 16.0)


class Tally:
    """How many values there were up to each bound, and their sum."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def __bool__(self) -> bool:
        """Whether there was any value."""
        return any(self._counts)

    def told(self, family: HistogramMetricFamily, labels: Sequence[str]) -> None:
        """Put it into `family`."""
        buckets, total = [], 0
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            total += count
            name: str = floatToGoString(bound)  # type: ignore[no-untyped-call]
            buckets.append((name, float(total)))
        family.add_metric(labels, buckets, self._sum)


class _ModeTallies:
    __slots__ = ("compute", "queue", "step")

    def __init__(self) -> None:
        self.step, self.compute, self.queue = (Tally(STEP_BUCKETS_S) for _ in range(3))


class StepTallies(Collector):
    """All steps of one node."""

    def __init__(self) -> None:
        self._served: Counter[tuple[str, str]] = Counter()
        self._positions = 0
        self._modes: dict[str, _ModeTallies] = {}
        self._batch = Tally(SIZE_BUCKETS)

    def observe(self, event: ForwardServed) -> None:
        self._served[event.mode, event.outcome] += 1
        self._positions += event.positions
        tallies = self._modes.get(event.mode)
        if tallies is None:
            tallies = self._modes[event.mode] = _ModeTallies()
        tallies.step.add(event.step_s)
        tallies.compute.add(event.compute_s)
        if event.batch:
            tallies.queue.add(event.queue_s)
            self._batch.add(event.batch)

    @property
    def families(self) -> tuple[Family, ...]:
        return (SERVED, POSITIONS, STEP, COMPUTE, QUEUE, BATCH)

    def collect(self) -> Iterator[Metric]:
        """What prometheus_client asks for at a scrape."""
        served = CounterMetricFamily(SERVED.name, SERVED.text, labels=SERVED.labels)
        for labels, count in self._served.items():
            served.add_metric(labels, count)
        yield served
        yield CounterMetricFamily(POSITIONS.name, POSITIONS.text, value=self._positions)
        step, compute, queue, batch = map(_histogram, (STEP, COMPUTE, QUEUE, BATCH))
        for mode, tallies in self._modes.items():
            tallies.step.told(step, (mode,))
            tallies.compute.told(compute, (mode,))
            if tallies.queue:
                tallies.queue.told(queue, (mode,))
        self._batch.told(batch, ())
        yield from (step, compute, queue, batch)


def _timed(name: str, text: str) -> Family:
    return Family(name, "histogram", text, ("mode",), NODE)


SERVED = Family(
    "meshnet_forward_requests", "counter", "Steps served by this node", ("mode", "outcome"), NODE
)
POSITIONS = Family(
    "meshnet_positions", "counter", "Positions that this node's layers ran", (), NODE
)
STEP = _timed("meshnet_step_seconds", "Time of a step in this node, queue included")
COMPUTE = _timed("meshnet_compute_seconds", "Time of a step in the shard's layers")
QUEUE = _timed("meshnet_queue_seconds", "Time that a step waited for the device")
BATCH = Family(
    "meshnet_batch_steps", "histogram", "Steps in the batch that a step ran in", (), NODE
)


def _histogram(family: Family) -> HistogramMetricFamily:
    return HistogramMetricFamily(family.name, family.text, labels=family.labels)
