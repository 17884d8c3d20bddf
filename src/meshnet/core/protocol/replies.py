"""A node's answer to a step as status, headers and body, and back.

    activation   200, tensor bytes described like a request's
    token        200, JSON {"text", "token_id", "logprob", "top_logprobs": [[id, logprob], ...]},
                 and of a step with drafts "more": [{"token_id", ...}, ...]
    refusal      4xx or 5xx, JSON (refusals.py)

An ADR-0022 node describes nothing: its activation is read as [1, T, hidden] of the request's
dtype, and its tail may leave `token_id` out. What cannot be read is HopLost, never a guess.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from meshnet.core.protocol import headers as h
from meshnet.core.protocol.fields import Fields, print_object, read_object
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
from meshnet.core.protocol.meta import Meta, print_meta, read_meta
from meshnet.core.protocol.refusals import JSON, decode_refusal, encode_refusal
from meshnet.core.protocol.requests import Frame, describe_activation, read_frame
from meshnet.core.vocabulary import (
    DRAFTS_MAX,
    HIDDEN,
    LOGPROBS_MAX,
    TOKEN_ID_MAX,
    Activation,
    BadField,
    Buffer,
    Drawn,
    DType,
    HopLost,
    SampledToken,
    TensorSpec,
    TokenLogprob,
)

OCTETS = "application/octet-stream"


def encode_reply(reply: Reply) -> tuple[int, dict[str, str], list[Buffer]]:
    """Return status, headers and the parts of the body; tensor bytes are not copied."""
    match reply:
        case ActivationReply():
            fields = {h.CONTENT_TYPE: OCTETS}
            meta = print_meta(Meta(tensors=describe_activation(reply.activation, fields)))
            parts: list[Buffer] = [reply.activation.data]
            if meta:
                fields[h.META] = str(len(meta))
                parts.insert(0, meta)
        case TokenReply():
            if not finite(reply.drawn):
                message = "a log-probability is not finite"
                return encode_reply(Refusal(Code.NUMERICAL_ERROR, message))
            fields = {h.CONTENT_TYPE: JSON}
            parts = [print_object(_drawn_values(reply))]
        case Refusal():
            status, fields, body = encode_refusal(reply)
            return status, fields, [body]
    if reply.cached is not None:
        fields[h.CACHED] = str(reply.cached)
    if reply.compute_us:
        fields[h.COMPUTE_US] = str(reply.compute_us)
    return 200, fields, parts


def finite(drawn: Drawn | None) -> bool:
    for token in () if drawn is None else drawn.tokens:
        if token.logprob is None and not token.top:
            continue  # nearly always
        told = [0.0 if token.logprob is None else token.logprob]
        if not all(map(math.isfinite, [*told, *(entry.logprob for entry in token.top)])):
            return False
    return True


def _drawn_values(reply: TokenReply) -> dict[str, Any]:
    if reply.drawn is None:
        return {"text": reply.text, "token_id": None}
    first, *more = map(_token_values, reply.drawn.tokens)
    values = {"text": reply.text, **first}
    if more:
        values["more"] = more
    return values


def _token_values(token: SampledToken) -> dict[str, Any]:
    values: dict[str, Any] = {"token_id": token.token_id}
    if token.logprob is not None:
        values["logprob"] = token.logprob
    if token.top:
        values["top_logprobs"] = [[entry.token_id, entry.logprob] for entry in token.top]
    return values


def decode_reply(
    status: int,
    headers: Iterable[tuple[str, str]],
    body: Buffer,
    asked: ForwardRequest,
    limits: Limits,
) -> Reply:
    """Read a node's answer to `asked`. Raises HopLost if it cannot be read as one."""
    try:
        found = h.collect(headers, limits)
        if status == 200:
            return _answer(found, body, asked, limits)
        refusal = decode_refusal(status, found, body, limits)
    except BadField as error:
        raise HopLost(f"unreadable answer: {error}") from None
    if refusal is None:
        shown = bytes(memoryview(body)[:80])
        raise HopLost(f"HTTP {status} without an error of this protocol: {shown!r}")
    if refusal.code is Code.CACHE_MISS and asked.mode is not Mode.DECODE:
        raise HopLost(f"cache_miss in answer to a {asked.mode.value} step")
    return refusal


