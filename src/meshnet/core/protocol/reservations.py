"""`PUT /sessions/{id}`: room for a session before its first prefill, as JSON, and the answer.

    {"tokens": 700, "model": "smollm2-135m", "layers": "0-10", "attempt": 1,
     "adopt": "id of the session whose place this one will take"}
    200 {"session": id, "tokens": 700, "running": true}
    429 no_room with Retry-After, or another refusal

`running` is there while a step of the session runs or waits its turn.

A node that does not know the method (404, 405, 501 without an error of this protocol) is an
ADR-0022 node: it reserves nothing and refuses nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from meshnet.core.protocol import headers as h
from meshnet.core.protocol.fields import print_object, read_object
from meshnet.core.protocol.limits import Limits
from meshnet.core.protocol.messages import Refusal, Reserved, ReserveRequest
from meshnet.core.protocol.refusals import decode_refusal
from meshnet.core.vocabulary import BadField, Buffer, HopLost, ModelId

ATTEMPT_MAX = 10**h.INTEGER_DIGITS - 1
_UNKNOWN_METHOD = (404, 405, 501)


def encode_reserve(request: ReserveRequest) -> bytes:
    values: dict[str, Any] = {"tokens": request.tokens}
    if request.model is not None:
        values["model"] = request.model
    if request.layers is not None:
        values["layers"] = str(request.layers)
    if request.attempt is not None:
        values["attempt"] = request.attempt
    if request.adopt is not None:
        values["adopt"] = request.adopt
    return print_object(values)


def decode_reserve(session: str, data: Buffer, limits: Limits) -> ReserveRequest:
    """Read a reservation; `session` comes from the path. Raises BadField."""
    fields = read_object(data, "reservation", limits)
    adopt = fields.text("adopt") if fields.has("adopt") else None
    return ReserveRequest(
        session=h.session_id(session),
        tokens=fields.integer("tokens", low=1, high=limits.positions),
        model=ModelId(fields.text("model")) if fields.has("model") else None,
        layers=fields.layers("layers") if fields.has("layers") else None,
        attempt=fields.integer("attempt", high=ATTEMPT_MAX) if fields.has("attempt") else None,
        adopt=None if adopt is None else h.session_id(adopt, "reservation.adopt"),
    )


def encode_reserved(reserved: Reserved) -> bytes:
    values: dict[str, Any] = {"session": reserved.session, "tokens": reserved.tokens}
    if reserved.running:
        values["running"] = True
    return print_object(values)


def decode_reserve_reply(
    status: int,
    headers: Iterable[tuple[str, str]],
    body: Buffer,
    asked: ReserveRequest,
    limits: Limits,
) -> Reserved | Refusal:
    """Raises HopLost if the answer is none of this protocol."""
    if status == 200:
        return Reserved(asked.session, asked.tokens, _running(body, limits))
    try:
        refusal = decode_refusal(status, h.collect(headers, limits), body, limits)
    except BadField as error:
        raise HopLost(f"unreadable answer: {error}") from None
    if refusal is not None:
        return refusal
    if status in _UNKNOWN_METHOD:
        return Reserved(asked.session, asked.tokens)
    raise HopLost(f"HTTP {status} in answer to a reservation")


def _running(body: Buffer, limits: Limits) -> bool:
    """Older nodes do not say: then nothing is known to run."""
    try:
        fields = read_object(body, "reserved", limits)
        return fields.has("running") and fields.truth("running")
    except BadField:
        return False
