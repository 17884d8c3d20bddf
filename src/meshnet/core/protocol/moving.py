"""How a session moves to another node: what the receiver and the giver ask and answer (ADR-0045).

    head ── POST /sessions/{id}/take ──▶ receiver        {"from", "layers", "tokens", ...}
                                         receiver ── GET /sessions/{id}/layers/{n} ──▶ giver
                                         receiver ◀── meta block, tensors ──────────── giver
    head ◀── GET /sessions/{id}'s JSON ── receiver

The meta block says whose state the tensors are: layer, length, prefix digest, attempt, fingerprint
and arithmetic. All of it must be there; a node without these paths answers 404 or 405, and then
nothing moves.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from meshnet.core.protocol import headers as h
from meshnet.core.protocol.description import decode_session
from meshnet.core.protocol.fields import Fields, print_object, read_object
from meshnet.core.protocol.limits import Limits
from meshnet.core.protocol.marks import MARKS_MAX
from meshnet.core.protocol.messages import Refusal
from meshnet.core.protocol.meta import print_tensors, read_sampling, read_tensors, sampling_values
from meshnet.core.protocol.refusals import decode_refusal
from meshnet.core.protocol.reservations import ATTEMPT_MAX
from meshnet.core.vocabulary import (
    TOKEN_ID_MAX,
    BadField,
    Buffer,
    HopLost,
    LayerRange,
    LayerState,
    ModelId,
    NodeId,
    SamplingParams,
    SessionDescription,
    SessionId,
)

TENSORS_MAX = 64
"""Tensors of one layer: keys and values, states, and copies of those."""
DEADLINE_MS_MAX = 10**h.INTEGER_DIGITS - 1
NODE_CHARS_MAX = 512
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LayerRequest:
    """Ask the giver for one layer of a session of exactly these positions."""

    session: SessionId
    layer: int
    length: int
    prefix: str
    attempt: int
    model: ModelId
    fingerprint: str


@dataclass(frozen=True, slots=True)
class LayerReply:
    """One layer as the giver held it, and what of."""

    layer: int
    length: int
    prefix: str
    attempt: int
    fingerprint: str
    arithmetic: str
    held: LayerState

    def answers(self, asked: LayerRequest) -> bool:
        """Whether it is the layer that was asked for, at that length and of those ids."""
        wanted = (asked.layer, asked.length, asked.prefix, asked.attempt, asked.fingerprint)
        return wanted == (self.layer, self.length, self.prefix, self.attempt, self.fingerprint)


@dataclass(frozen=True, slots=True)
class TakeRequest:
    """Tell a node to take `layers` of a session over from `giver`: a prefill without computing."""

    session: SessionId
    giver: NodeId
    layers: LayerRange
    attempt: int
    tokens: tuple[int, ...]
    """Of all positions that the giver holds for certain."""
    model: ModelId
    fingerprint: str
    sampling: SamplingParams
    deadline_ms: int


def encode_layer_request(request: LayerRequest) -> dict[str, str]:
    """Return the headers; session and layer are in the path."""
    return {
        h.PAST_LEN: str(request.length),
        h.PREFIX: request.prefix,
        h.ATTEMPT: str(request.attempt),
        h.MODEL: h.print_quoted(request.model),
        h.FINGERPRINT: h.print_quoted(request.fingerprint),
    }


def decode_layer_request(
    session: str, layer: str, headers: Iterable[tuple[str, str]], limits: Limits
) -> LayerRequest:
    """Raises BadField."""
    found = h.collect(headers, limits)
    return LayerRequest(
        session=h.session_id(session),
        layer=_there("layer", h.read_integer({"layer": layer}, "layer")),
        length=_there(h.PAST_LEN, h.read_integer(found, h.PAST_LEN)),
        prefix=_there(h.PREFIX, h.read_prefix(found)),
        attempt=_there(h.ATTEMPT, h.read_integer(found, h.ATTEMPT)),
        model=_there(h.MODEL, h.read_model(found)),
        fingerprint=_there(h.FINGERPRINT, h.read_fingerprint(found)),
    )


def encode_layer(reply: LayerReply) -> tuple[dict[str, str], list[Buffer]]:
    """Return headers and the parts of the body; tensor bytes are not copied."""
    meta = print_object(
        {
            "layer": reply.layer,
            "length": reply.length,
            "prefix": reply.prefix,
            "attempt": reply.attempt,
            "fingerprint": reply.fingerprint,
            "arithmetic": reply.arithmetic,
            "marks": reply.held.marks,
            "tensors": print_tensors(reply.held.tensors),
        }
    )
    fields = {h.CONTENT_TYPE: "application/octet-stream", h.META: str(len(meta))}
    return fields, [meta, reply.held.data]


def decode_layer(
    status: int, headers: Iterable[tuple[str, str]], body: Buffer, limits: Limits
) -> LayerReply | Refusal:
    """Read the giver's answer. Raises HopLost if it is none of this protocol."""
    try:
        found = h.collect(headers, limits)
        if status == 200:
            return _layer(h.read_integer(found, h.META) or 0, body, limits)
        refusal = decode_refusal(status, found, body, limits)
    except BadField as error:
        raise HopLost(f"unreadable layer of a session: {error}") from None
    if refusal is None:
        raise HopLost(f"HTTP {status} for a layer of a session")
    return refusal


