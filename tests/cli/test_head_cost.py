"""What a head adds to a token, over a node that costs nothing."""

from __future__ import annotations

from itertools import count

from meshnet.cli.head_cost import TOKENS, WARMUPS, head_token_s


async def test_it_is_the_usual_time_between_two_tokens_and_nothing_of_what_is_done_between_them():
    """One in seven takes longer, as when something else has the processor."""
    asked, now = count(), [0.0]

    def clock() -> float:
        now[0] += 9.0 if next(asked) % 7 == 0 else 0.25
        return now[0]

    def others() -> None:
        now[0] += 100.0

    # Each token the clock is read three times, of which one is the end of what is done between.
    assert await head_token_s(others, clock) == 0.5
    assert next(asked) == 3 * TOKENS > 6 * WARMUPS


async def test_a_head_takes_time():
    assert await head_token_s(lambda: None) > 0
