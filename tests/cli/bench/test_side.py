"""A stream of tokens as a client sees it, where two tokens may come in one piece."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet.cli.bench.side import Stream


def test_the_rate_leaves_out_the_prefill():
    stream = Stream(tokens=5, at_s=(10.0, 10.5, 11.0, 11.5, 12.0))

    assert (stream.ttft_s, stream.tokens_per_s) == (10.0, 2.0)


def test_tokens_that_came_in_one_piece_are_placed_by_proportion():
    stream = Stream(tokens=5, at_s=(1.0, 2.0, 3.0))

    assert [stream.token_at_s(index) for index in range(5)] == [1.0, 1.5, 2.0, 2.5, 3.0]
    assert stream.tokens_per_s == 2.0


@given(st.lists(st.floats(0.001, 1.0), min_size=1, max_size=30), st.integers(0, 30))
def test_placed_tokens_keep_order_and_ends(gaps: list[float], merged: int):
    at_s = tuple(sum(gaps[: index + 1]) for index in range(len(gaps)))
    stream = Stream(tokens=len(at_s) + merged, at_s=at_s)

    placed = [stream.token_at_s(index) for index in range(stream.tokens)]

    assert placed == pytest.approx(sorted(placed))
    assert placed[0] == at_s[0]
    assert placed[-1] == pytest.approx(at_s[-1] if stream.tokens > 1 else at_s[0])


@pytest.mark.parametrize(("tokens", "at_s"), [(0, (1.0,)), (1, ()), (1, (1.0, 2.0))])
def test_a_stream_that_cannot_be_is_refused(tokens: int, at_s: tuple[float, ...]):
    with pytest.raises(ValueError, match="arrivals"):
        Stream(tokens=tokens, at_s=at_s)