def _layer(meta_bytes: int, body: Buffer, limits: Limits) -> LayerReply:
    if not 0 < meta_bytes <= min(len(body), limits.meta_bytes):
        raise BadField(h.META, f"1 to {min(len(body), limits.meta_bytes)} bytes", meta_bytes)
    view = memoryview(body)
    fields = read_object(view[:meta_bytes], "layer", limits)
    specs = read_tensors(fields, limits, count_max=TENSORS_MAX)
    marks = fields.integers("marks", count_max=MARKS_MAX, high=limits.positions)
    try:
        held = LayerState(specs, view[meta_bytes:], marks)
    except ValueError as error:
        raise BadField("body", f"the described tensors ({error})", len(body)) from None
    return LayerReply(
        layer=fields.integer("layer", high=limits.positions),
        length=fields.integer("length", high=limits.positions),
        prefix=_prefix(fields),
        attempt=fields.integer("attempt", high=ATTEMPT_MAX),
        fingerprint=fields.text("fingerprint"),
        arithmetic=fields.text("arithmetic"),
        held=held,
    )


def _prefix(fields: Fields) -> str:
    return _there("prefix", h.read_prefix({h.PREFIX: fields.text("prefix", chars_max=16)}))


def encode_take(request: TakeRequest) -> bytes:
    values: dict[str, Any] = {
        "from": request.giver,
        "layers": str(request.layers),
        "attempt": request.attempt,
        "tokens": request.tokens,
        "model": request.model,
        "fingerprint": request.fingerprint,
        "sampling": sampling_values(request.sampling),
        "deadline_ms": request.deadline_ms,
    }
    return print_object(values)


def decode_take(session: str, data: Buffer, limits: Limits) -> TakeRequest:
    """Read an order to take a session over; `session` comes from the path. Raises BadField."""
    fields = read_object(data, "take", limits)
    tokens = fields.integers("tokens", count_max=limits.positions, high=TOKEN_ID_MAX)
    if not tokens:
        raise fields.refuse("tokens", "at least one id")
    return TakeRequest(
        session=h.session_id(session),
        giver=NodeId(fields.text("from", chars_max=NODE_CHARS_MAX)),
        layers=fields.layers("layers"),
        attempt=fields.integer("attempt", high=ATTEMPT_MAX),
        tokens=tokens,
        model=ModelId(fields.text("model")),
        fingerprint=fields.text("fingerprint"),
        sampling=read_sampling(fields.object("sampling")),
        deadline_ms=fields.integer("deadline_ms", low=1, high=DEADLINE_MS_MAX),
    )


def decode_taken(
    status: int, headers: Iterable[tuple[str, str]], body: Buffer, limits: Limits
) -> SessionDescription | Refusal:
    """Read the receiver's answer. Raises HopLost if it is none of this protocol."""
    try:
        if status == 200:
            return decode_session(body, limits)
        refusal = decode_refusal(status, h.collect(headers, limits), body, limits)
    except BadField as error:
        raise HopLost(f"unreadable answer: {error}") from None
    if refusal is None:
        raise HopLost(f"HTTP {status} for an order to take a session over")
    return refusal


def _there(field: str, value: T | None) -> T:
    if value is None:
        raise BadField(field, "a value", None)
    return value
