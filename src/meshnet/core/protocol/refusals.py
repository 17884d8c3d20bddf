"""Which answer each error of this package's own is, and how a refusal is written.

    {"error": "cache_miss", "reason": "past_length", "message": "expected 17 positions, ..."}

A reply is read as a refusal of ours only if its code belongs to its status, so that a proxy's
409 is never taken for a cache miss.
"""

from __future__ import annotations

from typing import Any

from meshnet.core.protocol import headers as h
from meshnet.core.protocol.fields import Fields, print_object, read_object
from meshnet.core.protocol.limits import Limits
from meshnet.core.protocol.messages import Code, Refusal
from meshnet.core.vocabulary import (
    BadField,
    Buffer,
    KVCacheMiss,
    MeshnetError,
    MissReason,
    NoRoom,
    NumericalError,
    StaleAttempt,
    StepTorn,
    TooLarge,
    WrongShard,
)

JSON = "application/json"
MESSAGE_CHARS_MAX = 2000


def refusal_of(error: MeshnetError) -> Refusal:
    """Return what a node answers when `error` ended a request."""
    message = str(error)[:MESSAGE_CHARS_MAX]
    match error:
        case TooLarge():
            return Refusal(Code.TOO_LARGE, message)
        case BadField():
            return Refusal(Code.BAD_REQUEST, message)
        case WrongShard():
            return Refusal(Code.NOT_FOUND, message)
        case KVCacheMiss():
            return Refusal(Code.CACHE_MISS, message, reason=error.reason)
        case StaleAttempt():
            return Refusal(Code.STALE_ATTEMPT, message)
        case NoRoom():
            return Refusal(Code.NO_ROOM, message, retry_after_s=error.retry_after_s)
        case StepTorn():
            # Memory may be free later; another failure would only be waited for in vain.
            return Refusal(Code.OUT_OF_MEMORY if error.out_of_memory else Code.INTERNAL, message)
        case NumericalError():
            return Refusal(Code.NUMERICAL_ERROR, message)
        case _:
            return Refusal(Code.INTERNAL, message)


def encode_refusal(refusal: Refusal) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers and JSON body."""
    values: dict[str, Any] = {"error": refusal.code.wire_name}
    if refusal.reason is not None:
        values["reason"] = refusal.reason.value
    values["message"] = refusal.message[:MESSAGE_CHARS_MAX]
    headers = {h.CONTENT_TYPE: JSON}
    if refusal.retry_after_s is not None:
        values["retry_after_s"] = refusal.retry_after_s
        headers[h.RETRY_AFTER] = h.print_retry_after(refusal.retry_after_s)
    return refusal.code.status, headers, print_object(values)


def decode_refusal(
    status: int, found: dict[str, str], body: Buffer, limits: Limits
) -> Refusal | None:
    """Read our refusal; or, where the status alone tells enough, a stranger's; None else."""
    retry_after_s = h.read_retry_after(found)
    try:
        fields = read_object(body, "error", limits)
        name = fields.text("error")
        message = fields.text("message") if fields.has("message") else ""
    except BadField:
        name, message = "", ""
    else:
        for code in Code:
            if code.wire_name == name and code.status == status:
                exact = _retry_after(fields)
                wait_s = retry_after_s if exact is None else exact
                return Refusal(code, message, wait_s, _reason(fields))
    code_of_status = _STRANGERS.get(status)
    if code_of_status is None:
        return None
    return Refusal(code_of_status, message or f"HTTP {status} without a reason", retry_after_s)


def _retry_after(fields: Fields) -> float | None:
    """The header knows whole seconds only; the body repeats the wait exactly."""
    try:
        wait_s = fields.number("retry_after_s")
    except BadField:
        return None
    return wait_s if wait_s >= 0 else None


def _reason(fields: Fields) -> MissReason | None:
    try:
        return MissReason(fields.text("reason")) if fields.has("reason") else None
    except (BadField, ValueError):
        return None


_STRANGERS = {
    code.status: code
    for code in (
        Code.BAD_REQUEST,
        Code.UNAUTHORIZED,
        Code.FORBIDDEN,
        Code.TOO_LARGE,
        Code.NO_ROOM,
        Code.NOT_READY,
    )
}
