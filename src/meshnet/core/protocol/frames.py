"""The steps of a session stream as frames: a fixed header, then ids, meta block and tensors.

    header (72 bytes) | ids, 4 bytes each | meta block | zeros to a multiple of 16 | tensors

A frame carries what the headers of `POST /forward` carry, less what stays the same for a session
and is told once when its stream is opened (Opening). Little-endian throughout; a tensor's bytes
begin at a multiple of 16, so that a receiver can read them where they are.

Invariants
    * whatever bytes arrive, the outcome is a valid request or BadField;
    * there is one way to write a request: absent values and gaps are zero, and unknown flags are
      refused, since to overlook one could mean another step;
    * sizes are checked before anything is made from them; tensor bytes are not copied.
"""

from __future__ import annotations

import struct
from enum import Enum, IntEnum
from functools import lru_cache
from typing import Any

from meshnet.core.protocol import headers as h
from meshnet.core.protocol.chains import check_route
from meshnet.core.protocol.limits import Limits
from meshnet.core.protocol.messages import ForwardRequest, Mode
from meshnet.core.protocol.meta import DIMENSION_MAX, Meta, print_meta, read_meta
from meshnet.core.protocol.opening import Opening
from meshnet.core.protocol.step_rules import (
    check_adoption,
    check_drafts,
    check_recovery,
    check_truncation,
)
from meshnet.core.vocabulary import (
    HIDDEN,
    TOKEN_ID_MAX,
    Activation,
    BadField,
    Buffer,
    DType,
    Hop,
    LayerRange,
    TensorSpec,
    TooLarge,
)

SUBPROTOCOL = "meshnet.1"
"""Names this layout; another layout is another name."""
OVERHEAD_BYTES = 4096
"""What a frame may be longer than the body of the same step as a POST, ids aside."""
ALIGNMENT = 16
DIMENSIONS_MAX = 4
"""Of the one tensor that a header describes; others are described in the meta block."""
SEEN_MAX = 64
"""Shapes, layer ranges and short meta blocks that are remembered as the values they say."""
SEEN_BYTES = 1024
"""What is a short meta block."""
_HEADER = struct.Struct("<BBHIQQ8sIIIIIBBHIIII")
_ONE_ID = struct.Struct("<I")
_NUMBER_AT = 4
_LAYER_MAX = 999_999
_INTEGER_MAX = 10**h.INTEGER_DIGITS - 1
_ATTEMPT, _PREFIX, _DEADLINE, _NO_TOKEN, _TRUNCATE, _REPLAY, _FILL = 1, 2, 4, 8, 16, 32, 64
_TELLING = _TRUNCATE | _REPLAY | _FILL
_FLAGS = _ATTEMPT | _PREFIX | _DEADLINE | _NO_TOKEN | _TELLING
_NO_PREFIX = bytes(8)
_MODES = {Mode.PREFILL: 1, Mode.DECODE: 2}
_MODE_OF = {code: mode for mode, code in _MODES.items()}
_DTYPES = {DType.FP32: 1, DType.BF16: 2, DType.FP16: 3}
_DTYPE_OF = {code: dtype for dtype, code in _DTYPES.items()}


class Kind(IntEnum):
    """First byte of a frame."""

    STEP = 1
    RELEASE = 2
    ACTIVATION = 3
    TOKENS = 4
    REFUSAL = 5


_STEP, _RELEASE = int(Kind.STEP), int(Kind.RELEASE)


class Ending(Enum):
    """How a stream's last frame leaves its session. The value is the frame's second byte."""

    RELEASED = 0
    LINGERS = 1
    """It may be adopted, until somebody needs its place."""


def frame_bytes_max(limits: Limits) -> int:
    """Return the length of the longest frame: a body, its ids, and the header."""
    return limits.body_bytes + 4 * limits.positions + OVERHEAD_BYTES


def message_bytes_max(limits: Limits) -> int:
    """Return what is read at all: of a frame a little too long, its number, so as to refuse it."""
    return frame_bytes_max(limits) + limits.body_bytes


