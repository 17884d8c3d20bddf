"""A ForwardRequest as headers and body, and back.

    parse_head   headers and content length -> RequestHead    before a byte of the body is read
    finish       RequestHead and body       -> ForwardRequest

Invariants
    * whatever bytes arrive, the outcome is a valid request or BadField;
    * a body is never copied: an activation is a view of it;
    * a length that contradicts the headers is refused before the body is read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from meshnet.core.protocol import headers as h
from meshnet.core.protocol.limits import Limits
from meshnet.core.protocol.messages import ForwardRequest, Mode
from meshnet.core.protocol.meta import Meta, print_meta, read_meta
from meshnet.core.protocol.step_rules import (
    check_adoption,
    check_drafts,
    check_recovery,
    check_truncation,
)
from meshnet.core.vocabulary import (
    HIDDEN,
    Activation,
    BadField,
    Buffer,
    DType,
    LayerRange,
    ModelId,
    SessionId,
    TensorSpec,
    TooLarge,
    TraceContext,
)

BODY = "body"
NO_META = Meta()


def encode_request(request: ForwardRequest) -> tuple[dict[str, str], list[Buffer]]:
    """Return the headers and the parts of the body, in order; tensor bytes are not copied."""
    assert not request.route, "a request is answered, not handed on"
    fields: dict[str, str] = {}
    if request.mode is not Mode.STATELESS:
        fields[h.CACHE] = request.mode.value
    if request.mode is Mode.DECODE:
        fields[h.PAST_LEN] = str(request.past_length)
    if request.session is not None:
        fields[h.SESSION] = request.session
    if request.layers is not None:
        fields[h.LAYERS] = str(request.layers)
    if request.model is not None:
        fields[h.MODEL] = h.print_quoted(request.model)
    if request.fingerprint is not None:
        fields[h.FINGERPRINT] = h.print_quoted(request.fingerprint)
    if request.attempt is not None:
        fields[h.ATTEMPT] = str(request.attempt)
    if request.prefix is not None:
        fields[h.PREFIX] = request.prefix
    if request.truncate:
        fields[h.TRUNCATE] = "1"
    if request.adopt is not None:
        fields[h.ADOPT] = request.adopt
    if request.replay:
        fields[h.REPLAY] = "1"
    if request.fill:
        fields[h.FILL] = "1"
    if request.deadline_ms is not None:
        fields[h.DEADLINE_MS] = str(request.deadline_ms)
    if request.wire:
        fields[h.WIRE] = str(request.wire)
    if request.trace is not None:
        fields[h.REQUEST] = request.trace
    if request.traceparent is not None:
        fields[h.TRACEPARENT] = str(request.traceparent)
    if request.owner is not None:
        fields[h.OWNER] = request.owner
    if request.stages > 1:
        fields[h.STAGES] = str(request.stages)
    return fields, _encode_body(request, fields)


def _encode_body(request: ForwardRequest, fields: dict[str, str]) -> list[Buffer]:
    assert request.activation is None or not request.raw, "an activation or a raw body, not both"
    assert request.raw_shape is None or request.raw_dtype is None, "both describe an activation"
    described = describe_activation(request.activation, fields) if request.activation else ()
    if request.raw_shape is not None:
        fields[h.SHAPE] = h.print_shape(request.raw_shape)
    if request.raw_dtype is not None:
        fields[h.DTYPE] = request.raw_dtype.value
    meta = print_meta(
        Meta(request.tokens, request.sampling, request.want_token, described, request.drafts)
    )
    parts: list[Buffer] = []
    if meta:
        fields[h.META] = str(len(meta))
        parts.append(meta)
    if request.activation is not None:
        parts.append(request.activation.data)
    elif request.raw:
        parts.append(request.raw)
    return parts


def describe_activation(activation: Activation, fields: dict[str, str]) -> tuple[TensorSpec, ...]:
    """Say what the tensors are in `fields`, or return what the meta block must say instead."""
    spec = activation.tensors[0]
    if len(activation.tensors) > 1 or spec.name != HIDDEN or len(spec.shape) < 2:
        return activation.tensors
    fields[h.SHAPE] = h.print_shape(spec.shape)
    fields[h.DTYPE] = spec.dtype.value
    return ()


@dataclass(frozen=True, slots=True)
class RequestHead:
    """A request as far as its headers tell it: valid, and with a body length that can be right."""

    mode: Mode
    session: SessionId | None
    past_length: int
    layers: LayerRange | None
    model: ModelId | None
    fingerprint: str | None
    attempt: int | None
    prefix: str | None
    truncate: bool
    adopt: SessionId | None
    replay: bool
    fill: bool
    deadline_ms: int | None
    wire: int
    trace: str | None
    traceparent: TraceContext | None
    owner: str | None
    stages: int
    frame: Frame
    limits: Limits

    def finish(self, body: Buffer) -> ForwardRequest:
        """Read the body. The request's activation is a view of it. Raises BadField."""
        meta, activation, raw = self.frame.split(body, self.limits)
        length = len(meta.tokens)
        if activation is not None:
            length = activation.hidden.shape[-2]
            if meta.tokens and len(meta.tokens) != length:
                raise BadField("meta.tokens", f"{length} ids, one a position", len(meta.tokens))
        if self.past_length + length > self.limits.positions:
            expected = f"past and new positions of at most {self.limits.positions}"
            raise BadField(h.PAST_LEN, expected, self.past_length + length)
        _refuse_what_frames_say(meta)
        request = ForwardRequest(
            mode=self.mode,
            session=self.session,
            past_length=self.past_length,
            layers=self.layers,
            model=self.model,
            fingerprint=self.fingerprint,
            attempt=self.attempt,
            prefix=self.prefix,
            deadline_ms=self.deadline_ms,
            wire=self.wire,
            tokens=meta.tokens,
            sampling=meta.sampling,
            want_token=meta.want_token,
            drafts=meta.drafts,
            truncate=self.truncate,
            adopt=self.adopt,
            activation=activation,
            raw=raw,
            raw_shape=self.frame.shape if raw else None,
            raw_dtype=self.frame.dtype if raw else None,
            trace=self.trace,
            traceparent=self.traceparent,
            owner=self.owner,
            stages=self.stages,
            replay=self.replay,
            fill=self.fill,
        )
        return _checked(request)


