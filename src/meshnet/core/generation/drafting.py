"""Guesses at the tokens that follow, looked up in the text so far, and how many of them pay.

    ids       ... a b c d e ... x a b c          the last three ids were seen before: d e ... follow
    lookup              ^^^^^^^^^^ copied        (the longest of 3, 2, 1 ids, its latest occurrence)

No second model: chats repeat names, code and their own prompts. A guess costs little where a step
costs mostly weights or distance, and something where it is arithmetic, so both sides are measured:
how often a guess after so long a match was right (also where none was sent), and what a position
adds to a step. The number of guesses is the one with the most expected tokens for its time. Where
that is none a few are tried after ever longer pauses, and only if their price alone is against
them. Deterministic: no clock of its own, no randomness.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshnet.core.vocabulary import DRAFTS_MAX

MATCHES = (3, 2, 1)
"""Lengths of the runs of ids looked up, the longest first."""
WINDOW = 8192
"""Ids back from the end that are looked up; older ones are forgotten."""
LOOKED_AT_ONCE = 512
"""Ids that one call takes in: a long prompt holds nobody up, it is known after a few steps."""


@dataclass(frozen=True, slots=True)
class Guess:
    """What may follow, and how many ids agreed where it was seen before."""

    ids: tuple[int, ...]
    match: int


class Lookup:
    """Where each short run of ids occurred last. Time and memory per id are constant."""

    def __init__(self, ids: Sequence[int]) -> None:
        """`ids` may only grow, and only by what `grown` is told of."""
        self._ids = ids
        self._after: dict[tuple[int, ...], int] = {}
        self._known = max(1, len(ids) - WINDOW)

    def __len__(self) -> int:
        """How many runs are known."""
        return len(self._after)

    def grown(self) -> None:
        """Take in ids added since, a bounded number of them."""
        known = min(len(self._ids), self._known + LOOKED_AT_ONCE)
        # A run counts once something follows it, so the run at the end finds an earlier one.
        for position in range(self._known, known):
            for length in MATCHES:
                if length <= position:
                    self._after[tuple(self._ids[position - length : position])] = position
            self._forget(position - WINDOW)
        self._known = known

    def guess(self, count: int) -> Guess | None:
        """Return `count` guesses, None if the end of the ids is new."""
        ids = self._ids
        for length in MATCHES:
            start = self._after.get(tuple(ids[len(ids) - length :]))
            if start is not None and length <= len(ids):
                # A run that reaches the end goes on with its own copy: a loop repeats itself.
                period = len(ids) - start
                return Guess(tuple(ids[start + at % period] for at in range(count)), length)
        return None

    def _forget(self, position: int) -> None:
        for length in MATCHES:
            run = tuple(self._ids[max(position - length, 0) : max(position, 0)])
            if run and self._after.get(run) == position:
                del self._after[run]


class Payoff:
    """How many guesses pay. Learns from every step, also from guesses that were not sent.

    A step with n guesses takes `1 + cost * n` times as long as one without.
    """

    def __init__(self) -> None:
        self._rates = dict(RATES)
        self._cost, self._costs_seen = COST, 0
        self._step_s, self._steps_seen = 0.0, 0
        self._pause, self._pauses = 0, 0

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

    def saw_verified(self, took_s: float, *, match: int, guesses: int, accepted: int) -> None:
        """A step with guesses ended, and the first `accepted` of them were right."""
        for _ in range(accepted):
            self._saw_verdict(match, True)
        if accepted < guesses:
            self._saw_verdict(match, False)
        if self._step_s > 0.0:
            cost = min(max((took_s / self._step_s - 1.0) / guesses, 0.0), COST_MAX)
            self._costs_seen += 1
            weight = COST_FELL_WEIGHT if cost < self._cost / 2 else COST_WEIGHT
            weight = max(weight, 1.0 / (self._costs_seen + 1))
            self._cost += weight * (cost - self._cost)

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


class Drafter:
    """The guesses of one generation. `fixed` is their number; None: as many as pay."""

    def __init__(self, ids: Sequence[int], stop_ids: frozenset[int], *, fixed: int | None) -> None:
        self._ids, self._stop_ids, self._fixed = ids, stop_ids, fixed
        self._lookup: Lookup | None = None
        self._payoff = Payoff()
        self._seen: Guess | None = None
        self._sent = 0

    def guesses(self, most: int) -> tuple[int, ...]:
        """Say what may follow the last id: at most `most` ids, and nothing after a stop id."""
        if self._lookup is None:
            self._lookup = Lookup(self._ids)
        self._lookup.grown()
        self._seen, self._sent = self._lookup.guess(DRAFTS_MAX), 0
        if self._seen is None or most < 1:
            return ()
        wanted = self._payoff.count(self._seen.match) if self._fixed is None else self._fixed
        ids = self._seen.ids[: min(wanted, most)]
        stop = next((at for at, guess in enumerate(ids) if guess in self._stop_ids), len(ids))
        ids = ids[: stop + 1]
        self._sent = len(ids)
        return ids

    def judged(self, drawn: Sequence[int], *, took_s: float) -> None:
        """The step that `guesses` was asked for ended, and drew these ids."""
        seen, sent = self._seen, self._sent
        self._seen, self._sent = None, 0
        if seen is not None and sent:
            right = len(drawn) - 1
            self._payoff.saw_verified(took_s, match=seen.match, guesses=sent, accepted=right)
        elif seen is not None:
            right = seen.ids[0] == drawn[0]
            self._payoff.saw_plain(took_s, match=seen.match, right=right)
        else:
            self._payoff.saw_plain(took_s, match=None, right=False)
