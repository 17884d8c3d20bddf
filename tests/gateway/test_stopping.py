"""Stop strings, decided on characters alone."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gateway.api import truncated

from meshnet.gateway.stopping import StopFilter


def shown(stops: list[str], parts: list[str]) -> tuple[str, bool]:
    stop_filter = StopFilter(stops)
    text = "".join(stop_filter.push(part) for part in parts)
    if not stop_filter.stopped:
        text += stop_filter.flush()
    return text, stop_filter.stopped


def test_a_stop_over_two_pieces_shows_nothing_of_itself():
    """Pit A01."""
    stop_filter = StopFilter(["own fox"])

    first = stop_filter.push(" brown")
    second = stop_filter.push(" fox jumps")

    assert (first, second) == (" br", "")
    assert stop_filter.stopped


def test_a_stop_inside_a_piece_cuts_there():
    """Pit A02."""
    assert shown(["fox"], ["The", " fox. It"]) == ("The ", True)


def test_a_tail_that_only_looked_like_a_stop_is_given_out_at_the_end():
    assert shown(["END!"], ["all", " EN", "D"]) == ("all END", False)


def test_a_failed_start_that_holds_another_start_is_still_found():
    assert shown(["aab"], ["aaa", "b!"]) == ("a", True)


def test_the_longest_of_stops_complete_at_once_is_removed():
    assert shown(["c", "abc"], ["xab", "c"]) == ("x", True)


def test_only_what_can_still_become_a_stop_is_held():
    stop_filter = StopFilter(["own fox"])

    assert stop_filter.push("town f") == "t"
    assert stop_filter.push("a") == "own fa"


def test_an_empty_stop_cannot_be_asked_for():
    with pytest.raises(ValueError, match="non-empty"):
        StopFilter([""])


few = st.text(alphabet="ab\u00e9😀", max_size=12)


@given(
    stops=st.lists(few.filter(bool).map(lambda stop: stop[:4]), max_size=4),
    parts=st.lists(few, max_size=8),
)
@settings(derandomize=True, max_examples=400, deadline=None)
def test_streamed_text_is_the_truncation_of_the_whole_text(stops: list[str], parts: list[str]):
    """Pits A01 and A02, for any stops and any cutting into pieces."""
    assert shown(stops, parts) == truncated(stops, "".join(parts))
