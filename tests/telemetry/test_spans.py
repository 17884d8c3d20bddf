"""What events of a traced request become."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor

from meshnet.core.vocabulary import TraceContext
from meshnet.telemetry.events import (
    Event,
    FailedOver,
    ForwardServed,
    GatewayAnswered,
    GenerationFinished,
    Recovered,
    SessionMoved,
    StepAsked,
)
from meshnet.telemetry.spans import Spans

NOW = 100 * 10**9
REQUEST = TraceContext("a" * 32, "1" * 16, sampled=True, parent="c" * 16)
TRACE = REQUEST.child("2" * 16)
UNSAMPLED = TraceContext("a" * 32, "1" * 16, sampled=False)


class Kept(SpanProcessor):
    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)


def spans(*events: Event) -> list[ReadableSpan]:
    kept = Kept()
    telling = Spans(kept, role="node", instance="http://n:1", now_ns=lambda: NOW)
    for event in events:
        telling.observe(event)
    return kept.spans


def times(found: Sequence[ReadableSpan]) -> dict[str, tuple[float, float]]:
    """From when to when, in seconds."""
    shown = {}
    for span in found:
        assert span.start_time is not None
        assert span.end_time is not None
        shown[span.name] = (span.start_time / 1e9, span.end_time / 1e9)
    return shown


def parent_of(span: ReadableSpan) -> int:
    assert span.parent is not None
    return span.parent.span_id


def test_a_generation_is_a_span_with_its_wait_its_prefill_and_its_decode_under_it():
    ended = GenerationFinished(
        "stop", 5, 1, 10.0, "s", "r", ttft_s=4.0, decode_s=5.0, queue_s=1.0, trace=TRACE
    )

    found = spans(ended)

    assert times(found) == {
        "generate": (90.0, 100.0),
        "queue": (90.0, 91.0),
        "prefill": (91.0, 94.0),
        "decode": (94.0, 99.0),
    }
    *parts, whole = found
    assert (whole.context.span_id, parent_of(whole)) == (0x2222222222222222, 0x1111111111111111)
    assert {parent_of(part) for part in parts} == {0x2222222222222222}


def test_a_generation_without_a_place_was_in_the_queue_to_its_end():
    refused = GenerationFinished("no_room", 0, 0, 3.0, "s", trace=TRACE)

    found = spans(refused)

    assert times(found) == {"queue": (97.0, 100.0), "generate": (97.0, 100.0)}
    assert not found[-1].status.is_ok


def test_a_hop_holds_its_compute_behind_its_wait_and_names_its_node():
    served = ForwardServed("decode", "ok", 2.0, 1.0, 0.5, 3, "s", "r", 1, trace=TRACE)

    hop, compute = spans(served)

    assert times([hop, compute]) == {"hop decode": (98.0, 100.0), "compute": (98.5, 99.5)}
    assert parent_of(compute) == hop.context.span_id
    assert parent_of(hop) == 0x2222222222222222
    assert hop.resource.attributes["service.instance.id"] == "http://n:1"


def test_a_step_that_did_not_run_has_no_compute():
    missed = ForwardServed("decode", "cache_miss", 2.0, 0.0, session="s", trace=TRACE)

    assert [span.name for span in spans(missed)] == ["hop decode"]


def test_recoveries_and_moves_are_spans_of_the_generation():
    found = spans(
        FailedOver("http://n:2", "s", "r", TRACE),
        Recovered("lost", "s", 2.0, "r", TRACE),
        SessionMoved("s", 1, 4096, 0.5, "r", TRACE),
    )

    assert times(found) == {
        "failover": (100.0, 100.0), "refill": (98.0, 100.0), "move": (99.5, 100.0),
    }  # fmt: skip


def test_a_request_is_under_the_span_of_its_client():
    answered = GatewayAnswered("POST", "/v1/completions", 200, 1.0, "r", REQUEST)

    (found,) = spans(answered)

    assert parent_of(found) == 0xCCCCCCCCCCCCCCCC
    assert found.context.trace_id == int("a" * 32, 16)


@pytest.mark.parametrize("trace", [None, UNSAMPLED])
def test_what_is_not_sampled_becomes_no_span(trace: TraceContext | None):
    assert spans(ForwardServed("decode", "ok", 2.0, 1.0, trace=trace)) == []


def test_no_span_tells_the_session_by_which_somebody_could_go_on_with_it():
    """Whoever knows a session's id could extend it, and collectors are elsewhere."""
    found = spans(
        ForwardServed("decode", "ok", 2.0, 1.0, session="secret", batch=1, trace=TRACE),
        StepAsked("decode", ("http://n:1",), 1, 1.0, True, "secret", "r", TRACE),
        GenerationFinished("stop", 5, 1, 10.0, "secret", "r", queue_s=1.0, trace=TRACE),
        Recovered("lost", "secret", 2.0, "r", TRACE),
    )

    assert "secret" not in "".join(span.to_json() for span in found)