def number_of(frame: Buffer) -> int:
    """Return the number that ties an answer to its step. Raises BadField."""
    if len(frame) < _NUMBER_AT + 4:
        raise BadField("frame", "a header", f"{len(frame)} bytes")
    number: int = _ONE_ID.unpack_from(frame, _NUMBER_AT)[0]
    return number


def encode_release(ending: Ending = Ending.RELEASED) -> bytes:
    """Say that the session is over: a hint, and the last frame of its stream."""
    return struct.pack("<BBHI", Kind.RELEASE, ending.value, 0, 0)


def fits(request: ForwardRequest) -> bool:
    """Whether a stream can carry this step: it belongs to a session and describes its tensors."""
    return request.session is not None and request.mode in _MODES and not len(request.raw)


def encode_step(number: int, request: ForwardRequest) -> bytes:
    """Return the frame of a step that `fits`; the session and its like are the stream's."""
    flags = 0 if request.want_token else _NO_TOKEN
    if request.attempt is not None:
        flags |= _ATTEMPT
    if request.prefix is not None:
        flags |= _PREFIX
    if request.deadline_ms is not None:
        flags |= _DEADLINE
    if request.truncate:
        flags |= _TRUNCATE
    if request.replay:
        flags |= _REPLAY
    if request.fill:
        flags |= _FILL
    dtype, dims, sizes, described = describe(request.activation)
    meta = _meta_of(request, described)
    layers = request.layers
    header = _HEADER.pack(
        _STEP,
        _MODES[request.mode],
        flags,
        number,
        request.attempt or 0,
        request.deadline_ms or 0,
        _NO_PREFIX if request.prefix is None else bytes.fromhex(request.prefix),
        request.past_length,
        0 if layers is None else layers.start,
        0 if layers is None else layers.stop,
        len(request.tokens),
        len(meta),
        dtype,
        dims,
        request.drafts,
        *sizes,
    )
    return joined(header, _encode_ids(request.tokens), meta, request.activation)


def _meta_of(request: ForwardRequest, described: tuple[TensorSpec, ...]) -> bytes:
    """Return the meta block; a plain decode has none."""
    if not described and request.sampling is None and request.adopt is None:
        return _route_meta(request.route) if request.route else b""
    return print_meta(
        Meta(
            sampling=request.sampling,
            tensors=described,
            adopt=request.adopt,
            route=request.route,
        )
    )


@lru_cache(maxsize=SEEN_MAX)
def _route_meta(route: tuple[Hop, ...]) -> bytes:
    return print_meta(Meta(route=route))


def _encode_ids(ids: tuple[int, ...]) -> bytes:
    return _ONE_ID.pack(ids[0]) if len(ids) == 1 else struct.pack(f"<{len(ids)}I", *ids)


def joined(header: bytes, ids: bytes, meta: bytes, activation: Activation | None) -> bytes:
    """Put the parts behind each other, the tensors at a multiple of ALIGNMENT."""
    if activation is None:
        return header + ids + meta
    gap = bytes(-(len(header) + len(ids) + len(meta)) % ALIGNMENT)
    return b"".join((header, ids, meta, gap, activation.data))


_NO_SIZES = (0,) * DIMENSIONS_MAX


def describe(
    activation: Activation | None,
) -> tuple[int, int, tuple[int, ...], tuple[TensorSpec, ...]]:
    """Return dtype, dimensions and sizes for a header, and what the meta block must say instead."""
    if activation is None:
        return 0, 0, _NO_SIZES, ()
    spec = activation.tensors[0]
    dims = len(spec.shape)
    if len(activation.tensors) > 1 or spec.name != HIDDEN or not 2 <= dims <= DIMENSIONS_MAX:
        return 0, 0, _NO_SIZES, activation.tensors
    return _DTYPES[spec.dtype], dims, (*spec.shape, *_NO_SIZES[dims:]), ()


def decode_step(frame: Buffer, opening: Opening, limits: Limits) -> ForwardRequest | Ending:
    """Read a step or the end. The activation is a view of `frame`. Raises BadField."""
    if len(frame) < _NUMBER_AT + 4:
        number_of(frame)
    if len(frame) > frame_bytes_max(limits):
        raise TooLarge("frame", f"at most {limits.body_bytes} bytes and its ids", len(frame))
    if frame[0] == _RELEASE:
        return _ending(bytes(frame))
    if frame[0] != _STEP or len(frame) < _HEADER.size:
        raise BadField("frame", f"a step's header of {_HEADER.size} bytes", bytes(frame[:8]))
    return _step(frame, _HEADER.unpack_from(frame), opening, limits)