def _answer(found: dict[str, str], body: Buffer, asked: ForwardRequest, limits: Limits) -> Reply:
    cached = h.read_integer(found, h.CACHED)
    compute_us = h.read_integer(found, h.COMPUTE_US) or 0
    fields = _tail_fields(found, body, limits)
    if fields is not None:
        text = fields.text("text", chars_max=limits.json_bytes) if fields.has("text") else ""
        return TokenReply(_drawn(fields), text, cached, compute_us)
    return ActivationReply(_activation(found, body, asked, limits), cached, compute_us)


def _tail_fields(found: dict[str, str], body: Buffer, limits: Limits) -> Fields | None:
    """Return the tail's JSON, or None if the body is an activation."""
    content_type = found.get(h.CONTENT_TYPE, "").lower()
    if h.SHAPE in found or h.META in found or content_type.startswith(OCTETS):
        return None
    if len(body) > limits.json_bytes:
        if content_type.startswith(JSON):
            raise BadField("body", f"JSON of at most {limits.json_bytes} bytes", len(body))
        return None
    if content_type.startswith(JSON):
        return read_object(body, "answer", limits)
    try:
        fields = read_object(body, "answer", limits)
    except BadField:
        return None
    return fields if fields.has("text") or fields.has("token_id") else None


def _drawn(fields: Fields) -> Drawn | None:
    if not fields.has("token_id"):
        if not fields.has("text") and "token_id" not in fields.names():
            raise fields.refuse("text", "a token's text or id")
        return None
    more = fields.objects("more", count_max=DRAFTS_MAX) if fields.has("more") else []
    return Drawn(tuple(map(_token, (fields, *more))))


def _token(fields: Fields) -> SampledToken:
    token_id = fields.integer("token_id", high=TOKEN_ID_MAX)
    logprob = fields.number("logprob") if fields.has("logprob") else None
    top = _top(fields) if fields.has("top_logprobs") else ()
    return SampledToken(token_id, logprob, top)


def _top(fields: Fields) -> tuple[TokenLogprob, ...]:
    entries = fields.array("top_logprobs", count_max=LOGPROBS_MAX)
    return tuple(_token_logprob(fields, entry) for entry in entries)


def _token_logprob(fields: Fields, entry: object) -> TokenLogprob:
    if isinstance(entry, list) and len(entry) == 2:
        token_id, logprob = entry
        known = type(token_id) is int and 0 <= token_id <= TOKEN_ID_MAX
        if known and type(logprob) in (int, float) and abs(logprob) < 1e300:
            return TokenLogprob(token_id, float(logprob))
    raise fields.refuse("top_logprobs", "pairs of token id and log-probability")


def _activation(
    found: dict[str, str], body: Buffer, asked: ForwardRequest, limits: Limits
) -> Activation:
    frame = read_frame(found, len(body), limits)
    if frame.shape is None and not frame.meta_bytes:
        return _undescribed(body, frame.dtype, asked)
    if frame.shape is not None and frame.dtype is None:
        frame = Frame(frame.content_length, frame.meta_bytes, frame.shape, _dtype_of(asked))
    view = memoryview(body)
    meta = read_meta(view[: frame.meta_bytes], limits) if frame.meta_bytes else Meta()
    specs = frame.specs(meta)
    length = _length_of(asked)
    if specs and length and specs[0].shape[-2] != length:
        raise BadField(h.SHAPE, f"{length} positions, as asked", specs[0].shape)
    try:
        return Activation(specs, view[frame.meta_bytes :])
    except ValueError as error:
        raise BadField("body", f"the described tensors ({error})", len(body)) from None


def _undescribed(body: Buffer, said: DType | None, asked: ForwardRequest) -> Activation:
    dtype = said or _dtype_of(asked)
    length = _length_of(asked)
    if not length:
        raise BadField("body", "an answer with its shape", f"{len(body)} bytes")
    hidden_size, remainder = divmod(len(body), length * dtype.itemsize)
    if remainder:
        row = f"a multiple of {length * dtype.itemsize} bytes ({length} positions, {dtype.value})"
        raise BadField("body", row, len(body))
    return Activation((TensorSpec(HIDDEN, dtype, (1, length, hidden_size)),), memoryview(body))


def _length_of(asked: ForwardRequest) -> int:
    """Return the new positions asked for, 0 if only the shard can tell (a raw body)."""
    if asked.activation is not None:
        return asked.activation.hidden.shape[-2]
    return len(asked.tokens)


def _dtype_of(asked: ForwardRequest) -> DType:
    dtype = asked.activation.hidden.dtype if asked.activation is not None else asked.raw_dtype
    if dtype is None:
        raise BadField(h.DTYPE, "a dtype, since the request named none", None)
    return dtype
