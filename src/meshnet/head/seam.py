"""What a caller of the head gives and gets. Values and the one error."""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import blake2b

from meshnet.core.generation.accounting import HopStats
from meshnet.core.generation.transcript import FailureCode, FinishReason
from meshnet.core.vocabulary import (
    MeshnetError,
    SampledToken,
    SamplingParams,
    SessionId,
    TraceContext,
)


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One prompt to complete. `trace` is the request id that logs of all hops repeat.

    `owner` is an opaque tag (1 to 32 of A-Z a-z 0-9 . _ -): owners take turns on the nodes. Without
    one the generation is an owner of its own.

    `prefix_owner` names whose ended sessions this one may go on from, and for whom it is kept in
    turn; without one it is kept for nobody.

    `traceparent` is the span that the generation is under.
    """

    prompt: tuple[int, ...]
    tokens_max: int
    sampling: SamplingParams
    stop_ids: frozenset[int]
    deadline_s: float
    trace: str | None = None
    owner: str | None = None
    prefix_owner: str | None = None
    traceparent: TraceContext | None = None

    def __post_init__(self) -> None:
        if not self.prompt or self.tokens_max < 1:
            raise ValueError(
                f"generation: expected a prompt and tokens_max >= 1, "
                f"got {len(self.prompt)} tokens and {self.tokens_max}"
            )

    def traced_as(self, session: SessionId) -> GenerationRequest:
        """Return the same with a span of its own, which everything about it is under."""
        if self.traceparent is None:
            return self
        span_id = blake2b(session.encode(), digest_size=8).hexdigest()
        return replace(self, traceparent=self.traceparent.child(span_id))


@dataclass(frozen=True, slots=True)
class TokenEvent:
    token: SampledToken
    cached_tokens: int = 0
    """Tokens of the prompt that an earlier session held; equal in all events of a generation."""


@dataclass(frozen=True, slots=True)
class FinishEvent:
    """The last item of a generation that succeeded."""

    reason: FinishReason
    session: SessionId
    prompt_tokens: int
    completion_tokens: int
    prefills: int
    refills: int
    ttft_s: float | None
    """From the call of `generate`, so the time spent waiting for a place is in it."""
    duration_s: float
    hops: tuple[HopStats, ...]
    guessed: int = 0
    """Draft tokens sent for verification."""
    accepted: int = 0
    """Those of them that were right; the answer holds them like any other token."""
    cached_tokens: int = 0
    """Tokens of the prompt that an earlier session held."""


class GenerationFailed(MeshnetError):
    """No answer, or no more of it. What was yielded before stays valid."""

    def __init__(self, code: FailureCode, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after_s = retry_after_s