def _checked(request: ForwardRequest) -> ForwardRequest:
    if request.drafts:
        count, drawn = len(request.tokens), request.want_token
        check_drafts("meta.drafts", request.drafts, request.mode, tokens=count, want_token=drawn)
    check_recovery(request)
    return request


def _refuse_what_frames_say(meta: Meta) -> None:
    if meta.route:
        raise BadField("meta.route", "no hops to come in a request: nobody hands it on", "some")
    if meta.adopt is not None:
        raise BadField("meta.adopt", f"{h.ADOPT} in its place", meta.adopt)


def parse_head(
    headers: Iterable[tuple[str, str]], content_length: int | None, limits: Limits
) -> RequestHead:
    """Check everything that the headers and the length of the body decide.

    `content_length` is None for a chunked body. Raises BadField; TooLarge (a BadField) if the
    body or its meta block is over the limit.
    """
    found = h.collect(headers, limits)
    mode = h.read_mode(found)
    session = h.read_session(found)
    if session is None and mode is not Mode.STATELESS:
        raise BadField(h.SESSION, f"a session id with {h.CACHE}", None)
    past_length = _past_length(found, mode, limits)
    return RequestHead(
        mode=mode,
        session=session,
        past_length=past_length,
        layers=h.read_layers(found),
        model=h.read_model(found),
        fingerprint=h.read_fingerprint(found),
        attempt=h.read_integer(found, h.ATTEMPT),
        prefix=h.read_prefix(found),
        truncate=_truncate(found, mode),
        adopt=_adopt(found, mode, session, past_length),
        replay=h.read_replay(found),
        fill=h.read_fill(found),
        deadline_ms=h.read_integer(found, h.DEADLINE_MS),
        wire=h.read_integer(found, h.WIRE) or 0,
        trace=h.read_request(found),
        traceparent=h.read_traceparent(found),
        owner=h.read_owner(found),
        stages=h.read_stages(found),
        frame=read_frame(found, content_length, limits),
        limits=limits,
    )


def _past_length(found: dict[str, str], mode: Mode, limits: Limits) -> int:
    past_length = h.read_integer(found, h.PAST_LEN)
    if mode is not Mode.DECODE:
        if past_length is not None:
            raise BadField(h.PAST_LEN, f"no such field without {h.CACHE}: decode", past_length)
        return 0
    if past_length is None or past_length > limits.positions:
        raise BadField(h.PAST_LEN, f"0 to {limits.positions} in a decode", past_length)
    return past_length


def _truncate(found: dict[str, str], mode: Mode) -> bool:
    truncate = h.read_truncate(found)
    if truncate:
        check_truncation(mode, found.get(h.PREFIX))
    return truncate


