"""Prompts of an exact number of tokens, no two of which begin alike.

Plain words rather than random ids: a model then answers in words too, and no side is slowed by
text that is no text. The first words are the prompt's number, so nothing of one can be reused
for another.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

WORDS = """
machine river stone letter window garden engine winter bridge paper silver market number island
doctor planet kitchen soldier mirror teacher harbour morning forest captain signal counts opens
follows carries answers builds crosses reads forgets measures paints repairs slowly often never
gladly almost twice again early together seldom quickly still perhaps the a every another that
this one some and but while because until where under behind
"""


class Prompts:
    """Makes prompts for one model; `encode` is its tokenizer's, without special tokens."""

    def __init__(self, encode: Callable[[str], Sequence[int]], *, salt: int = 0) -> None:
        self._encode, self._salt = encode, salt

    def ids(self, number: int, tokens: int) -> tuple[int, ...]:
        """Return the prompt of that number: the same for every side, unlike all others."""
        drawn = random.Random(f"{self._salt}/{number}")
        known = WORDS.split()
        words = [drawn.choice(known) for _ in range(8)]
        while True:
            ids = tuple(self._encode(f"{_name(number, self._salt)}: {' '.join(words)}"))
            if len(ids) >= tokens:
                return ids[:tokens]
            words += [drawn.choice(known) for _ in range(tokens - len(ids) + 8)]

    def continued(self, text: str) -> tuple[int, ...]:
        """Return the ids of `text` that follows something."""
        return tuple(self._encode(text))


def _name(number: int, salt: int) -> str:
    """A name that differs in its first characters."""
    digits = "kmnprstvzb"
    return "".join(digits[int(each)] for each in f"{number:04d}"[::-1] + str(salt))
