"""The X-Meshnet-* header fields: their names, and one strict reading and printing of each.

A field is absent (None), or present and right; present and wrong, or there twice, is BadField
with the field's name. Numbers are plain decimal digits: no sign, space, exponent or leading zero.
Unknown X-Meshnet-* fields are ignored: headers are additive (ADR-0022).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import quote, unquote

from meshnet.core.protocol.limits import Limits
from meshnet.core.protocol.messages import Mode
from meshnet.core.vocabulary import (
    BadField,
    DType,
    LayerRange,
    ModelId,
    NodeId,
    SessionId,
    TraceContext,
)

SESSION = "X-Meshnet-Session"
CACHE = "X-Meshnet-Cache"
PAST_LEN = "X-Meshnet-Past-Len"
SHAPE = "X-Meshnet-Shape"
DTYPE = "X-Meshnet-Dtype"
LAYERS = "X-Meshnet-Layers"
MODEL = "X-Meshnet-Model"
FINGERPRINT = "X-Meshnet-Fingerprint"
WIRE = "X-Meshnet-Wire"
DEADLINE_MS = "X-Meshnet-Deadline-Ms"
META = "X-Meshnet-Meta"
PREFIX = "X-Meshnet-Prefix"
ATTEMPT = "X-Meshnet-Attempt"
TRUNCATE = "X-Meshnet-Truncate"
ADOPT = "X-Meshnet-Adopt"
REPLAY = "X-Meshnet-Replay"
FILL = "X-Meshnet-Fill"
CACHED = "X-Meshnet-Cached"
COMPUTE_US = "X-Meshnet-Compute-Us"
REQUEST = "X-Meshnet-Request"
OWNER = "X-Meshnet-Owner"
STAGES = "X-Meshnet-Stages"
LINGER = "X-Meshnet-Linger"
ONWARD = "X-Meshnet-Onward"
NEXT = "X-Meshnet-Next"
TRACEPARENT = "traceparent"
"""W3C's own: not one of ours, and not held against their limit."""
RETRY_AFTER = "Retry-After"
CONTENT_TYPE = "Content-Type"

FIELDS = (
    SESSION,
    CACHE,
    PAST_LEN,
    SHAPE,
    DTYPE,
    LAYERS,
    MODEL,
    FINGERPRINT,
    WIRE,
    DEADLINE_MS,
    META,
    PREFIX,
    ATTEMPT,
    TRUNCATE,
    ADOPT,
    REPLAY,
    FILL,
    CACHED,
    COMPUTE_US,
    REQUEST,
    OWNER,
    STAGES,
    LINGER,
    ONWARD,
    NEXT,
)

INTEGER_DIGITS = 10
_OURS = "x-meshnet-"
_SINGLE = {name.lower(): name for name in (*FIELDS, TRACEPARENT, RETRY_AFTER, CONTENT_TYPE)}
_SESSION_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_QUOTED = re.compile(r"(?:[A-Za-z0-9._~:@+/=-]|%[0-9A-F]{2}){1,512}")
_QUOTED_SAFE = "._~:@+/=-"
_SHAPE = re.compile(r"[1-9][0-9]{0,8}(?:,[1-9][0-9]{0,8})*")
_PREFIX = re.compile(r"[0-9a-f]{16}")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_OWNER = re.compile(r"[A-Za-z0-9._-]{1,32}")
STAGES_MAX = 64
_DTYPES = {dtype.value: dtype for dtype in DType}
_MODES = {Mode.PREFILL.value: Mode.PREFILL, Mode.DECODE.value: Mode.DECODE}


def collect(headers: Iterable[tuple[str, str]], limits: Limits) -> dict[str, str]:
    """Return the fields this protocol reads, by their canonical names, each at most once.

    Raises BadField for a field that is there twice or X-Meshnet-* fields over the limit.
    """
    found: dict[str, str] = {}
    size = 0
    for spelled, value in headers:
        lower = spelled.lower()
        if lower.startswith(_OURS):
            size += len(spelled) + len(value)
        name = _SINGLE.get(lower)
        if name is None:
            continue
        if name in found and name.startswith("X-"):
            raise BadField(name, "one value", f"{found[name]} and {value}")
        found[name] = value
    if size > limits.header_bytes:
        raise BadField("headers", f"X-Meshnet-* of at most {limits.header_bytes} bytes", size)
    return found


def read_integer(found: dict[str, str], name: str) -> int | None:
    text = found.get(name)
    if text is None:
        return None
    plain = text.isascii() and text.isdigit() and len(text) <= INTEGER_DIGITS
    if not plain or (text[0] == "0" and text != "0"):
        raise BadField(name, f"a decimal integer of at most {INTEGER_DIGITS} digits", text)
    return int(text)


def read_mode(found: dict[str, str]) -> Mode:
    text = found.get(CACHE)
    if text is None:
        return Mode.STATELESS
    mode = _MODES.get(text)
    if mode is None:
        raise BadField(CACHE, "'prefill' or 'decode'", text)
    return mode


def read_session(found: dict[str, str]) -> SessionId | None:
    text = found.get(SESSION)
    return None if text is None else session_id(text)


