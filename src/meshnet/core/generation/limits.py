"""How long a generation waits and how often it tries. Every number a machine obeys is here.

A refill costs a prefill of everything so far, so a flapping node would make a generation
quadratic. Three bounds, each enough to end it: refills without a new token between them, refills
in all (a base, and one more for every `tokens_per_refill` tokens generated), and
the time since trouble began without a new token.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from meshnet.core.vocabulary import DRAFTS_MAX


@dataclass(frozen=True, slots=True)
class StepTimeout:
    """A hop's time for a step: a fixed part, and one per position (a prefill is long)."""

    base_s: float = 20.0
    per_token_s: float = 0.05

    def of(self, tokens: int) -> float:
        return self.base_s + self.per_token_s * tokens


@dataclass(frozen=True, slots=True)
class Backoff:
    """Growing waits: from `first_s`, doubled each time, up to `most_s`, stretched by jitter."""

    first_s: float = 0.1
    most_s: float = 1.0

    def delay_s(self, tries: int, *, jitter: float, at_least_s: float = 0.0) -> float:
        """Wait before try number `tries` (0 is the first); `jitter` in [0, 1) adds up to half."""
        grown = min(self.first_s * 2.0 ** min(tries, 32), self.most_s)
        return max(grown, at_least_s) * (1.0 + 0.5 * min(max(jitter, 0.0), 1.0))


@dataclass(frozen=True, slots=True)
class MoveLimits:
    """When a generation leaves a node that drains, and how long that may take."""

    find_s: float = 10.0
    """To find another way."""
    take_s: float = 60.0
    """To take the session over; its client waits so long at most."""
    alive_s: float = 5.0
    """A node that takes it over is asked so often for a sign of life, and given so long for it."""
    again_s: float = 2.0
    """From a move that failed to the next try."""
    tries_max: int = 3
    """Moves that fail before the layers are filled again instead."""
    bytes_per_s: float = 100e6
    """What a link between nodes is taken to carry: about a gigabit a second."""


@dataclass(frozen=True, slots=True)
class GenerationLimits:
    prefill_chunk: int = 512
    """Positions of one step at most, on routes that take several positions after the first."""
    chunk_grain: int = 128
    step_price: int = 32
    """How a prompt is cut so that all hops work on it at once: see chunking.py."""
    opening: int = 8
    """Positions at the end of a prompt that a next turn may lack, and that are a step of their own
    on routes that can only go back to marks."""
    step: StepTimeout = StepTimeout()
    drafts: int | None = None
    """Guesses sent with a step; None: as many as pay (drafting.py). Never on routes that cannot
    truncate."""
    windows: int | None = None
    """Steps with guesses on their way at once, where nodes hand steps on; None: as many as pay."""
    chains: bool = True
    """Nodes hand steps on to each other, where they can."""
    locate_s: float = 2.0
    """What the hops of a silent chain have to say how far its step got."""
    queue: int = 8
    """A hop that gives signs of life may take so many times longer: others' steps come first."""
    refills_without_progress: int = 6
    refills_base: int = 8
    tokens_per_refill: int = 16
    recover_s: float = 120.0
    """From the first loss or miss after a token until the next token."""
    attempt_jump: int = 1024
    """How far the attempt rises when a node has seen a later one."""
    busy: Backoff = Backoff()
    wait_per_work: float = 4.0
    asked_wait_most_s: float = 5.0
    reroute: Backoff = Backoff()
    move: MoveLimits = MoveLimits()

    def __post_init__(self) -> None:
        for name in ("prefill_chunk", "chunk_grain", "step_price", "opening"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")
        if self.drafts is not None and not 0 <= self.drafts <= DRAFTS_MAX:
            raise ValueError(f"drafts: expected 0 to {DRAFTS_MAX}, got {self.drafts}")
        if self.windows is not None and self.windows < 1:
            raise ValueError(f"windows: expected at least 1, got {self.windows}")

    def least_wait_s(self, retry_after_s: float | None, *, spent_s: float) -> float:
        """How long to wait at least for a node without room; it is bounded.

        As long as the node asks for, and much longer than the work that its refusal made useless:
        else those who wait keep the other hops busy with prefills that lead nowhere.
        """
        asked_s = retry_after_s if retry_after_s is not None and retry_after_s > 0.0 else 0.0
        return min(max(asked_s, self.wait_per_work * spent_s), self.asked_wait_most_s)

    def refills_allowed(self, generated: int) -> int:
        return self.refills_base + generated // self.tokens_per_refill


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    reserve_timeout_s: float = 5.0
    route_wait_s: float = 10.0
    """From the first lack of a route until an answer from a node."""
    poll: Backoff = Backoff(first_s=0.05, most_s=0.25)
    """A node's Retry-After is for clients; the one head that polls it may ask sooner."""
    reroute: Backoff = Backoff()


@dataclass(slots=True)
class RecoveryBudget:
    """What is left of the bounds above; `spend_*` say why nothing is left, or None."""

    limits: GenerationLimits
    spent: int = 0
    streak: int = 0
    waits: int = 0
    recover_by: float | None = field(default=None)

    def progress(self) -> None:
        self.streak = self.waits = 0
        self.recover_by = None

    def spend_refill(self, generated: int, now: float, allowance_s: float) -> str | None:
        """A miss or a loss: it counts each time. `allowance_s` is what a refill itself may take."""
        self.streak += 1
        self.spent += 1
        if self.recover_by is None:
            self.recover_by = now + self.limits.recover_s + allowance_s
        if self.streak > self.limits.refills_without_progress:
            return f"{self.streak - 1} refills without a new token"
        return self._overspent(generated)

    def spend_wait(self, generated: int) -> str | None:
        """A node that asks to wait: the first of a row counts, time bounds the rest."""
        self.waits += 1
        if self.waits > 1:
            return None
        self.spent += 1
        return self._overspent(generated)

    def _overspent(self, generated: int) -> str | None:
        allowed = self.limits.refills_allowed(generated)
        if self.spent > allowed:
            return f"more than {allowed} refills for {generated} tokens"
        return None
