"""What events make of the figures, and that the families are what they say they are."""

from __future__ import annotations

from meshnet.telemetry.events import (
    Event,
    FailedOver,
    FirstToken,
    GenerationAsked,
    GenerationFinished,
    GenerationStarted,
    Recovered,
    SessionsHeld,
)
from meshnet.telemetry.metrics import Metrics

ENDED = GenerationFinished(
    outcome="stop", tokens=11, refills=0, duration_s=9.0, session="s", ttft_s=2.0, decode_s=2.0,
    queue_s=0.5, steps=33, waited_s=2.25,
)  # fmt: skip


def told(*events: Event) -> dict[str, float]:
    """Every sample without labels after `events`."""
    metrics = Metrics()
    for event in events:
        metrics.observe(event)
    return {
        sample.name: sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if not sample.labels
    }


def test_every_family_is_declared_as_it_is_exposed():
    metrics = Metrics()

    exposed = {(each.name, each.type, each.documentation) for each in metrics.registry.collect()}

    assert {(each.name, each.kind, each.text) for each in metrics.families} == exposed
    assert all(each.name.startswith("meshnet_") for each in metrics.families)


def test_a_generation_waits_then_runs_then_is_gone():
    asked, started = GenerationAsked("s"), GenerationStarted("s", None, 3, 51, queue_s=0.5)
    gauges = ("meshnet_num_requests_waiting", "meshnet_num_requests_running")

    seen = [told(*events) for events in ((asked,), (asked, started), (asked, started, ENDED))]

    assert [tuple(each[name] for name in gauges) for each in seen] == [(1, 0), (0, 1), (0, 0)]


def test_a_generation_that_got_no_place_waits_no_longer_and_never_ran():
    refused = GenerationFinished("no_room", 0, 0, 3.0, "s")

    figures = told(GenerationAsked("s"), refused)

    assert figures["meshnet_num_requests_waiting"] == 0
    assert figures["meshnet_num_requests_running"] == 0
    assert figures["meshnet_request_queue_time_seconds_count"] == 0


def test_times_of_a_generation_are_the_wait_the_first_token_the_rest_and_all():
    figures = told(
        GenerationAsked("s"), GenerationStarted("s", None, 3, 51, 0.5), FirstToken(2.0, "s"), ENDED
    )

    assert figures["meshnet_request_queue_time_seconds_sum"] == 0.5
    assert figures["meshnet_time_to_first_token_seconds_sum"] == 2.0
    assert figures["meshnet_request_time_per_output_token_seconds_sum"] == 0.2
    assert figures["meshnet_e2e_request_latency_seconds_sum"] == 9.0
    assert figures["meshnet_prompt_tokens_total"] == 51
    assert figures["meshnet_generation_tokens_total"] == 11
    assert figures["meshnet_hop_steps_total"] == 33
    assert figures["meshnet_hop_wait_seconds_total"] == 2.25


def test_an_answer_of_one_token_has_no_time_per_further_token():
    one = GenerationFinished("length", 1, 0, 3.0, "s", queue_s=0.0)

    assert told(one)["meshnet_request_time_per_output_token_seconds_count"] == 0


def test_recoveries_are_timed_and_failovers_counted():
    figures = told(FailedOver("b", "s"), Recovered("lost", "s", 1.5))

    assert figures["meshnet_failovers_total"] == 1
    assert figures["meshnet_recovery_seconds_sum"] == 1.5


def test_a_node_tells_the_bound_beside_what_it_holds():
    figures = told(SessionsHeld(sessions=2, kv_bytes=10, kv_bytes_max=100))

    assert (figures["meshnet_kv_bytes"], figures["meshnet_kv_bytes_max"]) == (10, 100)
