"""How many guesses pay, and how many windows of them at once: learnt from what steps took.

A guess costs little where a step costs mostly weights or distance, and something where it is
arithmetic, so both sides are measured: how often a guess after so long a match was right (also
where none was sent), and what a position adds to a step. The number of guesses is the one with the
most expected tokens for its time. Where that is none a few are tried after ever longer pauses, and
only if their price alone is against them.

A further window, sent before the one before it is answered, is lost unless all of that was right.
It pays where nodes would idle meanwhile, since a step's way is longer than its work, and where it
is right more often than not. Deterministic: no clock of its own, no randomness.
"""

from __future__ import annotations

from meshnet.core.vocabulary import DRAFTS_MAX


class Payoff:
    """How many guesses pay. Learns from every step, also from guesses that were not sent.

    A step with n guesses takes `1 + cost * n` times as long as one without.
    """

    def __init__(self) -> None:
        self._rates = dict(RATES)
        self._cost, self._costs_seen = COST, 0
        self._step_s, self._steps_seen = 0.0, 0
        self._pause, self._pauses = 0, 0
        self._idle: float | None = None

    def count(self, match: int) -> int:
        """Say how many guesses to send after a match of `match` ids; 0 is a step without."""
        if self._steps_seen < STEPS_LEAST:
            return 0
        rate = self._rates[match]
        if best := _best(rate, self._cost):
            self._pauses = 0
            return best
        if not _best(rate, self._cost / PROBE_HOPE):
            return 0
        return self._probe()

    def saw_plain(self, took_s: float, *, match: int | None, right: bool) -> None:
        """A step without guesses ended. After a match: would the first guess have been right?"""
        self._steps_seen += 1
        weight = max(STEP_WEIGHT, 1.0 / self._steps_seen)
        self._step_s += weight * (took_s - self._step_s)
        if match is not None:
            self._saw_verdict(match, right)

    def saw_verified(
        self, took_s: float | None, *, match: int, guesses: int, accepted: int
    ) -> None:
        """A step with guesses ended, and the first `accepted` of them were right.

        None for its time: it waited for others, so that says nothing.
        """
        for _ in range(accepted):
            self._saw_verdict(match, True)
        if accepted < guesses:
            self._saw_verdict(match, False)
        if self._step_s > 0.0 and took_s is not None:
            cost = min(max((took_s / self._step_s - 1.0) / guesses, 0.0), COST_MAX)
            self._costs_seen += 1
            weight = COST_FELL_WEIGHT if cost < self._cost / 2 else COST_WEIGHT
            weight = max(weight, 1.0 / (self._costs_seen + 1))
            self._cost += weight * (cost - self._cost)

    def windows(self, match: int, guesses: int) -> int:
        """Say how many windows may be on their way at once, each of so many guesses."""
        whole = self._rates[match] ** (guesses + 1)
        count, sure = 1, whole
        while count <= (self._idle or 0.0) and sure >= WHOLE_LEAST:
            count += 1
            sure *= whole
        return count

    def saw_way(self, took_s: float, work_s: float, hops: int) -> None:
        """A step alone on its way was so long on it, of which each of its hops worked `work_s`."""
        if work_s > 0.0:
            idle = max(took_s - hops * work_s, 0.0) / work_s
            self._idle = (
                idle if self._idle is None else self._idle + IDLE_WEIGHT * (idle - self._idle)
            )

    def saw_guess(self, match: int, *, right: bool) -> None:
        """What a window was to begin with was drawn, or something else."""
        self._saw_verdict(match, right)

    def _saw_verdict(self, match: int, right: bool) -> None:
        self._rates[match] += RATE_WEIGHT * (right - self._rates[match])

    def _probe(self) -> int:
        """Now and then send guesses that seem not to pay: what they cost may have changed."""
        if self._pause > 0:
            self._pause -= 1
            return 0
        self._pause = PAUSE << min(self._pauses, PAUSES_MAX)
        self._pauses += 1
        return PROBE


RATES = {3: 0.6, 2: 0.4, 1: 0.1}
"""How often a guess is right, by the length of its match, before anything is known."""
COST = 0.2
COST_MAX = 2.0
COST_WEIGHT = RATE_WEIGHT = 0.15
COST_FELL_WEIGHT = 0.5
"""Guesses that became cheap are seen in rare probes only, so each of them counts for more."""
STEP_WEIGHT = 0.1
STEPS_LEAST = 2
"""Steps without guesses that come first: what guesses cost is measured against them."""
IDLE_WEIGHT = 0.2
WHOLE_LEAST = 0.5
"""How likely all must be right that a further window builds on."""
GAIN_LEAST = 1.02
"""What guesses must bring at least: all figures are estimates."""
PROBE = 2
PROBE_HOPE = 4.0
"""A probe is worth its time only if guesses would pay at a cost so many times lower."""
PAUSE, PAUSES_MAX = 32, 6


def _best(rate: float, cost: float) -> int:
    """Return the count of guesses with the most expected tokens for its time; 0: none pays."""
    best, best_gain = 0, GAIN_LEAST
    tokens, run = 1.0, 1.0
    for guesses in range(1, DRAFTS_MAX + 1):
        run *= rate
        tokens += run
        gain = tokens / (1.0 + cost * guesses)
        if gain > best_gain:
            best, best_gain = guesses, gain
    return best
