import io
import json
from dataclasses import fields
from typing import get_args

import pytest

from meshnet.core.vocabulary import TraceContext
from meshnet.telemetry.events import (
    Event,
    FirstToken,
    ForwardServed,
    GatewayAnswered,
    Refilled,
    SessionEvicted,
    SessionsHeld,
    ShardDegraded,
    ShardLoaded,
)
from meshnet.telemetry.sink import LogFormat, LogLevel, Telemetry


def sink(level: LogLevel = LogLevel.DEBUG) -> tuple[Telemetry, io.StringIO]:
    stream = io.StringIO()
    return Telemetry(stream=stream, log_format=LogFormat.JSON, level=level, role="node"), stream


def test_a_log_line_names_the_request_and_the_session_of_a_step():
    """A failed request can be followed over all hops by one id (A110)."""
    telemetry, stream = sink()

    telemetry.record(ForwardServed("decode", "cache_miss", 0.5, 0.0, session="s1", request="r1"))

    line = json.loads(stream.getvalue())
    assert (line["event"], line["session"], line["request"]) == ("forward_served", "s1", "r1")
    assert (line["role"], line["outcome"]) == ("node", "cache_miss")


def test_steps_that_went_well_are_silent_at_the_default_level():
    telemetry, stream = sink(LogLevel.INFO)

    telemetry.record(ForwardServed("decode", "ok", 0.5, 0.4, session="s1"))
    telemetry.record(ForwardServed("decode", "cache_miss", 0.5, 0.4, session="s2"))

    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["session"] for line in lines] == ["s2"]


def test_events_move_the_metrics_of_their_own_sink_only():
    """Pits A68 and A112."""
    one, _ = sink()
    other, _ = sink()

    one.record(ForwardServed("prefill", "ok", 0.5, 0.4))
    one.record(SessionsHeld(sessions=3, kv_bytes=1000))
    one.record(SessionEvicted("ttl", "s"))
    one.record(Refilled("unknown_session", "s", attempt=1))
    one.record(FirstToken(0.2, "s"))
    one.record(GatewayAnswered("POST", "/v1/models", 404, 0.1, "r"))
    one.record(ShardLoaded("m", "0-3", False, True, 10, 10, 0.1))

    text = one.metrics.exposition().decode()
    assert 'meshnet_forward_requests_total{mode="prefill",outcome="ok"} 1.0' in text
    assert "meshnet_kv_bytes 1000.0" in text
    assert 'meshnet_evictions_total{reason="ttl"} 1.0' in text
    assert 'meshnet_refills_total{reason="unknown_session"} 1.0' in text
    assert "meshnet_time_to_first_token_seconds_count 1.0" in text
    assert 'meshnet_gateway_requests_total{status="404"} 1.0' in text
    assert 'meshnet_kv_cache_enabled{layers="0-3",model="m"} 0.0' in text
    assert "meshnet_kv_bytes 0.0" in other.metrics.exposition().decode()


def test_a_shard_that_cannot_cache_is_a_warning():
    telemetry, stream = sink(LogLevel.WARNING)

    telemetry.record(ShardLoaded("m", "0-3", False, True, 10, 10, 0.1))

    assert json.loads(stream.getvalue())["level"] == "warning"


def test_a_shard_that_stops_caching_later_is_seen_in_log_and_metrics():
    telemetry, stream = sink(LogLevel.WARNING)
    telemetry.record(ShardLoaded("m", "0-3", True, True, 10, 10, 0.1))

    telemetry.record(ShardDegraded("m", "0-3", "layers hold nothing", stateless=True))

    assert json.loads(stream.getvalue())["event"] == "shard_degraded"
    exposed = telemetry.metrics.exposition().decode()
    assert 'meshnet_kv_cache_enabled{layers="0-3",model="m"} 0.0' in exposed


def test_a_closed_stream_does_not_stop_the_process():
    telemetry, stream = sink()
    stream.close()

    telemetry.record(Refilled("busy", "s", attempt=1))

    assert 'reason="busy"' in telemetry.metrics.exposition().decode()


@pytest.mark.parametrize("kind", get_args(Event), ids=lambda kind: kind.__name__)
def test_no_event_has_room_for_a_prompt_a_token_or_an_activation(kind: type):
    names = {field.name for field in fields(kind)}

    assert not names & {"prompt", "text", "tokens_ids", "token_ids", "token_id", "activation"}


def test_a_log_line_names_the_trace_that_its_event_is_of():
    telemetry, stream = sink()
    trace = TraceContext("a" * 32, "b" * 16, sampled=True)

    telemetry.record(Refilled("lost", "s1", attempt=2, request="r1", trace=trace))

    line = json.loads(stream.getvalue())
    assert (line["trace_id"], line["session"], line["request"]) == ("a" * 32, "s1", "r1")
    assert "trace" not in line