def _ending(frame: bytes) -> Ending:
    for ending in Ending:
        if frame == encode_release(ending):
            return ending
    raise BadField("frame", "a release of 8 bytes", frame[:16])


def _step(frame: Buffer, head: tuple[Any, ...], opening: Opening, limits: Limits) -> ForwardRequest:
    _, code, flags, _, attempt, deadline_ms, prefix, past_length, start, stop = head[:10]
    ids, meta_bytes, dtype, dims, drafts = head[10:15]
    mode = _mode(code, flags, past_length, limits)
    _check_absent(flags, attempt, deadline_ms, prefix)
    tokens, at = _ids(frame, ids, limits)
    meta, activation = read_rest(frame, at, meta_bytes, (dtype, dims, head[15:]), limits)
    if meta is not _NO_META and (meta.tokens or not meta.want_token or meta.drafts):
        raise BadField("meta", "neither tokens nor drafts in a frame", "both")
    _check_length(past_length, tokens, activation, limits)
    request = ForwardRequest(
        mode=mode,
        session=opening.session,
        past_length=past_length,
        layers=_layers(start, stop) if start or stop else None,
        model=opening.model,
        fingerprint=opening.fingerprint,
        attempt=attempt if flags & _ATTEMPT else None,
        prefix=prefix.hex() if flags & _PREFIX else None,
        deadline_ms=deadline_ms if flags & _DEADLINE else None,
        wire=opening.wire,
        tokens=tokens,
        sampling=meta.sampling,
        want_token=not flags & _NO_TOKEN,
        drafts=drafts,
        truncate=bool(flags & _TRUNCATE),
        adopt=meta.adopt,
        route=meta.route,
        activation=activation,
        trace=opening.trace,
        traceparent=opening.traceparent,
        owner=opening.owner,
        stages=opening.stages,
        replay=bool(flags & _REPLAY),
        fill=bool(flags & _FILL),
    )
    plain = not drafts and not flags & _TELLING and meta is _NO_META
    return request if plain else _checked(request)


def _mode(code: int, flags: int, past_length: int, limits: Limits) -> Mode:
    mode = _MODE_OF.get(code)
    if mode is None or flags & ~_FLAGS:
        raise BadField("frame.mode", "1 or 2, and flags of this version", (code, flags))
    if past_length > limits.positions or (past_length and mode is not Mode.DECODE):
        raise BadField(h.PAST_LEN, f"0 to {limits.positions} in a decode", past_length)
    return mode


def _ids(frame: Buffer, count: int, limits: Limits) -> tuple[tuple[int, ...], int]:
    """Return the ids behind the header, and where they end."""
    end = _HEADER.size + 4 * count
    if count > limits.positions or end > len(frame):
        raise BadField("frame.tokens", f"at most {limits.positions} ids, all there", count)
    ids = struct.unpack_from(f"<{count}I", frame, _HEADER.size)
    if ids and max(ids) > TOKEN_ID_MAX:
        raise BadField("frame.tokens", f"integers from 0 to {TOKEN_ID_MAX}", max(ids))
    return ids, end


def read_rest(
    frame: Buffer,
    at: int,
    meta_bytes: int,
    described: tuple[int, int, tuple[int, ...]],
    limits: Limits,
) -> tuple[Meta, Activation | None]:
    """Read the meta block at `at`, and the tensors behind it up to the end. Raises BadField."""
    if meta_bytes > limits.meta_bytes:
        raise TooLarge(h.META, f"at most {limits.meta_bytes} bytes", meta_bytes)
    end = at + meta_bytes
    if end > len(frame):
        raise BadField(h.META, f"at most the {len(frame) - at} bytes there are", meta_bytes)
    view = memoryview(frame)
    meta = _meta(view[at:end], limits) if meta_bytes else _NO_META
    specs = meta.tensors if described == _NOTHING else _specs(described, meta)
    if not specs:
        if end != len(frame):
            raise BadField("frame", f"{end} bytes", len(frame))
        return meta, None
    begin = end + -end % ALIGNMENT
    expected = begin + sum([spec.nbytes for spec in specs])
    if len(frame) != expected or (begin > end and any(view[end:begin])):
        raise BadField("frame", f"{expected} bytes, those between parts zero", len(frame))
    return meta, Activation(specs, view[begin:])


