"""What a head adds to a token, over a node that costs nothing."""

from __future__ import annotations

from itertools import count

from meshnet.cli.head_cost import TOKENS, WARMUPS, head_token_s


async def test_it_is_the_usual_time_between_two_tokens():
    """One in ten takes longer, as when something else has the processor."""
    asked = count()
    now = [0.0]

    def clock() -> float:
        now[0] += 9.0 if next(asked) % 10 == 0 else 0.25
        return now[0]

    assert await head_token_s(clock) == 0.25
    assert next(asked) == TOKENS > 2 * WARMUPS


async def test_a_head_takes_time():
    assert await head_token_s() > 0
