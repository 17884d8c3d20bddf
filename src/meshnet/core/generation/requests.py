"""How a step is put to one hop, and which replies can be its answer. Pure functions."""

from __future__ import annotations

from dataclasses import replace

from meshnet.core.generation.limits import GenerationLimits
from meshnet.core.generation.sequence import Step
from meshnet.core.generation.states import GenerationSpec
from meshnet.core.generation.transcript import Forward, StepRef
from meshnet.core.protocol.drafts import accepted
from meshnet.core.protocol.headers import STAGES_MAX
from meshnet.core.protocol.messages import (
    ActivationReply,
    ForwardRequest,
    Mode,
    TokenReply,
)
from meshnet.core.vocabulary import (
    TOKEN_ID_MAX,
    WIRE_VERSION,
    Activation,
    Hop,
    Route,
)

Answer = ActivationReply | TokenReply

DEADLINE_MAX_S = 1e6
"""What a header field can say; a longer time is as good as none."""


def forward_for(
    step: Step,
    ref: StepRef,
    activation: Activation | None,
    *,
    hops: tuple[Hop, ...],
    spec: GenerationSpec,
    route: Route,
    limits: GenerationLimits,
    remaining_s: float,
    replay: bool = False,
    fill: bool = False,
) -> Forward:
    """Ask `hops` for `step`, the first of them; `activation` is None for the route's first hop.

    With `replay` the first of them computes nothing, with `fill` the last sends nothing back.

    While a chain is at work its hops give signs of life, so it may be silent for no longer than
    one hop.
    """
    silence_s = min(limits.step.of(len(step.tokens)), remaining_s)
    timeout_s = min(silence_s * limits.queue, remaining_s)
    hop, *chain = hops
    rest = tuple(chain)
    request = _request(step, ref.attempt, activation, spec, route, (hop, rest), timeout_s)
    if replay or fill:
        mode = Mode.DECODE if replay else request.mode
        request = replace(request, mode=mode, replay=replay, fill=fill)
    return Forward(ref, hop, request, timeout_s, silence_s, rest)


def _request(
    step: Step,
    attempt: int,
    activation: Activation | None,
    spec: GenerationSpec,
    route: Route,
    asked: tuple[Hop, tuple[Hop, ...]],
    timeout_s: float,
) -> ForwardRequest:
    """Word `step` for `hop`.

    The new ids go to every hop: a tail keeps them as its history. Sampling parameters travel
    with whatever starts a session, so with no other decode than one that adopts. An ADR-0022 node
    knows no meta block and would take it for numbers: it gets its activation alone, and draws
    greedily.
    """
    hop, rest = asked
    bare = hop.wire == 0 and activation is not None
    return ForwardRequest(
        mode=step.mode,
        session=spec.session,
        past_length=step.past_length,
        layers=hop.layers,
        model=route.model,
        fingerprint=route.fingerprint or None,
        attempt=None if step.mode is Mode.STATELESS else attempt,
        prefix=step.prefix,
        deadline_ms=max(int(min(timeout_s, DEADLINE_MAX_S) * 1000), 1),
        wire=WIRE_VERSION,
        tokens=() if bare else step.tokens,
        sampling=None if bare or not _starts(step) else spec.sampling,
        want_token=bare or step.want_token,
        drafts=0 if bare else step.drafts,
        truncate=step.truncate,
        adopt=step.adopt,
        activation=activation,
        route=rest,
        trace=spec.trace,
        traceparent=spec.traceparent,
        owner=spec.owner,
        stages=_stages(route) if hop is route.hops[0] else 1,
    )


def _starts(step: Step) -> bool:
    return step.mode is not Mode.DECODE or step.adopt is not None


def _stages(route: Route) -> int:
    """Tell into how many groups the first hop parts its sessions, so that all hops are busy.

    As many as hops like the largest would make up the route: in more groups, each of which reads
    all the weights, that hop would be busier than with one. The other hops take what comes.
    """
    largest = 1
    for hop in route.hops:
        largest = max(largest, hop.layers.stop - hop.layers.start)
    return min(max(round(route.hops[-1].layers.stop / largest), 1), STAGES_MAX)


def is_answer(reply: Answer, step: Step, *, is_tail: bool) -> bool:
    """Tell whether `reply` can answer `step`: right kind, right length, its guesses."""
    if isinstance(reply, ActivationReply):
        shape = reply.activation.tensors[0].shape
        return not is_tail and (len(shape) < 2 or shape[-2] == len(step.tokens))
    if not is_tail or reply.drawn is None:
        return is_tail
    ids = reply.drawn.ids
    known = min(ids) >= 0 and max(ids) <= TOKEN_ID_MAX
    return known and accepted(step.guesses, reply.drawn) is not None