def _adopt(
    found: dict[str, str], mode: Mode, session: SessionId | None, past_length: int
) -> SessionId | None:
    adopt = h.read_adopt(found)
    if adopt is not None:
        check_adoption(mode, session, adopt, past_length, prefix=found.get(h.PREFIX))
    return adopt


@dataclass(frozen=True, slots=True)
class Frame:
    """What the headers say of the body: n bytes of meta, then one tensor, several, or raw bytes."""

    content_length: int | None
    meta_bytes: int
    shape: tuple[int, ...] | None
    dtype: DType | None

    def split(self, body: Buffer, limits: Limits) -> tuple[Meta, Activation | None, Buffer]:
        """Return the meta block and, of the rest, the activation or the raw bytes."""
        if self.content_length is None:
            _check_lengths(len(body), self.meta_bytes, self.shape, self.dtype, limits)
        elif len(body) != self.content_length:
            raise BadField(BODY, f"{self.content_length} bytes", len(body))
        view = memoryview(body)
        meta = read_meta(view[: self.meta_bytes], limits) if self.meta_bytes else NO_META
        rest = view[self.meta_bytes :]
        specs = self.specs(meta)
        if not specs:
            if not rest and not meta.tokens:
                raise BadField(BODY, "an activation or tokens", "neither")
            return meta, None, rest if rest else b""
        expected = sum(spec.nbytes for spec in specs)
        if len(rest) != expected:
            raise BadField(BODY, f"{expected} bytes of tensors", len(rest))
        return meta, Activation(specs, rest), b""

    def specs(self, meta: Meta) -> tuple[TensorSpec, ...]:
        if meta.tensors:
            if self.shape is not None or self.dtype is not None:
                raise BadField("meta.tensors", f"no {h.SHAPE} or {h.DTYPE} beside it", "both")
            return meta.tensors
        if self.shape is None or self.dtype is None:
            return ()
        return (TensorSpec(HIDDEN, self.dtype, self.shape),)


def read_frame(found: dict[str, str], content_length: int | None, limits: Limits) -> Frame:
    """Check the fields that describe a body against its length. Raises BadField."""
    meta_bytes = h.read_integer(found, h.META) or 0
    if meta_bytes > limits.meta_bytes:
        raise TooLarge(h.META, f"at most {limits.meta_bytes} bytes", meta_bytes)
    shape = h.read_shape(found, limits)
    dtype = h.read_dtype(found)
    if content_length is not None:
        _check_lengths(content_length, meta_bytes, shape, dtype, limits)
    return Frame(content_length, meta_bytes, shape, dtype)


def _check_lengths(
    total: int, meta: int, shape: tuple[int, ...] | None, dtype: DType | None, limits: Limits
) -> None:
    if total > limits.body_bytes:
        raise TooLarge(BODY, f"at most {limits.body_bytes} bytes", total)
    if total == 0:
        raise BadField(BODY, "an activation or tokens", "0 bytes")
    if meta > total:
        raise BadField(h.META, f"at most the {total} bytes of the body", meta)
    if shape is None:
        return
    elements = math.prod(shape)
    sizes = {elements * kind.itemsize for kind in ([dtype] if dtype else DType)}
    if total - meta not in sizes:
        expected = " or ".join(str(meta + size) for size in sorted(sizes))
        raise BadField(BODY, f"{expected} bytes for shape {h.print_shape(shape)}", total)


def activation_of(request: ForwardRequest, *, hidden_size: int, dtype: DType) -> Activation | None:
    """Return the request's activation, reading a raw body as [1, T, hidden_size] of `dtype`.

    None if the request brings only tokens. Raises BadField if the raw body is not that.
    """
    if request.activation is not None or not request.raw:
        return request.activation
    if request.raw_dtype not in (None, dtype):
        raise BadField(h.DTYPE, f"{dtype.value}, the shard's", request.raw_dtype)
    length, remainder = divmod(len(request.raw), hidden_size * dtype.itemsize)
    if remainder or not length:
        row = f"a multiple of {hidden_size * dtype.itemsize} bytes ({hidden_size} {dtype.value})"
        raise BadField(BODY, row, len(request.raw))
    shape = (1, length, hidden_size)
    if request.raw_shape not in (None, shape):
        raise BadField(h.SHAPE, h.print_shape(shape), request.raw_shape)
    return Activation((TensorSpec(HIDDEN, dtype, shape),), request.raw)
