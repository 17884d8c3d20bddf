"""What is counted and told about one generation. Influences nothing."""

from __future__ import annotations

from collections.abc import Callable

from meshnet.core.generation.accounting import GenerationStats
from meshnet.core.generation.moves import Moved
from meshnet.core.generation.transcript import Refilling, Reroute
from meshnet.core.protocol.messages import ForwardRequest, Mode
from meshnet.core.vocabulary import Route, SessionId
from meshnet.head.counters import HeadCounters
from meshnet.head.seam import GenerationRequest
from meshnet.telemetry.events import (
    FailedOver,
    FirstToken,
    GenerationAsked,
    GenerationFinished,
    GenerationStarted,
    Record,
    Recovered,
    Refilled,
    SessionMoved,
)

CANCELLED = "cancelled"


class Observation:
    """One generation, from the call of `generate` to its end, counted once whatever ends it."""

    def __init__(
        self,
        counters: HeadCounters,
        record: Record,
        clock: Callable[[], float],
        *,
        session: SessionId,
        request: GenerationRequest,
    ) -> None:
        self._counters, self._record, self._clock = counters, record, clock
        self._session, self._request = session, request.trace
        self._trace = request.traceparent
        self._began_at = clock()
        self._holding = False
        self._queue_s: float | None = None
        self._refill: tuple[str, float] | None = None
        """The reason of the first refill since the last token, and when it began."""
        self._ttft_s: float | None = None
        self._last_token_s = 0.0
        self._outcome = CANCELLED
        counters.started += 1
        record(GenerationAsked(session, request.trace, self._trace))

    @property
    def ttft_s(self) -> float | None:
        return self._ttft_s

    @property
    def duration_s(self) -> float:
        return self._clock() - self._began_at

    def started(self, route: Route, prompt_tokens: int) -> None:
        self._queue_s = self.duration_s
        self._record(
            GenerationStarted(
                self._session,
                self._request,
                len(route.hops),
                prompt_tokens,
                self._queue_s,
                self._trace,
            )
        )

    def reserving(self) -> None:
        self._hold()

    def forwarding(self, request: ForwardRequest) -> None:
        if request.mode is not Mode.STATELESS:
            self._hold()

    def releasing(self) -> None:
        self._holding = False
        self._counters.releases += 1

    def rerouting(self, asked: Reroute) -> None:
        if asked.lost and asked.avoid is not None:
            self._record(FailedOver(asked.avoid.node, self._session, self._request, self._trace))

    def refilling(self, refilling: Refilling) -> None:
        if self._refill is None:
            self._refill = refilling.reason.value, self._clock()
        self._counters.refills[refilling.reason] += 1
        self._counters.partial_refills += refilling.partial
        self._counters.refilled_positions += refilling.positions
        self._record(
            Refilled(
                refilling.reason.value,
                self._session,
                refilling.attempt,
                self._request,
                refilling.positions,
                refilling.partial,
                self._trace,
            )
        )

    def moved(self, moved: Moved) -> None:
        self._counters.moves += 1
        self._record(
            SessionMoved(
                self._session,
                moved.hops,
                moved.bytes,
                moved.duration_s,
                self._request,
                self._trace,
            )
        )

    def token(self) -> None:
        self._counters.tokens += 1
        self._last_token_s = self.duration_s
        if self._ttft_s is None:
            self._ttft_s = self._last_token_s
            self._record(FirstToken(self._ttft_s, self._session, self._request, self._trace))
        if self._refill is not None:
            (reason, began), self._refill = self._refill, None
            took_s = self._clock() - began
            self._record(Recovered(reason, self._session, took_s, self._request, self._trace))

    def finished(self, outcome: str) -> None:
        self._outcome = outcome
        self._counters.finished += 1

    def failed(self, outcome: str) -> None:
        self._outcome = outcome
        self._counters.failed += 1

    def ended(self, stats: GenerationStats | None) -> None:
        """The last call, on every path; `stats` None: no route was ever walked."""
        if self._outcome is CANCELLED:
            self._counters.cancelled += 1
        if stats is not None:
            self._counters.prefills += stats.prefills
            self._counters.reused += stats.reused
            self._counters.inexact += stats.inexact
        hops = () if stats is None else stats.hops
        self._record(
            GenerationFinished(
                outcome=self._outcome,
                tokens=0 if stats is None else stats.completion_tokens,
                refills=0 if stats is None else stats.refills,
                duration_s=self.duration_s,
                session=self._session,
                request=self._request,
                trace=self._trace,
                reused=0 if stats is None else stats.reused,
                ttft_s=self._ttft_s,
                decode_s=self._last_token_s - (self._ttft_s or 0.0),
                inexact=0 if stats is None else stats.inexact,
                queue_s=self._queue_s,
                steps=sum(hop.steps for hop in hops),
                waited_s=sum(hop.wire_s + hop.compute_s for hop in hops),
            )
        )

    def _hold(self) -> None:
        if not self._holding:
            self._holding = True
            self._counters.holds += 1
