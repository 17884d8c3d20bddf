"""Server-sent events: one line of JSON per frame, comments while there is nothing to say.

Invariants
    * a frame is `data: <one line>` and an empty line; JSON escapes every line end a model or a
      user may write, U+2028 included, so no text can forge a frame;
    * nothing but JSON of ours and fixed words is ever put on the stream.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False, ensure_ascii=True)

KEEP_ALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"

HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}


def one_line_json(body: Mapping[str, Any]) -> str:
    return _ENCODER.encode(body)


def frame(body: Mapping[str, Any]) -> bytes:
    return f"data: {one_line_json(body)}\n\n".encode("ascii")
