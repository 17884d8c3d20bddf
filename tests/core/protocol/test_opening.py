"""Which steps may go over a stream that is open."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshnet.core.protocol.limits import Limits
from meshnet.core.protocol.messages import ForwardRequest, Mode
from meshnet.core.protocol.opening import Opening
from meshnet.core.vocabulary import ModelId, SessionId, TraceContext

STEP = ForwardRequest(
    mode=Mode.DECODE,
    session=SessionId("s"),
    past_length=7,
    model=ModelId("m"),
    fingerprint="fp",
    attempt=2,
    wire=1,
    tokens=(3,),
    trace="t",
    owner="o",
    stages=2,
)


def test_a_step_under_another_span_goes_over_the_same_stream():
    """A trace decides nothing, not even which stream is taken."""
    traced = replace(STEP, traceparent=TraceContext("a" * 32, "b" * 16, True))

    assert Opening.of(traced).covers(STEP)
    assert Opening.of(STEP).covers(traced)


@pytest.mark.parametrize("unreadable", ["", "00-abc", "00-" + "0" * 32 + "-" + "b" * 16 + "-01"])
def test_a_traceparent_that_cannot_be_read_is_as_if_absent(unreadable: str):
    opening = Opening.parse("s", [("traceparent", unreadable)], Limits())

    assert opening == Opening(SessionId("s"))


def test_a_stream_covers_the_steps_that_follow():
    opening = Opening.of(STEP)

    assert opening.covers(replace(STEP, past_length=8, tokens=(4,), attempt=3, deadline_ms=5))
    assert replace(opening, onward=True).covers(STEP)


@pytest.mark.parametrize(
    "other",
    [
        {"session": SessionId("t")},
        {"session": None},
        {"model": ModelId("n")},
        {"model": None},
        {"fingerprint": "other"},
        {"wire": 0},
        {"trace": None},
        {"owner": "p"},
        {"stages": 1},
    ],
)
def test_a_step_that_differs_in_what_is_told_once_needs_another_stream(other):
    assert not Opening.of(STEP).covers(replace(STEP, **other))
