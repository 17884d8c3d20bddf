"""What may follow a text, looked up in the text itself.

    ids       ... a b c d e ... x a b c          the last three ids were seen before: d e ... follow
    lookup              ^^^^^^^^^^ copied        (the longest of 3, 2, 1 ids, its latest occurrence)

No second model: chats repeat names, code and their own prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

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
    start: int = field(default=0, compare=False)
    period: int = field(default=1, compare=False)
    """Where it is copied from, and after how many ids the copy begins anew."""


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
                guess = Guess((), length, start, len(ids) - start)
                return replace(guess, ids=self.copied(guess, 0, count))
        return None

    def copied(self, guess: Guess, at: int, count: int) -> tuple[int, ...]:
        """Return `count` ids of a guess from the one at `at` on, however long it gets."""
        start, period = guess.start, guess.period
        return tuple(self._ids[start + place % period] for place in range(at, at + count))

    def _forget(self, position: int) -> None:
        for length in MATCHES:
            run = tuple(self._ids[max(position - length, 0) : max(position, 0)])
            if run and self._after.get(run) == position:
                del self._after[run]
