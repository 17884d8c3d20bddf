"""Where a session can go back to if its caches cannot be shortened, told alike by node and head.

States that sum up all positions (recurrent and convolutional layers) cannot be shortened, only
copied. So a node copies them where a next turn may want to go on from. Both sides see the same
steps, so both know without a word where that is:

    turn 1      prompt ............ | the last of it, then the answer ....
    marks                           A
    turn 2                                  (goes on)      prompt ........ | ... answer
    marks                                                  B               C

    A, C    the last chunk of a prompt begins; a head may cut it off for that. A template drops
            what an answer thought, and at times the words that opened the answer
    B       a turn begins, which may be asked again
    else    a prompt in one piece is marked at its end

Invariants
    * at most `MARKS_MAX` marks, the latest; none beyond the session's length;
    * a head that is wrong about a mark gets a miss, and refills.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

MARKS_MAX = 2
"""Copies of its states that a session keeps on a node."""


@dataclass(frozen=True, slots=True)
class Marks:
    """Lengths that a session can be cut to, rising. `filling`: its prompt has not ended yet."""

    lengths: tuple[int, ...] = ()
    filling: bool = False

    def before(self, past_length: int, known: int, *, want_token: bool) -> Marks:
        """The marks when a step of `known` positions, guesses apart, begins at `past_length`.

        One of more than a token begins a turn, unless a prompt is under way.
        """
        last_chunk = self.filling and want_token
        begins = not self.filling and known > 1 and past_length > 0
        return self._with(past_length) if begins or last_chunk else self

    def after(self, length: int, known: int, *, want_token: bool) -> Marks:
        """The marks when that step has ended, and the session holds `length` positions."""
        if want_token and known > 1 and not self.filling:
            return self._with(length)
        return self if self.filling == (not want_token) else replace(self, filling=not want_token)

    def cut(self, length: int) -> Marks:
        """The marks of the session when it was shortened to `length`."""
        return Marks(tuple(mark for mark in self.lengths if mark <= length))

    def _with(self, length: int) -> Marks:
        others = [mark for mark in self.lengths if mark < length]
        return replace(self, lengths=(*others, length)[-MARKS_MAX:])
