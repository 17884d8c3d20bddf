"""The answers of a session stream as frames: a header of 48 bytes, then what its kind says.

    activation   meta block | zeros to a multiple of 16 | tensors
    tokens       16 bytes a token | 12 bytes an alternative, token by token | text
    refusal      the JSON of refusals.py, its status in the header

No JSON in a token's answer: it is the one frame of a decode that a head has to read itself.
Strict as frames.py is; what a head cannot read is HopLost, never a guess.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from meshnet.core.protocol import headers as h
from meshnet.core.protocol.fields import NUMBER_MAX
from meshnet.core.protocol.frames import (
    DIMENSIONS_MAX,
    Kind,
    describe,
    joined,
    read_rest,
)
from meshnet.core.protocol.limits import Limits
from meshnet.core.protocol.messages import (
    ActivationReply,
    Code,
    ForwardRequest,
    Mode,
    Refusal,
    Reply,
    TokenReply,
)
from meshnet.core.protocol.meta import Meta, print_meta
from meshnet.core.protocol.refusals import decode_refusal, encode_refusal
from meshnet.core.protocol.replies import finite
from meshnet.core.vocabulary import (
    DRAFTS_MAX,
    LOGPROBS_MAX,
    TOKEN_ID_MAX,
    Activation,
    BadField,
    Buffer,
    Drawn,
    HopLost,
    SampledToken,
    TokenLogprob,
)

# kind, flags, element type, dimensions, number, cached, microseconds of compute; bytes of meta
# block or JSON, or number of tokens; status, or bytes of text; sizes
_HEADER = struct.Struct("<BBBBIQQIIIIII")
_ACTIVATION, _TOKENS, _REFUSAL = int(Kind.ACTIVATION), int(Kind.TOKENS), int(Kind.REFUSAL)
_TOKEN = struct.Struct("<IBBHd")
_ALTERNATIVE = struct.Struct("<Id")
_CACHED = 1
_LOGPROB = 1
_INTEGER_MAX = 10**h.INTEGER_DIGITS - 1
_NO_SIZES = (0,) * DIMENSIONS_MAX


def encode_answer(number: int, reply: Reply) -> bytes:
    """Return the frame that answers step `number`."""
    match reply:
        case ActivationReply():
            return _activation_frame(number, reply)
        case TokenReply():
            if reply.drawn is not None and not finite(reply.drawn):
                refusal = Refusal(Code.NUMERICAL_ERROR, "a log-probability is not finite")
                return encode_answer(number, refusal)
            return _tokens_frame(number, reply)
        case Refusal():
            status, _, body = encode_refusal(reply)
            header = (_REFUSAL, 0, 0, 0, number, 0, 0, len(body), status, *_NO_SIZES)
            return _HEADER.pack(*header) + body


def _activation_frame(number: int, reply: ActivationReply) -> bytes:
    dtype, dims, sizes, described = describe(reply.activation)
    meta = print_meta(Meta(tensors=described)) if described else b""
    header = _HEADER.pack(
        _ACTIVATION,
        0 if reply.cached is None else _CACHED,
        dtype,
        dims,
        number,
        reply.cached or 0,
        reply.compute_us,
        len(meta),
        0,
        *sizes,
    )
    return joined(header, b"", meta, reply.activation)


def _tokens_frame(number: int, reply: TokenReply) -> bytes:
    tokens = () if reply.drawn is None else reply.drawn.tokens
    text = reply.text.encode("utf-8", "replace")
    header = _HEADER.pack(
        _TOKENS,
        0 if reply.cached is None else _CACHED,
        0,
        0,
        number,
        reply.cached or 0,
        reply.compute_us,
        len(tokens),
        len(text),
        *_NO_SIZES,
    )
    if len(tokens) == 1 and not tokens[0].top:
        return b"".join((header, _token_entry(tokens[0]), text))
    return b"".join((header, *map(_token_entry, tokens), *_alternatives(tokens), text))


def _token_entry(token: SampledToken) -> bytes:
    told = token.logprob is not None
    return _TOKEN.pack(
        token.token_id, _LOGPROB if told else 0, len(token.top), 0, token.logprob or 0.0
    )


def _alternatives(tokens: tuple[SampledToken, ...]) -> Iterator[bytes]:
    for token in tokens:
        for entry in token.top:
            yield _ALTERNATIVE.pack(entry.token_id, entry.logprob)


def decode_answer(frame: Buffer, asked: ForwardRequest, limits: Limits) -> Reply:
    """Read the answer to `asked`. Raises HopLost if it cannot be read as one."""
    try:
        return _answer(frame, asked, limits)
    except BadField as error:
        raise HopLost(f"unreadable answer: {error}") from None


def _answer(frame: Buffer, asked: ForwardRequest, limits: Limits) -> Reply:
    if len(frame) < _HEADER.size:
        raise BadField("frame", f"a header of {_HEADER.size} bytes", len(frame))
    head = _HEADER.unpack_from(frame)
    kind, flags, dtype, dims, _, cached, compute_us, size, extra = head[:9]
    if kind == _REFUSAL:
        return _refusal(frame, head, asked, limits)
    if flags not in (0, _CACHED) or cached > (_INTEGER_MAX if flags else 0):
        raise BadField(h.CACHED, "a length, or 0 without its flag", (flags, cached))
    if compute_us > _INTEGER_MAX:
        raise BadField(h.COMPUTE_US, f"at most {_INTEGER_MAX}", compute_us)
    described, length = (dtype, dims, head[9:]), cached if flags else None
    if kind == _TOKENS:
        return _tokens(frame, size, extra, described, length, compute_us, limits)
    if kind != _ACTIVATION or extra:
        raise BadField("frame", "an answer", bytes(frame[:8]))
    meta, activation = read_rest(frame, _HEADER.size, size, described, limits)
    if activation is None or (size and meta != Meta(tensors=meta.tensors)):
        raise BadField("frame", "an activation, and no more", bytes(frame[:8]))
    _check_length(activation, asked)
    return ActivationReply(activation, length, compute_us)


def _check_length(activation: Activation, asked: ForwardRequest) -> None:
    length = len(asked.tokens)
    if asked.activation is not None:
        length = asked.activation.hidden.shape[-2]
    if activation.hidden.shape[-2] != length:
        raise BadField(h.SHAPE, f"{length} positions, as asked", activation.hidden.shape)


def _tokens(
    frame: Buffer,
    count: int,
    text_bytes: int,
    described: tuple[int, int, tuple[int, ...]],
    cached: int | None,
    compute_us: int,
    limits: Limits,
) -> TokenReply:
    if count > DRAFTS_MAX + 1 or text_bytes > limits.json_bytes:
        raise BadField("frame.tokens", f"at most {DRAFTS_MAX + 1}, and a short text", count)
    at = _HEADER.size + count * _TOKEN.size
    if described != (0, 0, _NO_SIZES) or at > len(frame):
        raise BadField("frame", f"{count} tokens and no tensor", len(frame))
    tokens = []
    for index in range(count):
        token, at = _token(frame, _HEADER.size + index * _TOKEN.size, at)
        tokens.append(token)
    if len(frame) != at + text_bytes:
        raise BadField("frame", f"{at + text_bytes} bytes", len(frame))
    drawn = Drawn(tuple(tokens)) if tokens else None
    return TokenReply(drawn, _text(frame[at:]) if text_bytes else "", cached, compute_us)


def _token(frame: Buffer, at: int, alternatives_at: int) -> tuple[SampledToken, int]:
    """Read one token, its alternatives at `alternatives_at`; return where those end."""
    token_id, flags, count, gap, logprob = _TOKEN.unpack_from(frame, at)
    end = alternatives_at + count * _ALTERNATIVE.size
    told = flags == _LOGPROB
    if flags not in (0, _LOGPROB) or gap or count > LOGPROBS_MAX or end > len(frame):
        raise BadField("frame.token", f"at most {LOGPROBS_MAX} alternatives", (flags, count))
    if not told and not count and not logprob and token_id <= TOKEN_ID_MAX:
        return SampledToken(token_id), end
    chosen = _logprob(token_id, logprob)
    if not told and logprob:
        raise BadField("frame.token", "no log-probability without its flag", logprob)
    top = tuple(
        _logprob(*_ALTERNATIVE.unpack_from(frame, begin))
        for begin in range(alternatives_at, end, _ALTERNATIVE.size)
    )
    return SampledToken(token_id, chosen.logprob if told else None, top), end


def _logprob(token_id: int, logprob: float) -> TokenLogprob:
    if token_id > TOKEN_ID_MAX or not -NUMBER_MAX < logprob < NUMBER_MAX:
        raise BadField("frame.token", "a token id and a finite number", (token_id, logprob))
    return TokenLogprob(token_id, logprob)


def _text(data: Buffer) -> str:
    try:
        return bytes(data).decode()
    except UnicodeDecodeError as error:
        raise BadField("frame.text", f"UTF-8 ({error.reason})", bytes(data[:20])) from None


def _refusal(
    frame: Buffer, head: tuple[int, ...], asked: ForwardRequest, limits: Limits
) -> Refusal:
    number, size, status = head[4], head[7], head[8]
    expected = (_REFUSAL, 0, 0, 0, number, 0, 0, size, status, *_NO_SIZES)
    body = memoryview(frame)[_HEADER.size :]
    if head != expected or len(body) != size or size > limits.json_bytes:
        raise BadField("frame", "a refusal of the length it says", len(body))
    refusal = decode_refusal(status, {}, body, limits)
    if refusal is None:
        raise BadField("frame", "an error of this protocol", bytes(body[:80]))
    if refusal.code is Code.CACHE_MISS and asked.mode is not Mode.DECODE:
        raise BadField("frame", "no cache_miss but for a decode", asked.mode.value)
    return refusal
