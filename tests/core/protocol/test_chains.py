"""How a chained step is worded for the next hop, and which ways are none."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from meshnet.core.protocol.chains import CHAINED, handed_on, is_chained
from meshnet.core.protocol.codec import encode_request, parse_head
from meshnet.core.protocol.frames import decode_step, encode_step, number_of
from meshnet.core.protocol.limits import Limits
from meshnet.core.protocol.messages import (
    ActivationReply,
    Code,
    ForwardRequest,
    Mode,
    Refusal,
    TokenReply,
)
from meshnet.core.protocol.meta import Meta, print_meta
from meshnet.core.protocol.opening import Opening
from meshnet.core.vocabulary import (
    HIDDEN,
    Activation,
    BadField,
    Drawn,
    DType,
    Hop,
    LayerRange,
    ModelId,
    NodeId,
    SampledToken,
    SamplingParams,
    SessionId,
    TensorSpec,
    TraceContext,
)

LIMITS = Limits()
ROUTE = (Hop(NodeId("http://b:1"), LayerRange(3, 6)), Hop(NodeId("http://c:1"), LayerRange(6, 8)))
ROW = Activation((TensorSpec(HIDDEN, DType.FP32, (1, 2, 1)),), bytes(8))
STEP = ForwardRequest(
    Mode.DECODE,
    SessionId("s"),
    17,
    layers=LayerRange(0, 3),
    attempt=3,
    deadline_ms=1000,
    tokens=(4, 5),
    drafts=1,
    route=ROUTE,
    stages=2,
)
ANSWER = ActivationReply(ROW, 19)


@pytest.mark.parametrize("mode", [Mode.PREFILL, Mode.DECODE])
def test_a_chained_step_arrives_as_it_was_sent(mode: Mode):
    step = STEP if mode is Mode.DECODE else replace(STEP, mode=mode, past_length=0, drafts=0)
    frame = encode_step(CHAINED + 7, step)

    assert is_chained(number_of(frame))
    assert decode_step(frame, Opening.of(step), LIMITS) == step


def test_the_next_hop_gets_the_activation_the_rest_of_the_way_and_less_time():
    onward = handed_on(STEP, ANSWER, took_ms=300)

    assert onward == replace(
        STEP, layers=LayerRange(3, 6), route=ROUTE[1:], activation=ROW, deadline_ms=700, stages=1
    )


def test_whatever_else_a_step_says_is_handed_on():
    step = replace(
        STEP,
        model=ModelId("m"),
        fingerprint="fp",
        prefix="0" * 16,
        wire=1,
        sampling=SamplingParams(seed=3),
        want_token=False,
        truncate=True,
        adopt=SessionId("before"),
        trace="t",
        owner="o",
        fill=True,
        traceparent=TraceContext("a" * 32, "b" * 16, True),
    )
    plain = ForwardRequest(Mode.PREFILL)
    silent = {
        field.name
        for field in fields(step)
        if getattr(step, field.name) == getattr(plain, field.name)
    }
    own = {"layers", "route", "activation", "deadline_ms", "stages"}

    onward = handed_on(step, ANSWER, took_ms=300)

    assert silent == {"activation", "raw", "raw_shape", "raw_dtype", "replay"}
    for field in fields(step):
        if field.name not in own:
            assert getattr(onward, field.name) == getattr(step, field.name)


def test_what_is_replayed_from_the_first_position_on_starts_the_next_hop():
    """And is computed there: what is kept of it is behind this hop."""
    step = replace(
        STEP, past_length=0, tokens=(1,), prefix="0" * 16, want_token=False, replay=True, fill=True
    )

    onward = handed_on(step, replace(ANSWER, cached=1), took_ms=0)
    later = handed_on(replace(step, past_length=18), ANSWER, took_ms=0)

    assert isinstance(onward, ForwardRequest)
    assert isinstance(later, ForwardRequest)
    assert (onward.mode, onward.replay, onward.fill) == (Mode.PREFILL, False, True)
    assert (later.mode, later.replay, later.fill) == (Mode.DECODE, False, True)


def test_the_last_hop_s_tokens_and_every_refusal_go_to_the_head():
    tokens = TokenReply(Drawn((SampledToken(1),)), "", 19)
    refusal = Refusal(Code.NO_ROOM, "full")

    assert handed_on(replace(STEP, route=()), tokens, took_ms=1) is tokens
    assert handed_on(STEP, refusal, took_ms=1) is refusal


def test_a_way_that_ends_before_the_last_layers_ends_with_an_activation():
    assert handed_on(replace(STEP, route=()), ANSWER, took_ms=1) is ANSWER


@pytest.mark.parametrize(
    ("step", "reply"),
    [
        (STEP, replace(ANSWER, cached=None)),
        (STEP, replace(ANSWER, cached=18)),
        (STEP, TokenReply(Drawn((SampledToken(1),)), "", 19)),
    ],
    ids=["not cached", "another length", "tokens half-way"],
)
def test_what_cannot_go_on_fails_at_this_hop(step: ForwardRequest, reply: object):
    end = handed_on(step, reply, took_ms=1)  # type: ignore[arg-type]

    assert isinstance(end, Refusal)
    assert end.code is Code.HOP_FAILED


def test_a_step_whose_time_is_over_is_not_handed_on():
    end = handed_on(STEP, ANSWER, took_ms=1000)

    assert isinstance(end, Refusal)
    assert end.code is Code.DEADLINE


@pytest.mark.parametrize(
    "wrong",
    [
        replace(STEP, route=(ROUTE[0], Hop(ROUTE[0].node, LayerRange(6, 8)))),
        replace(STEP, route=(ROUTE[0], Hop(NodeId("c"), LayerRange(7, 8)))),
        replace(STEP, route=tuple(Hop(NodeId(str(n)), LayerRange(n, n + 1)) for n in range(65))),
    ],
    ids=["a circle", "a gap", "too long"],
)
def test_a_way_that_cannot_be_right_is_a_bad_field(wrong: ForwardRequest):
    """Pit C9. Each hop takes itself off a way of at most 64, so no step goes on for ever."""
    frame = encode_step(CHAINED + 1, wrong)

    with pytest.raises(BadField, match="route"):
        decode_step(frame, Opening.of(wrong), LIMITS)


def test_a_request_with_hops_to_come_is_refused():
    headers, parts = encode_request(replace(STEP, route=(), drafts=0))
    meta = print_meta(Meta(tokens=STEP.tokens, route=ROUTE))
    headers["X-Meshnet-Meta"] = str(len(meta))
    body = b"".join((meta, *parts[1:]))

    with pytest.raises(BadField, match="route"):
        parse_head(headers.items(), len(body), LIMITS).finish(body)


def test_an_onward_stream_says_so_and_carries_the_same_steps():
    opening = replace(Opening.of(STEP), onward=True)

    assert Opening.parse("s", opening.headers().items(), LIMITS) == opening
    assert opening.covers(STEP)
