"""What is counted and told about one generation. Influences nothing."""

from __future__ import annotations

from collections.abc import Callable

from meshnet.core.generation.accounting import GenerationStats
from meshnet.core.generation.moves import Moved
from meshnet.core.generation.transcript import Refilling
from meshnet.core.protocol.messages import ForwardRequest, Mode
from meshnet.core.vocabulary import Route, SessionId
from meshnet.head.counters import HeadCounters
from meshnet.telemetry.events import (
    FirstToken,
    GenerationFinished,
    GenerationStarted,
    Record,
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
        trace: str | None,
    ) -> None:
        self._counters, self._record, self._clock = counters, record, clock
        self._session, self._trace = session, trace
        self._began_at = clock()
        self._holding = False
        self._ttft_s: float | None = None
        self._last_token_s = 0.0
        self._outcome = CANCELLED
        counters.started += 1

    @property
    def ttft_s(self) -> float | None:
        return self._ttft_s

    @property
    def duration_s(self) -> float:
        return self._clock() - self._began_at

    def started(self, route: Route, prompt_tokens: int) -> None:
        hops = len(route.hops)
        self._record(GenerationStarted(self._session, self._trace, hops, prompt_tokens))

    def reserving(self) -> None:
        self._hold()

    def forwarding(self, request: ForwardRequest) -> None:
        if request.mode is not Mode.STATELESS:
            self._hold()

    def releasing(self) -> None:
        self._holding = False
        self._counters.releases += 1

    def refilling(self, refilling: Refilling) -> None:
        self._counters.refills[refilling.reason] += 1
        self._counters.partial_refills += refilling.partial
        self._counters.refilled_positions += refilling.positions
        self._record(
            Refilled(
                refilling.reason.value,
                self._session,
                refilling.attempt,
                self._trace,
                refilling.positions,
                refilling.partial,
            )
        )

    def moved(self, moved: Moved) -> None:
        self._counters.moves += 1
        self._record(
            SessionMoved(self._session, moved.hops, moved.bytes, moved.duration_s, self._trace)
        )

    def token(self) -> None:
        self._counters.tokens += 1
        self._last_token_s = self.duration_s
        if self._ttft_s is None:
            self._ttft_s = self._last_token_s
            self._record(FirstToken(self._ttft_s, self._session, self._trace))

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
        self._record(
            GenerationFinished(
                outcome=self._outcome,
                tokens=0 if stats is None else stats.completion_tokens,
                refills=0 if stats is None else stats.refills,
                duration_s=self.duration_s,
                session=self._session,
                request=self._trace,
                reused=0 if stats is None else stats.reused,
                ttft_s=self._ttft_s,
                decode_s=self._last_token_s - (self._ttft_s or 0.0),
                inexact=0 if stats is None else stats.inexact,
            )
        )

    def _hold(self) -> None:
        if not self._holding:
            self._holding = True
            self._counters.holds += 1
