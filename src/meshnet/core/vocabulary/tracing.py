"""Which trace something belongs to, as W3C Trace Context writes it: `traceparent`.

    00-<trace id, 32 hex>-<span id, 16 hex>-<flags, 2 hex>      flag 1: sampled

Telemetry influences nothing: what cannot be read is as if it were not there.
Source: https://www.w3.org/TR/trace-context/.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A span that others may be under. `parent` is the id of the one that it is under itself."""

    trace_id: str
    span_id: str
    sampled: bool
    parent: str | None = None

    @classmethod
    def parse(cls, text: str) -> TraceContext | None:
        """Read `traceparent`, also of a later version; None for anything else."""
        match = _TRACEPARENT.fullmatch(text) if len(text) <= 512 else None
        if match is None:
            return None
        version, trace_id, span_id, flags, rest = match.groups()
        if version == "ff" or (version == "00" and rest):
            return None
        if not int(trace_id, 16) or not int(span_id, 16):
            return None
        return cls(trace_id, span_id, bool(int(flags, 16) & _SAMPLED))

    def child(self, span_id: str) -> TraceContext:
        """Return the context of a span under this one."""
        return TraceContext(self.trace_id, span_id, self.sampled, self.span_id)

    def __str__(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{int(self.sampled):02x}"
