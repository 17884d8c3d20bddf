"""What a process does about traces: nothing, unless a collector is named (ADR-0053).

trace_endpoint set ──▶ events ──▶ Spans ──▶ collector
                  └──▶ the head's client tells of each step of a traced request
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from meshnet.cli.passing_client import PassingClient
from meshnet.cli.settings import Settings, SettingsError, base_url
from meshnet.core.protocol.messages import ForwardRequest, Refusal, Reply
from meshnet.core.vocabulary import HopLost, NodeId
from meshnet.head import HopClient
from meshnet.telemetry.events import Record, StepAsked

if TYPE_CHECKING:
    from meshnet.telemetry.spans import Spans

End = tuple[NodeId | None, Reply | HopLost]


def spans_of(settings: Settings, *, role: str, instance: str = "") -> Spans | None:
    """Return who sends this process's spans; None: nobody is named. Raises SettingsError."""
    if settings.trace_endpoint is None:
        return None
    endpoint = base_url(settings.trace_endpoint, "trace_endpoint")
    try:
        from meshnet.telemetry.spans import exporting
    except ImportError:
        raise SettingsError(
            "trace_endpoint: sending traces needs OpenTelemetry: pip install 'meshnet[otel]'"
        ) from None
    return exporting(endpoint, role=role, instance=instance)


class TracedClient(PassingClient):
    """Times the steps of traced requests; others pass as they are."""

    def __init__(self, inner: HopClient, record: Record, clock: Callable[[], float]) -> None:
        super().__init__(inner)
        self._record, self._clock = record, clock

    def forward(
        self, node: NodeId, request: ForwardRequest, timeout_s: float
    ) -> Coroutine[Any, Any, Reply]:
        if request.traceparent is None or not request.traceparent.sampled:
            return self._inner.forward(node, request, timeout_s)
        return self._forward(node, request, timeout_s)

    def chain(
        self, nodes: Sequence[NodeId], request: ForwardRequest, timeout_s: float
    ) -> Coroutine[Any, Any, End]:
        if request.traceparent is None or not request.traceparent.sampled:
            return self._inner.chain(nodes, request, timeout_s)
        return self._chain(nodes, request, timeout_s)

    async def _forward(self, node: NodeId, request: ForwardRequest, timeout_s: float) -> Reply:
        began, ok = self._clock(), False
        try:
            reply = await self._inner.forward(node, request, timeout_s)
            ok = not isinstance(reply, Refusal)
            return reply
        finally:
            self._tell([node], request, began, ok=ok)

    async def _chain(
        self, nodes: Sequence[NodeId], request: ForwardRequest, timeout_s: float
    ) -> End:
        began, ok = self._clock(), False
        try:
            node, end = await self._inner.chain(nodes, request, timeout_s)
            ok = not isinstance(end, Refusal | HopLost)
            return node, end
        finally:
            self._tell(nodes, request, began, ok=ok)

    def _tell(
        self, nodes: Sequence[NodeId], request: ForwardRequest, began: float, *, ok: bool
    ) -> None:
        given = request.activation
        self._record(
            StepAsked(
                mode=request.mode.value,
                nodes=tuple(nodes),
                positions=len(request.tokens) if given is None else given.hidden.shape[-2],
                duration_s=self._clock() - began,
                ok=ok,
                session=request.session,
                request=request.trace,
                trace=request.traceparent,
            )
        )
