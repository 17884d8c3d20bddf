"""What follows a step that did not end in its answer: where a generation turns next.

    a refusal, a loss, silence ──▶ Refill   now, along the same route
                                   Waiting  until a node has room, then refill
                                   Rerouting, then refill
                                   Fail     nothing more is tried

Decides and counts; the machine acts. Every recovery but one for want of a capability is paid for
from the budget (limits.py), so a generation that gets nowhere ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from meshnet.core.generation.limits import GenerationLimits, RecoveryBudget
from meshnet.core.generation.pipeline import Question
from meshnet.core.generation.questions import Questions
from meshnet.core.generation.refusals import Verdict, failure_of, verdict_of
from meshnet.core.generation.sequence import CacheUse, TokenSequence
from meshnet.core.generation.states import Rerouting, State, Waiting
from meshnet.core.generation.transcript import Fail, FailureCode, RefillReason, Reroute
from meshnet.core.protocol.messages import Refusal
from meshnet.core.vocabulary import Hop, HopLost, MissReason, SessionDescription

WAITS_HERE = 2
"""How often a node is waited for before another route is looked for, and so on in turn."""


@dataclass(frozen=True, slots=True)
class Refill:
    """Fill again what was lost, now."""

    reason: RefillReason

    @property
    def salvages(self) -> bool:
        """Whether hops may go on with what they hold: none of them is what was wrong."""
        return self.reason in SALVAGING


SALVAGING = {RefillReason.MISS, RefillReason.LOST, RefillReason.MOVED, RefillReason.CHAIN}

Turn = Refill | Waiting | Rerouting | Fail


class Recovery:
    """The recoveries of one generation, which ends at `deadline_at` whatever happens."""

    def __init__(
        self,
        limits: GenerationLimits,
        sequence: TokenSequence,
        questions: Questions,
        *,
        deadline_at: float,
        jitter: Callable[[], float],
    ) -> None:
        self._limits, self._sequence, self._questions = limits, sequence, questions
        self._deadline_at, self._jitter = deadline_at, jitter
        self._budget = RecoveryBudget(limits)

    def progress(self) -> None:
        """A token came: trouble is over."""
        self._budget.progress()
        self._questions.progress()

    @property
    def until(self) -> float:
        """When the generation ends if no token comes: at its deadline, or that of its trouble."""
        by = self._budget.recover_by
        return self._deadline_at if by is None else min(self._deadline_at, by)

    def late(self, state: State, now: float) -> Fail:
        """Say what a generation waited for that ran out of time."""
        match state:
            case Waiting(_, Refusal() as refusal) | Rerouting(refusal=Refusal() as refusal):
                return Fail(FailureCode.OVERLOADED, refusal.message, refusal.retry_after_s)
            case Rerouting(ask, no_route=message):
                return Fail(FailureCode.NO_ROUTE, message or ask.reason)
        return self._late(now)

    def _late(self, now: float) -> Fail:
        if now >= self._deadline_at:
            return Fail(FailureCode.TIMEOUT, "the request's deadline has passed")
        return Fail(FailureCode.UPSTREAM, "no new token in the time for recovery")

    def refused(self, question: Question, hop: Hop, refusal: Refusal, now: float) -> Turn:
        match verdict_of(refusal, question.forward.request.mode):
            case Verdict.MISS:
                # Past that length all that was cached is wrong, on every hop.
                every = refusal.reason is MissReason.POSITION_LIMIT
                self._questions.missed(
                    question.step, self._questions.route.hops if every else (hop,)
                )
                return self.refill(RefillReason.MISS, refusal.message, now)
            case Verdict.CHAIN_BROKEN:
                return self.chain_broken(f"{hop.node}: {refusal.message}", now)
            case Verdict.CACHING_OFF:
                self._sequence.degrade(CacheUse.NONE)
                return Refill(RefillReason.DEGRADED)
            case Verdict.STALE:
                self._questions.attempt += self._limits.attempt_jump
                return self.refill(RefillReason.STALE, refusal.message, now)
            case Verdict.WAIT:
                return self._wait(hop, refusal, now)
            case Verdict.MOVED:
                return self._reroute(None, RefillReason.MOVED, refusal.message, now)
            case Verdict.LOST:
                return self.lost(hop, f"{refusal.code.wire_name}: {refusal.message}", now)
            case Verdict.NUMERICAL if self._questions.guessed:
                # The guesses may be to blame: a token that the model cannot compute with.
                self._questions.stop_guessing()
                return self.refill(RefillReason.NUMERICAL, refusal.message, now)
            case Verdict.FATAL | Verdict.NUMERICAL:
                message = f"{hop.node}: {refusal.code.wire_name}: {refusal.message}"
                return Fail(failure_of(refusal), message, refusal.retry_after_s)

    def refill(self, reason: RefillReason, why: str, now: float) -> Turn:
        return self._exhausted(why, now) or Refill(reason)

    def chain_broken(self, why: str, now: float) -> Turn:
        """Nobody knows which hop failed: asked one by one, it shows."""
        self._questions.leave_chain()
        return self.refill(RefillReason.CHAIN, why, now)

    def silent(
        self, question: Question, found: Sequence[SessionDescription | HopLost | None], now: float
    ) -> Turn:
        """A chain fell silent. A hop of it that is silent too is lost; else the way there was."""
        for hop, state in zip(question.forward.hops, found, strict=False):
            if isinstance(state, HopLost):
                return self.lost(hop, f"silent, and so was its chain: {state}", now)
        got = [hop.node for hop, state in zip(question.forward.hops, found, strict=False)
               if _has(state, question)]  # fmt: skip
        return self.chain_broken(f"a step was lost behind {got[-1] if got else 'the head'}", now)

    def lost(self, hop: Hop, why: str, now: float) -> Turn:
        return self._reroute(hop, RefillReason.LOST, f"{hop.node}: {why}", now)

    def no_route(self, state: Rerouting, message: str, now: float) -> Rerouting:
        """Nobody serves some layers now: ask again, later each time."""
        delay_s = self._limits.reroute.delay_s(state.tries, jitter=self._jitter())
        return replace(
            state, tries=state.tries + 1, ask_at=now + delay_s, no_route=message, refusal=None
        )

    def _wait(self, hop: Hop, refusal: Refusal, now: float) -> Turn:
        exhausted = self._budget.spend_wait(self._sequence.generated)
        if exhausted is not None:
            message = f"{exhausted}; last: {refusal.message}"
            return Fail(FailureCode.OVERLOADED, message, refusal.retry_after_s)
        spent_s = now - self._questions.filling_since
        delay_s = self._limits.busy.delay_s(
            self._budget.waits - 1,
            jitter=self._jitter(),
            at_least_s=self._limits.least_wait_s(refusal.retry_after_s, spent_s=spent_s),
        )
        if self._budget.waits % WAITS_HERE:
            return Waiting(now + delay_s, refusal)
        ask = Reroute(hop, refusal.message, self._questions.fingerprint, lost=False)
        return Rerouting(ask, RefillReason.WAITED, 0, now + delay_s, refusal=refusal)

    def _reroute(self, lost: Hop | None, reason: RefillReason, why: str, now: float) -> Turn:
        if now >= self.until:
            return self._late(now)
        if (ended := self._exhausted(why, now)) is not None:
            return ended
        ask = Reroute(lost, why, self._questions.fingerprint, keep=self._questions.kept(lost))
        # A second loss in a row waits first: a node that dies on every step is not hammered.
        repeated = self._budget.streak - 2
        delay_s = self._limits.reroute.delay_s(repeated, jitter=self._jitter())
        return Rerouting(ask, reason, tries=0, ask_at=None if repeated < 0 else now + delay_s)

    def _exhausted(self, why: str, now: float) -> Fail | None:
        """Spend one recovery; the end, if none was left."""
        hops = len(self._questions.route.hops)
        allowance_s = self._limits.step.of(self._sequence.length) * hops
        exhausted = self._budget.spend_refill(self._sequence.generated, now, allowance_s)
        if exhausted is None:
            return None
        return Fail(FailureCode.UPSTREAM, f"{exhausted}; last: {why}")


def _has(state: SessionDescription | HopLost | None, question: Question) -> bool:
    """Whether a hop that answered holds the step's positions."""
    if not isinstance(state, SessionDescription):
        return False
    asked = question.forward.request
    return state.attempt == asked.attempt and state.length >= question.step.length_after
