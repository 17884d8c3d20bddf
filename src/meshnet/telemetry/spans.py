"""Events of traced requests as spans of OpenTelemetry, made when they have ended.

    POST /v1/chat/completions                  GatewayAnswered, under the client's span
    └─ generate                                GenerationFinished
       ├─ queue, prefill, decode               its three parts
       ├─ step prefill, step decode ...        StepAsked: what the head waited for
       ├─ hop prefill, hop decode ...          ForwardServed, of each node
       │  └─ compute                           what is before it waited for the device
       └─ refill, move, failover               Recovered, SessionMoved, FailedOver

What of a step no hop and no queue accounts for is the wire. A hop is under `generate`, not under
its step: a stream is told once whose it is (docs/wire.md).

Invariants
    * no span holds a prompt, a text, a token id or a session id;
    * an event without a sampled trace costs one look at it;
    * nobody waits for an exporter: what it does not take in time is dropped.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

from meshnet import __version__
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

Attributes = Mapping[str, str | bool | int | float]
EXPORT_TIMEOUT_S = 2.0
EXPORT_EVERY_MS = 1000
_SCOPE = InstrumentationScope("meshnet", __version__)
_ENDED_WELL = ("stop", "length", "cancelled")
_SERVER_ERROR = 500


class Spans:
    """Hears the events of one process and hands their spans to `processor`."""

    def __init__(
        self,
        processor: SpanProcessor,
        *,
        role: str,
        instance: str = "",
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """`instance` tells processes of one role apart."""
        self._processor, self._now_ns = processor, now_ns
        told = {"service.name": f"meshnet-{role}", "service.version": __version__}
        self._resource = Resource(told | ({"service.instance.id": instance} if instance else {}))

    def observe(self, event: Event) -> None:
        trace: TraceContext | None = getattr(event, "trace", None)
        if trace is None or not trace.sampled:
            return
        now = self._now_ns()
        match event:
            case ForwardServed():
                self._hop(event, trace, now)
            case StepAsked():
                self._step(event, trace, now)
            case GenerationFinished():
                self._generation(event, trace, now)
            case GatewayAnswered():
                self._request(event, trace, now)
            case Recovered():
                told = {"meshnet.reason": event.reason}
                self._part("refill", trace, now, event.duration_s, told)
            case SessionMoved():
                told_of = {"meshnet.hops": event.hops, "meshnet.bytes": event.bytes}
                self._part("move", trace, now, event.duration_s, told_of)
            case FailedOver():
                self._part("failover", trace, now, 0.0, {"meshnet.node": event.node})
            case _:
                pass

    def close(self) -> None:
        """Send what waits, within a few seconds."""
        self._processor.shutdown()

    def _request(self, event: GatewayAnswered, trace: TraceContext, now: int) -> None:
        told: Attributes = {
            "http.request.method": event.method,
            "url.path": event.path,
            "http.response.status_code": event.status,
            "meshnet.request": event.request,
        }
        self._end(
            f"{event.method} {event.path}",
            trace,
            (now - _ns(event.duration_s), now),
            told,
            SpanKind.SERVER,
            failed=event.status >= _SERVER_ERROR,
        )

    def _generation(self, event: GenerationFinished, trace: TraceContext, now: int) -> None:
        told: Attributes = {
            "gen_ai.operation.name": "text_completion",
            "gen_ai.usage.output_tokens": event.tokens,
            "meshnet.outcome": event.outcome,
            "meshnet.refills": event.refills,
            "meshnet.request": event.request or "",
        }
        began = now - _ns(event.duration_s)
        placed = now if event.queue_s is None else began + _ns(event.queue_s)
        self._end("queue", _under(trace), (began, placed), {})
        if event.queue_s is not None:
            first = now if event.ttft_s is None else began + _ns(event.ttft_s)
            self._end("prefill", _under(trace), (placed, first), {})
            if event.decode_s:
                self._end("decode", _under(trace), (first, first + _ns(event.decode_s)), {})
        failed = event.outcome not in _ENDED_WELL
        self._end("generate", trace, (began, now), told, failed=failed)

    def _step(self, event: StepAsked, trace: TraceContext, now: int) -> None:
        told: Attributes = {
            "meshnet.nodes": ", ".join(event.nodes),
            "meshnet.positions": event.positions,
        }
        span = (now - _ns(event.duration_s), now)
        name = f"step {event.mode}"
        self._end(name, _under(trace), span, told, SpanKind.CLIENT, failed=not event.ok)

    def _hop(self, event: ForwardServed, trace: TraceContext, now: int) -> None:
        told: Attributes = {
            "meshnet.outcome": event.outcome,
            "meshnet.positions": event.positions,
            "meshnet.batch": event.batch,
            "meshnet.queue_s": round(event.queue_s, 6),
        }
        began, hop = now - _ns(event.step_s), _under(trace)
        self._end(f"hop {event.mode}", hop, (began, now), told, SpanKind.SERVER)
        if event.batch:
            run = began + _ns(event.queue_s)
            self._end("compute", _under(hop), (run, run + _ns(event.compute_s)), {})

    def _part(
        self, name: str, trace: TraceContext, now: int, duration_s: float, told: Attributes
    ) -> None:
        self._end(name, _under(trace), (now - _ns(duration_s), now), told)

    def _end(
        self,
        name: str,
        trace: TraceContext,
        span: tuple[int, int],
        told: Attributes,
        kind: SpanKind = SpanKind.INTERNAL,
        *,
        failed: bool = False,
    ) -> None:
        began, ended = span
        self._processor.on_end(
            ReadableSpan(
                name,
                context=_context(trace, trace.span_id),
                parent=None if trace.parent is None else _context(trace, trace.parent),
                resource=self._resource,
                attributes=told,
                kind=kind,
                instrumentation_scope=_SCOPE,
                status=Status(StatusCode.ERROR if failed else StatusCode.UNSET),
                start_time=began,
                end_time=max(began, ended),
            )
        )


def exporting(endpoint: str, *, role: str, instance: str = "") -> Spans:
    """Return what sends spans to an OTLP collector over HTTP, in batches, from its own thread."""
    url = f"{endpoint.rstrip('/')}/v1/traces"
    exporter = OTLPSpanExporter(endpoint=url, timeout=EXPORT_TIMEOUT_S)
    processor = BatchSpanProcessor(exporter, schedule_delay_millis=EXPORT_EVERY_MS)
    return Spans(processor, role=role, instance=instance)


def _under(trace: TraceContext) -> TraceContext:
    return trace.child(secrets.token_hex(8))


def _context(trace: TraceContext, span_id: str) -> SpanContext:
    return SpanContext(
        int(trace.trace_id, 16), int(span_id, 16), is_remote=False,
        trace_flags=TraceFlags(TraceFlags.SAMPLED),
    )  # fmt: skip


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
