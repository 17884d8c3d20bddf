"""What a draft means to the tail that verifies it and to the head that made it.

    ids sent      t  g1 g2 g3          t is known, g are guesses
    drawn after   d0 d1 d2             d0 == g1, d1 == g2, d2 != g3: two accepted, d2 is new

Every draw is the one a step without guesses would have made: it sees the same ids before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from meshnet.core.vocabulary import Drawn, SampledToken


def verified(guesses: Sequence[int], draw: Callable[[int], SampledToken]) -> Drawn:
    """Draw until a draw differs from its guess, or one more than there are guesses.

    `draw(n)` draws the token that follows the first n guesses.
    """
    tokens = [draw(0)]
    for count, guess in enumerate(guesses, start=1):
        if tokens[-1].token_id != guess:
            break
        tokens.append(draw(count))
    return Drawn(tuple(tokens))


def accepted(guesses: Sequence[int], drawn: Drawn) -> int | None:
    """How many guesses `drawn` confirms; None if it can be no answer to them."""
    confirmed = drawn.ids[:-1]
    return len(confirmed) if tuple(guesses[: len(confirmed)]) == confirmed else None
