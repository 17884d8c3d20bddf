"""Where a text ends by a stop string, decided character by character.

    text in --push--> [ held: may still become a stop ] --> text out
                                  |
                                  +--> a stop is complete: nothing of it ever leaves

Invariants
    * no part of a stop string that ends the text is ever given out;
    * the result does not depend on how the text was cut into pieces: the first stop to be
      complete wins, and of those complete at the same character the longest;
    * what is held is the longest tail that is a proper prefix of some stop.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopFilter:
    """Pass text on as soon as it cannot belong to a stop string."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._searches = [_Search(stop) for stop in stops]
        self._held = ""
        self.stopped = False
        self.stop: str | None = None
        """The stop string that ended the text."""

    def push(self, text: str) -> str:
        """Take new text, return what may be shown now. After a stop: always empty."""
        if self.stopped:
            return ""
        if not self._searches:
            return text
        seen = self._held + text
        for offset, character in enumerate(text):
            complete = max(search.step(character) for search in self._searches)
            if complete:
                end = len(seen) - len(text) + offset + 1
                self.stopped, self._held = True, ""
                self.stop = seen[end - complete : end]
                return seen[: end - complete]
        held = max(search.matched for search in self._searches)
        self._held = seen[len(seen) - held :]
        return seen[: len(seen) - held]

    def flush(self) -> str:
        """The text has ended without a stop: what was held belongs to it."""
        held, self._held = self._held, ""
        return held


class _Search:
    """Knuth-Morris-Pratt: `matched` characters at the end of the text begin the stop string."""

    def __init__(self, stop: str) -> None:
        if not stop:
            raise ValueError("stop: expected a non-empty string")
        self._stop = stop
        self._fallback = _fallbacks(stop)
        self.matched = 0

    def step(self, character: str) -> int:
        """Take one character; return the stop's length if it is complete now, else 0."""
        while self.matched and self._stop[self.matched] != character:
            self.matched = self._fallback[self.matched - 1]
        if self._stop[self.matched] == character:
            self.matched += 1
        return self.matched if self.matched == len(self._stop) else 0


def _fallbacks(stop: str) -> list[int]:
    fallbacks = [0] * len(stop)
    matched = 0
    for index in range(1, len(stop)):
        while matched and stop[matched] != stop[index]:
            matched = fallbacks[matched - 1]
        if stop[matched] == stop[index]:
            matched += 1
        fallbacks[index] = matched
    return fallbacks