def session_id(text: str, field: str = SESSION) -> SessionId:
    """Check a session id wherever it came from (header or path). Raises BadField."""
    if _SESSION_ID.fullmatch(text) is None or text == "." or ".." in text:
        raise BadField(field, "1 to 128 of A-Z a-z 0-9 . _ - without '..'", text)
    return SessionId(text)


def read_shape(found: dict[str, str], limits: Limits) -> tuple[int, ...] | None:
    text = found.get(SHAPE)
    if text is None:
        return None
    expected = f"2 to {limits.dimensions} sizes parted by commas, such as 1,7,576"
    if _SHAPE.fullmatch(text) is None:
        raise BadField(SHAPE, expected, text)
    shape = tuple(map(int, text.split(",")))
    if not 2 <= len(shape) <= limits.dimensions:
        raise BadField(SHAPE, expected, text)
    return shape


def print_shape(shape: tuple[int, ...]) -> str:
    return ",".join(map(str, shape))


def read_dtype(found: dict[str, str]) -> DType | None:
    text = found.get(DTYPE)
    return None if text is None else dtype_of(text, DTYPE)


def dtype_of(text: str, field: str) -> DType:
    dtype = _DTYPES.get(text)
    if dtype is None:
        raise BadField(field, "one of " + ", ".join(_DTYPES), text)
    return dtype


def read_layers(found: dict[str, str]) -> LayerRange | None:
    text = found.get(LAYERS)
    if text is None:
        return None
    try:
        return LayerRange.parse(text)
    except ValueError:
        raise BadField(LAYERS, "A-B, half-open, such as 0-10", text) from None


def read_model(found: dict[str, str]) -> ModelId | None:
    text = _read_quoted(found, MODEL)
    return None if text is None else ModelId(text)


def read_fingerprint(found: dict[str, str]) -> str | None:
    """Of the weights that the step is meant for."""
    return _read_quoted(found, FINGERPRINT)


def _read_quoted(found: dict[str, str], name: str) -> str | None:
    text = found.get(name)
    if text is None:
        return None
    try:
        if _QUOTED.fullmatch(text):
            return unquote(text, errors="strict") if "%" in text else text
    except UnicodeDecodeError:
        pass
    raise BadField(name, "1 to 512 characters, percent-encoded UTF-8", text)


def print_quoted(text: str) -> str:
    return quote(text, safe=_QUOTED_SAFE)


def read_prefix(found: dict[str, str]) -> str | None:
    text = found.get(PREFIX)
    if text is not None and _PREFIX.fullmatch(text) is None:
        raise BadField(PREFIX, "16 hex digits in lower case", text)
    return text


def read_adopt(found: dict[str, str]) -> SessionId | None:
    text = found.get(ADOPT)
    return None if text is None else session_id(text, ADOPT)


def read_truncate(found: dict[str, str]) -> bool:
    return _read_flag(found, TRUNCATE)


def read_replay(found: dict[str, str]) -> bool:
    return _read_flag(found, REPLAY)


def read_fill(found: dict[str, str]) -> bool:
    return _read_flag(found, FILL)


def read_linger(found: dict[str, str]) -> bool:
    return _read_flag(found, LINGER)


def read_next(found: dict[str, str]) -> NodeId | None:
    """Return to whom steps of a stream will be handed on."""
    text = _read_quoted(found, NEXT)
    return None if text is None else NodeId(text)


def read_onward(found: dict[str, str]) -> bool:
    """A stream that a node opened, to hand on steps of a head."""
    return _read_flag(found, ONWARD)


def _read_flag(found: dict[str, str], name: str) -> bool:
    text = found.get(name)
    if text not in (None, "1"):
        raise BadField(name, "1, or no such field", text)
    return text is not None


def read_request(found: dict[str, str]) -> str | None:
    """The id that the log lines of one API request share on every hop."""
    text = found.get(REQUEST)
    if text is not None and _REQUEST_ID.fullmatch(text) is None:
        raise BadField(REQUEST, "1 to 128 of A-Z a-z 0-9 . _ -", text)
    return text


def read_traceparent(found: dict[str, str]) -> TraceContext | None:
    """Return the span that the step is under; what cannot be read counts as absent."""
    text = found.get(TRACEPARENT)
    return None if text is None else TraceContext.parse(text)


def read_owner(found: dict[str, str]) -> str | None:
    """A tag that says whose step it is, and nothing else about them."""
    text = found.get(OWNER)
    if text is not None and _OWNER.fullmatch(text) is None:
        raise BadField(OWNER, "1 to 32 of A-Z a-z 0-9 . _ -", text)
    return text


def read_stages(found: dict[str, str]) -> int:
    stages = read_integer(found, STAGES)
    if stages is None:
        return 1
    if not 1 <= stages <= STAGES_MAX:
        raise BadField(STAGES, f"1 to {STAGES_MAX}", stages)
    return stages


def read_retry_after(found: dict[str, str]) -> float | None:
    """Seconds to wait, or None; the HTTP date form and garbage count as absent."""
    text = found.get(RETRY_AFTER, "")
    return float(text) if _SECONDS.fullmatch(text) else None


def print_retry_after(retry_after_s: float) -> str:
    """Print whole seconds where they say it, since RFC 9110 knows no fraction; round up else."""
    return str(max(0, -int(-retry_after_s // 1)))


_SECONDS = re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,6})?")
