"""How a session stream is opened: what all of its steps have in common, as headers.

A step that differs in any of it cannot go over that stream (`covers`), and gets another.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from meshnet.core.protocol import headers as h
from meshnet.core.protocol.limits import Limits
from meshnet.core.protocol.messages import ForwardRequest
from meshnet.core.vocabulary import ModelId, NodeId, SessionId, TraceContext


@dataclass(frozen=True, slots=True)
class Opening:
    """What every step of a stream has in common, told once."""

    session: SessionId
    model: ModelId | None = None
    fingerprint: str | None = None
    wire: int = 0
    trace: str | None = None
    owner: str | None = None
    stages: int = 1
    onward: bool = False
    """Opened by the hop before, which hands on the head's steps: answers go to the head."""
    next: NodeId | None = None
    """To whom steps will be handed on: the node may open a stream there before the first comes."""
    traceparent: TraceContext | None = None
    """Of the step that it was opened for. Others may go over it: a trace decides nothing."""

    @classmethod
    def of(cls, request: ForwardRequest) -> Opening:
        assert request.session is not None, "a stream belongs to a session"
        return cls(
            session=request.session,
            model=request.model,
            fingerprint=request.fingerprint,
            wire=request.wire,
            trace=request.trace,
            owner=request.owner,
            stages=request.stages,
            next=request.route[0].node if request.route else None,
            traceparent=request.traceparent,
        )

    def covers(self, request: ForwardRequest) -> bool:
        """Whether `request` may go over a stream that was opened with these."""
        return (
            request.session is not None
            and request.session == self.session
            and request.model == self.model
            and request.fingerprint == self.fingerprint
            and request.wire == self.wire
            and request.trace == self.trace
            and request.owner == self.owner
            and request.stages == self.stages
        )

    def headers(self) -> dict[str, str]:
        fields: dict[str, str] = {}
        if self.model is not None:
            fields[h.MODEL] = h.print_quoted(self.model)
        if self.fingerprint is not None:
            fields[h.FINGERPRINT] = h.print_quoted(self.fingerprint)
        if self.wire:
            fields[h.WIRE] = str(self.wire)
        if self.trace is not None:
            fields[h.REQUEST] = self.trace
        if self.owner is not None:
            fields[h.OWNER] = self.owner
        if self.stages > 1:
            fields[h.STAGES] = str(self.stages)
        if self.onward:
            fields[h.ONWARD] = "1"
        if self.next is not None:
            fields[h.NEXT] = h.print_quoted(self.next)
        if self.traceparent is not None:
            fields[h.TRACEPARENT] = str(self.traceparent)
        return fields

    @classmethod
    def parse(cls, name: str, headers: Iterable[tuple[str, str]], limits: Limits) -> Opening:
        """Read the session's name from the path and the rest from the headers. Raises BadField."""
        found = h.collect(headers, limits)
        return cls(
            session=h.session_id(name),
            model=h.read_model(found),
            fingerprint=h.read_fingerprint(found),
            wire=h.read_integer(found, h.WIRE) or 0,
            trace=h.read_request(found),
            owner=h.read_owner(found),
            stages=h.read_stages(found),
            onward=h.read_onward(found),
            next=h.read_next(found),
            traceparent=h.read_traceparent(found),
        )
