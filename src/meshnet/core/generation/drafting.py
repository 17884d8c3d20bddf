"""The guesses of a generation: what follows its text (lookup.py), as much as pays (payoff.py).

    text so far | x g g g | g g g g | g g g g     window 1: an id that is sure, and guesses
                  window 1  window 2  window 3    window 2: built on all of window 1 being right

Where the nodes idle while a window is on its way, the next ones are sent behind it. The first id
of such a window is sure to the nodes and a guess to the head: it says what the window before
should end with.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from meshnet.core.generation.lookup import Guess, Lookup
from meshnet.core.generation.payoff import Payoff
from meshnet.core.vocabulary import DRAFTS_MAX


@dataclass(frozen=True, slots=True)
class _Window:
    """A step on its way: its guesses, and what it takes for the end of the one before."""

    guesses: tuple[int, ...]
    first: int | None = None
    told: bool = False


class Drafter:
    """The guesses of one generation.

    `fixed` is how many a step has, and `windows` how many are on their way; None: as many as pay.
    `told` ids are known to follow: they are sent first, as many as a step may have.
    """

    def __init__(
        self,
        ids: Sequence[int],
        stop_ids: frozenset[int],
        *,
        fixed: int | None,
        windows: int | None = None,
        told: Sequence[int] = (),
    ) -> None:
        self._ids, self._stop_ids = ids, stop_ids
        self._fixed, self._windows = fixed, windows
        self._told, self._told_from = told, len(ids)
        self._lookup: Lookup | None = None
        self._payoff = Payoff()
        self._seen: Guess | None = None
        self._at = 0
        self._open: deque[_Window] = deque()

    def guesses(self, most: int) -> tuple[int, ...]:
        """Say what may follow the last id: at most `most` ids, and nothing after a stop id."""
        at = len(self._ids) - self._told_from
        if at < len(self._told):
            known = tuple(self._told[at : at + max(most, 0)])
            self._open = deque([_Window(known, told=True)])
            return known
        if self._lookup is None:
            self._lookup = Lookup(self._ids)
        self._lookup.grown()
        self._open.clear()
        self._seen, self._at = self._lookup.guess(DRAFTS_MAX), 0
        ids: tuple[int, ...] = ()
        if self._seen is not None and most >= 1:
            wanted = self._payoff.count(self._seen.match) if self._fixed is None else self._fixed
            ids = self._taken(min(wanted, most))
        self._open.append(_Window(ids))
        return ids

    def further(self, most: int, room: int) -> tuple[int, ...]:
        """Say what one more window would be, at most `most` ids; empty if it does not pay."""
        last = self._open[-1] if self._open else None
        if (
            last is None
            or last.told
            or not last.guesses
            or last.guesses[-1] in self._stop_ids
            or most < 1
        ):
            return ()
        assert self._seen is not None, "there were guesses"
        length = len(self._open[0].guesses)
        windows = self._windows or self._payoff.windows(self._seen.match, length)
        if len(self._open) >= min(windows, room):
            return ()
        ids = self._taken(min(length + 1, most))
        self._open.append(_Window(ids[1:], ids[0]))
        return ids

    def judged(
        self, drawn: Sequence[int], *, took_s: float, work_s: float = 0.0, hops: int = 1
    ) -> None:
        """The oldest step on its way ended, and drew these ids.

        It took so long, of which each of `hops` worked for `work_s`.
        """
        window, seen = self._open.popleft(), self._seen
        if window.told:
            return
        alone = window.first is None
        if alone:
            self._payoff.saw_way(took_s, work_s, hops)
        match, right = None if seen is None else seen.match, len(drawn) - 1
        if seen is None or match is None or (alone and not window.guesses):
            first_right = seen is not None and seen.ids[0] == drawn[0]
            self._payoff.saw_plain(took_s, match=match, right=first_right)
            return
        if window.guesses:
            sent = len(window.guesses)
            took = took_s if alone else None
            self._payoff.saw_verified(took, match=match, guesses=sent, accepted=right)
        if self._open and right == len(window.guesses):
            self._payoff.saw_guess(match, right=self._open[0].first == drawn[-1])

    def _taken(self, count: int) -> tuple[int, ...]:
        """Return the next ids of the copy, up to a stop id."""
        assert self._lookup is not None
        assert self._seen is not None
        ids = self._lookup.copied(self._seen, self._at, count)
        stop = next((at for at, guess in enumerate(ids) if guess in self._stop_ids), len(ids))
        ids = ids[: stop + 1]
        self._at += len(ids)
        return ids
