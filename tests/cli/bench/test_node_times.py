"""What a node's counters say of its decodes."""

from __future__ import annotations

from meshnet.cli.bench.node_times import NodeTimes, times_of
from meshnet.telemetry.events import ForwardServed
from meshnet.telemetry.metrics import Metrics


def served(mode: str, step_s: float, compute_s: float, queue_s: float) -> ForwardServed:
    return ForwardServed(
        mode=mode, outcome="ok", step_s=step_s, compute_s=compute_s, queue_s=queue_s, batch=1,
        session=None, request=None,
    )  # fmt: skip


def test_decodes_are_added_up_and_prefills_left_out():
    metrics = Metrics()
    for event in (
        served("prefill", 9.0, 8.0, 0.5),
        served("decode", 0.25, 0.125, 0.0625),
        served("decode", 0.5, 0.25, 0.125),
    ):
        metrics.observe(event)

    found = times_of(metrics.exposition().decode())

    assert found == NodeTimes(step_s=0.75, compute_s=0.375, queue_s=0.1875)


def test_a_node_that_decoded_nothing_took_no_time():
    assert times_of(Metrics().exposition().decode()) == NodeTimes()


def test_what_passed_is_a_difference():
    assert NodeTimes(3.0, 2.0, 1.0).since(NodeTimes(1.0, 1.0, 0.5)) == NodeTimes(2.0, 1.0, 0.5)
