"""Where sessions can go back to: found out alike by whoever sees the same steps."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from meshnet.core.protocol.marks import MARKS_MAX, Marks


def stepped(marks: Marks, past: int, known: int, *, want_token: bool = True) -> Marks:
    """The marks after a step of `known` positions, none of them guesses."""
    marks = marks.before(past, known, want_token=want_token)
    return marks.after(past + known, known, want_token=want_token)


def decoded(marks: Marks, past: int, tokens: int) -> Marks:
    for position in range(past, past + tokens):
        marks = stepped(marks, position, 1)
    return marks


def test_a_prompt_in_one_piece_is_marked_at_its_end():
    marks = decoded(stepped(Marks(), 0, 60), 60, 11)

    assert marks.lengths == (60,)


def test_a_prompt_in_chunks_is_marked_where_the_last_one_begins():
    marks = stepped(Marks(), 0, 40, want_token=False)
    marks = stepped(marks, 40, 40, want_token=False)
    marks = stepped(marks, 80, 15)

    assert marks.lengths == (80,)


def test_a_last_chunk_of_one_position_is_one_as_well():
    marks = stepped(Marks(), 0, 40, want_token=False)

    assert stepped(marks, 40, 1).lengths == (40,)


def test_a_next_turn_is_marked_where_it_begins_and_where_its_prompt_ends():
    marks = decoded(stepped(Marks(), 0, 60), 60, 11)

    marks = decoded(stepped(marks, 71, 5), 76, 9)

    assert marks.lengths == (71, 76)


def test_a_next_turn_in_chunks_is_marked_where_it_and_its_last_chunk_begin():
    marks = decoded(stepped(Marks(), 0, 60), 60, 11)

    marks = stepped(marks, 71, 4, want_token=False)
    marks = stepped(marks, 75, 4, want_token=False)
    marks = stepped(marks, 79, 2)

    assert marks.lengths == (71, 79)


def test_a_turn_from_the_end_of_the_last_prompt_keeps_that_mark():
    marks = decoded(stepped(Marks(), 0, 60), 60, 11).cut(60)

    assert stepped(marks, 60, 8).lengths == (60, 68)


def test_a_prefill_begins_nothing():
    assert stepped(Marks(), 0, 7).lengths == (7,)


def test_a_token_and_its_guesses_mark_nothing():
    marks = stepped(Marks(), 0, 60)

    # Of a decode with four guesses one position is known.
    assert marks.before(60, 1, want_token=True).after(65, 1, want_token=True) == marks


@settings(derandomize=True)
@given(st.lists(st.tuples(st.integers(1, 9), st.booleans(), st.integers(0, 30)), max_size=30))
def test_marks_are_few_rising_and_within_the_session(steps):
    marks, length = Marks(), 0
    for known, want_token, undone in steps:
        marks = stepped(marks, length, known, want_token=want_token)
        length += known
        if undone and marks.lengths and not marks.filling:
            length = max(marks.lengths[0], length - undone)
            marks = marks.cut(length)

        assert len(marks.lengths) <= MARKS_MAX
        assert list(marks.lengths) == sorted(set(marks.lengths))
        assert all(0 < mark <= length for mark in marks.lengths)
