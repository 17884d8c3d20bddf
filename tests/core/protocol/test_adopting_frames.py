"""What a frame says of a session that goes on as another, and of one that is left."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshnet.core.protocol.frames import Ending, decode_step, encode_release, encode_step
from meshnet.core.protocol.limits import Limits
from meshnet.core.protocol.messages import ForwardRequest, Mode
from meshnet.core.protocol.opening import Opening
from meshnet.core.vocabulary import BadField, SamplingParams, SessionId

LIMITS = Limits()
OPENING = Opening(SessionId("s"))
DECODE = ForwardRequest(
    Mode.DECODE,
    SessionId("s"),
    past_length=17,
    attempt=1,
    prefix="00112233445566ff",
    tokens=(42, 43),
    sampling=SamplingParams(seed=7),
)
PREFILL = ForwardRequest(Mode.PREFILL, SessionId("s"), tokens=(1, 2, 3))


def test_a_frame_may_adopt_as_a_request_may():
    frame = encode_step(1, replace(DECODE, adopt=SessionId("old")))

    assert decode_step(frame, OPENING, LIMITS).adopt == "old"


@pytest.mark.parametrize(
    "wrong",
    [
        replace(DECODE, adopt=SessionId("old"), prefix=None),
        replace(DECODE, adopt=SessionId("old"), past_length=0),
        replace(DECODE, adopt=SessionId("s")),
        replace(PREFILL, adopt=SessionId("old")),
    ],
)
def test_a_frame_that_proves_nothing_adopts_nothing(wrong):
    with pytest.raises(BadField) as caught:
        decode_step(encode_step(1, wrong), OPENING, LIMITS)

    assert caught.value.field == "X-Meshnet-Adopt"


def test_the_last_frame_of_a_stream_may_leave_the_session():
    frame = encode_release(Ending.LINGERS)

    assert decode_step(frame, OPENING, LIMITS) is Ending.LINGERS
    with pytest.raises(BadField):
        decode_step(frame[:1] + b"\2" + frame[2:], OPENING, LIMITS)
