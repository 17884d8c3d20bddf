"""Messages that pass the WebSocket parser by mean what the parser would have made of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode
from websockets.streams import StreamReader

from meshnet.wire.whole_messages import message_in, message_out

LENGTHS = st.sampled_from((0, 1, 125, 126, 127, 65535, 65536, 70001))
MESSAGES = st.builds(lambda length, fill: bytes([fill]) * length, LENGTHS, st.integers(0, 255))
SIDES = st.booleans()
MOST = 1 << 20


def parsed(data: bytes, *, masked: bool) -> Frame:
    """What `websockets` reads in `data`, which it must use up."""
    reader = StreamReader()
    reader.feed_data(data)
    parsing: Any = Frame.parse(reader.read_exact, mask=masked, max_size=MOST, extensions=[])
    with pytest.raises(StopIteration) as ended:
        next(parsing)
    assert not reader.buffer
    frame: Frame = ended.value.value
    return frame


@given(MESSAGES, SIDES)
def test_what_is_written_is_one_whole_binary_frame(message, masked):
    frame = parsed(message_out(message, masked=masked), masked=masked)

    assert (frame.opcode, frame.fin, bytes(frame.data)) == (Opcode.BINARY, True, message)
    assert not any((frame.rsv1, frame.rsv2, frame.rsv3))


@given(MESSAGES, SIDES)
def test_a_whole_binary_frame_is_read(message, masked):
    data = Frame(Opcode.BINARY, message).serialize(mask=masked, extensions=[])

    assert message_in(data, masked=masked, size_max=MOST) == message


@given(MESSAGES, SIDES, st.data())
def test_a_part_of_a_frame_is_left_to_the_parser(message, masked, data):
    whole = message_out(message, masked=masked)
    cut = data.draw(st.integers(0, len(whole) - 1))

    assert message_in(whole[:cut], masked=masked, size_max=MOST) is None


@given(MESSAGES, SIDES, st.binary(min_size=1, max_size=4))
def test_what_has_something_behind_it_is_left_to_the_parser(message, masked, behind):
    whole = message_out(message, masked=masked)

    assert message_in(whole + behind, masked=masked, size_max=MOST) is None


@pytest.mark.parametrize("opcode", [each for each in Opcode if each is not Opcode.BINARY])
def test_other_kinds_of_frames_are_left_to_the_parser(opcode):
    data = Frame(opcode, b"told").serialize(mask=True, extensions=[])

    assert message_in(data, masked=True, size_max=MOST) is None


@pytest.mark.parametrize("bits", [0x02, 0xC2, 0xA2, 0x92])
def test_fragments_and_reserved_bits_are_left_to_the_parser(bits):
    whole = message_out(b"told", masked=True)

    assert message_in(bytes([bits]) + whole[1:], masked=True, size_max=MOST) is None


@pytest.mark.parametrize("masked", [True, False])
def test_a_frame_of_the_wrong_side_is_left_to_the_parser(masked):
    whole = message_out(b"told", masked=not masked)

    assert message_in(whole, masked=masked, size_max=MOST) is None


def test_a_message_over_the_limit_is_left_to_the_parser():
    whole = message_out(bytes(101), masked=True)

    assert message_in(whole, masked=True, size_max=100) is None
    assert message_in(whole, masked=True, size_max=101) == bytes(101)


def test_masks_differ_from_message_to_message():
    frames = {message_out(b"told", masked=True) for _ in range(8)}

    assert len(frames) == 8
