"""W3C Trace Context, read and written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet.core.vocabulary import TraceContext

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def test_the_example_of_the_standard_is_read_and_written():
    text = f"00-{TRACE}-{SPAN}-01"

    context = TraceContext.parse(text)

    assert context == TraceContext(TRACE, SPAN, sampled=True)
    assert str(context) == text


@pytest.mark.parametrize(
    "text",
    [
        f"00-{TRACE}-{SPAN}-01-more",  # version 00 ends there
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}",
        f" 00-{TRACE}-{SPAN}-01",
        f"01-{TRACE}-{SPAN}-01-{'x' * 500}",
        "",
    ],
)
def test_what_the_standard_calls_invalid_is_none(text: str):
    assert TraceContext.parse(text) is None


def test_a_later_version_is_read_as_far_as_it_is_known():
    assert TraceContext.parse(f"01-{TRACE}-{SPAN}-03-new") == TraceContext(TRACE, SPAN, True)


def test_other_flags_do_not_make_it_sampled():
    assert TraceContext.parse(f"00-{TRACE}-{SPAN}-fe") == TraceContext(TRACE, SPAN, False)


def test_a_child_is_of_the_same_trace_and_knows_its_parent():
    child = TraceContext(TRACE, SPAN, True).child("1" * 16)

    assert child == TraceContext(TRACE, "1" * 16, True, parent=SPAN)
    assert str(child) == f"00-{TRACE}-{'1' * 16}-01"


@given(st.text())
def test_no_text_raises(text: str):
    context = TraceContext.parse(text)

    assert context is None or TraceContext.parse(str(context)) == context
