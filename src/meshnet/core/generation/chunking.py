"""How a prompt is cut into steps, so that the hops of a route work on it at the same time.

    hop 0   | c0 | c1 | c2 |              with hops alike and `price + positions` as the time of
    hop 1        | c0 | c1 | c2 |         a step on each, chunks of L positions take
    hop 2             | c0 | c1 | c2 |    sum of all times + (hops - 1) * the longest

Many small chunks pay `price` often (weights read, a way there and back); few large ones leave hops
idle. Pure functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

APART_LEAST = 7
"""A prompt is cut for its opening if the rest of it is so many times as long."""


@dataclass(frozen=True, slots=True)
class Chunking:
    """What chunks may be: at most `most` positions, more than one `grain` only in whole ones."""

    most: int = 512
    grain: int = 128
    """Half of the cells in which attention is computed: ends are put at its multiples."""
    price: int = 32
    """What a step costs beside its positions, in positions. Measured on a core: 11 at the least,
    for reading int8 weights; a network adds to it."""

    def length(self, positions: int, hops: int) -> int:
        """Return the chunk length that takes `positions` through `hops` soonest."""
        if positions <= min(self.grain, self.most):
            return self.most
        best = self.most
        for length in range(self.grain, self.most, self.grain):
            if self.span(positions, length, hops) < self.span(positions, best, hops):
                best = length
        return best

    def span(self, positions: int, length: int, hops: int) -> int:
        """Return the time of a pipeline of chunks of `length`, in positions."""
        chunks = (positions + length - 1) // length
        longest = min(positions, length) + self.price
        return positions + chunks * self.price + (hops - 1) * longest

    def ends(self, past: int, length: int, hops: int) -> Iterator[int]:
        """Yield where each chunk of [past, length) ends; the last one is `length`."""
        chunk = self.length(length - past, hops)
        while past < length:
            end = past + chunk
            aligned = end - end % self.grain
            past = min(aligned if aligned > past else end, length)
            yield past


def opening_apart(ends: Iterable[int], past: int, length: int, opening: int) -> Iterator[int]:
    """Let the last `opening` of the positions [past, length) be a chunk of their own.

    Templates end a prompt with words that open the answer, and may drop them with what it thought
    when they render the next turn; before them a session can be gone on with. Not for a prompt so
    short that little is saved.
    """
    cut = length - opening
    if cut - past < APART_LEAST * opening:
        yield from ends
        return
    yield from (end for end in ends if end < cut)
    yield from (cut, length)
