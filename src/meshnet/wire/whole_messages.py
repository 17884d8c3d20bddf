"""WebSocket messages that come and go in one piece: read and written without a parser.

A step or an answer is one binary frame, and where nothing is in its way one read brings it, whole
and alone. That needs none of the states of a parser, which costs more than all else on the way of
a token. What is not exactly that is none of ours: `websockets` reads it, and judges it.

Source: RFC 6455, section 5.2.
"""

from __future__ import annotations

import secrets
import struct

try:
    from websockets.speedups import apply_mask
except ImportError:  # a wheel without compiled parts
    from websockets.utils import apply_mask

_FINAL_BINARY, _MASKED = 0x82, 0x80
_SHORT_MAX = 125
_TWO, _EIGHT = 126, 127
_SHORT, _MEDIUM, _LONG = struct.Struct("!BB"), struct.Struct("!BBH"), struct.Struct("!BBQ")
_MASK_BYTES = 4


def message_in(data: bytes, *, masked: bool, size_max: int) -> bytes | None:
    """Return the message that `data` is, nothing before and nothing behind it; None: it is not."""
    if len(data) < _SHORT.size or data[0] != _FINAL_BINARY or (data[1] >= _MASKED) != masked:
        return None
    size, at = data[1] & ~_MASKED, 2
    if size == _TWO:
        size, at = int.from_bytes(data[2:4], "big"), 4
    elif size == _EIGHT:
        size, at = int.from_bytes(data[2:10], "big"), 10
    begin = at + _MASK_BYTES if masked else at
    if len(data) != begin + size or size > size_max:
        return None
    # Copied also where it is not masked: tensors begin at even addresses of a message of its own.
    return apply_mask(data[begin:], data[at:begin]) if masked else data[begin:]


def message_out(message: bytes, *, masked: bool) -> bytes:
    """Return the frame of one binary message."""
    size, bit = len(message), _MASKED if masked else 0
    if size <= _SHORT_MAX:
        header = _SHORT.pack(_FINAL_BINARY, bit | size)
    elif size < 1 << 16:
        header = _MEDIUM.pack(_FINAL_BINARY, bit | _TWO, size)
    else:
        header = _LONG.pack(_FINAL_BINARY, bit | _EIGHT, size)
    if not masked:
        return header + message
    mask = secrets.token_bytes(_MASK_BYTES)
    return b"".join((header, mask, apply_mask(message, mask)))