def _meta(data: memoryview, limits: Limits) -> Meta:
    """Read a meta block. Steps of a session that are handed on bring the same one each time."""
    return read_meta(data, limits) if len(data) > SEEN_BYTES else _seen_meta(bytes(data), limits)


@lru_cache(maxsize=SEEN_MAX)
def _seen_meta(data: bytes, limits: Limits) -> Meta:
    return read_meta(data, limits)


_NO_META = Meta()
_NOTHING = (0, 0, _NO_SIZES)
"""What a header says of tensors where there are none, or where the meta block describes them."""


def _specs(described: tuple[int, int, tuple[int, ...]], meta: Meta) -> tuple[TensorSpec, ...]:
    """Return what the header says of the one tensor, if the meta block says nothing of any."""
    specs = _spec(*described)
    if specs is None or meta.tensors:
        raise BadField(h.SHAPE, f"2 to {DIMENSIONS_MAX} sizes of one tensor", described)
    return specs


@lru_cache(maxsize=SEEN_MAX)
def _spec(code: int, dims: int, sizes: tuple[int, ...]) -> tuple[TensorSpec, ...] | None:
    dtype, shape, beyond = _DTYPE_OF.get(code), sizes[:dims], sizes[dims:]
    if dtype is None or not 2 <= dims <= DIMENSIONS_MAX or any(beyond):
        return None
    if min(shape) < 1 or max(shape) > DIMENSION_MAX:
        return None
    return (TensorSpec(HIDDEN, dtype, shape),)


def _check_length(
    past_length: int, tokens: tuple[int, ...], activation: Activation | None, limits: Limits
) -> None:
    length = len(tokens)
    if activation is not None:
        length = activation.tensors[0].shape[-2]
        if tokens and len(tokens) != length:
            raise BadField("frame.tokens", f"{length} ids, one a position", len(tokens))
    if not length:
        raise BadField("frame", "an activation or tokens", "neither")
    if past_length + length > limits.positions:
        expected = f"past and new positions of at most {limits.positions}"
        raise BadField(h.PAST_LEN, expected, past_length + length)


@lru_cache(maxsize=SEEN_MAX)
def _layers(start: int, stop: int) -> LayerRange:
    if not start < stop <= _LAYER_MAX:
        raise BadField(h.LAYERS, "start < stop", (start, stop))
    return LayerRange(start, stop)


def _check_absent(flags: int, attempt: int, deadline_ms: int, prefix: bytes) -> None:
    """Raise BadField for what is too large, or not zero where its flag says that it is absent."""
    if attempt > (_INTEGER_MAX if flags & _ATTEMPT else 0):
        raise _absent(h.ATTEMPT, attempt)
    if deadline_ms > (_INTEGER_MAX if flags & _DEADLINE else 0):
        raise _absent(h.DEADLINE_MS, deadline_ms)
    if prefix != _NO_PREFIX and not flags & _PREFIX:
        raise BadField(h.PREFIX, "zeros where it is absent", prefix.hex())


def _absent(field: str, value: int) -> BadField:
    return BadField(field, f"at most {_INTEGER_MAX}, and 0 where it is absent", value)


def _checked(request: ForwardRequest) -> ForwardRequest:
    """Check what one part of a step allows another to say. Raises BadField."""
    if request.truncate:
        check_truncation(request.mode, request.prefix)
    if request.drafts:
        count, drawn = len(request.tokens), request.want_token
        check_drafts("frame.drafts", request.drafts, request.mode, tokens=count, want_token=drawn)
    if request.route:
        check_route(request.route)
    check_recovery(request)
    if request.adopt is not None:
        check_adoption(
            request.mode, request.session, request.adopt, request.past_length, prefix=request.prefix
        )
    return request
