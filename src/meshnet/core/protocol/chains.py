"""Steps that nodes hand on to each other: how they are numbered, checked, and worded for the next.

    head ──step n──▶ hop 0 ──step n──▶ hop 1 ──step n──▶ tail
      ◀─────────────── answer to step n ─────────────────┘     on the head's own stream to the tail

A way may end before the last layers: then its last hop answers with an activation, as it would to
the head alone, and the head asks whoever comes next.

A chained step keeps its number on its way, and whichever hop ends it answers on the stream that
the head has to that hop. Its number has the highest bit, so that an answer nobody waits for any
more is known as such, and never taken for one to another step.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from meshnet.core.protocol.messages import (
    ActivationReply,
    Code,
    ForwardRequest,
    Mode,
    Refusal,
    Reply,
)
from meshnet.core.protocol.meta import ROUTE_MAX
from meshnet.core.vocabulary import BadField, Hop

CHAINED = 1 << 31


def is_chained(number: int) -> bool:
    return bool(number & CHAINED)


def check_route(route: tuple[Hop, ...]) -> None:
    """Raise BadField for a way that is too long, in a circle, or with a gap."""
    if len(route) > ROUTE_MAX or len({hop.node for hop in route}) < len(route):
        raise BadField("meta.route", f"at most {ROUTE_MAX} nodes, each once", len(route))
    if any(a.layers.stop != b.layers.start for a, b in pairwise(route)):
        raise BadField("meta.route", "layers that follow each other", str(route))


def as_asked_alone(step: ForwardRequest) -> ForwardRequest:
    """Return what tells of a chained step's later hops which of their streams is meant."""
    return replace(step, stages=1)


def handed_on(step: ForwardRequest, reply: Reply, *, took_ms: int) -> ForwardRequest | Reply:
    """Return the step for the next hop, or the answer to the head if it ends here."""
    if isinstance(reply, Refusal):
        return reply
    if reply.cached != step.past_length + len(step.tokens):
        return Refusal(Code.HOP_FAILED, f"holds {reply.cached} positions after the step")
    if not step.route:
        return reply
    if not isinstance(reply, ActivationReply):
        return Refusal(Code.HOP_FAILED, "the last layers, half-way")
    left_ms = None if step.deadline_ms is None else step.deadline_ms - took_ms
    if left_ms is not None and left_ms < 1:
        return Refusal(Code.DEADLINE, "the deadline passed before the step could be handed on")
    # Said in full: once a token, and `replace` takes several times as long.
    # What is replayed from the first position on starts the next hop.
    starts = step.replay and not step.past_length
    return ForwardRequest(
        mode=Mode.PREFILL if starts else step.mode,
        session=step.session,
        past_length=step.past_length,
        layers=step.route[0].layers,
        model=step.model,
        fingerprint=step.fingerprint,
        attempt=step.attempt,
        prefix=step.prefix,
        deadline_ms=left_ms,
        wire=step.wire,
        tokens=step.tokens,
        sampling=step.sampling,
        want_token=step.want_token,
        drafts=step.drafts,
        truncate=step.truncate,
        adopt=step.adopt,
        activation=reply.activation,
        trace=step.trace,
        traceparent=step.traceparent,
        owner=step.owner,
        route=step.route[1:],
        stages=1,
        fill=step.fill,
    )
