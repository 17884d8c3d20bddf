"""Round trips of everything that can be said, and refusal of everything else."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from meshnet.core.protocol.codec import (
    activation_of,
    decode_node,
    decode_reply,
    decode_reserve,
    encode_reply,
    encode_request,
    parse_head,
)
from meshnet.core.protocol.headers import CACHE, FIELDS
from meshnet.core.protocol.limits import Limits
from meshnet.core.protocol.messages import (
    ActivationReply,
    Code,
    ForwardRequest,
    Mode,
    Refusal,
    TokenReply,
)
from meshnet.core.vocabulary import (
    DRAFTS_MAX,
    Activation,
    BadField,
    Drawn,
    DType,
    HopLost,
    LayerRange,
    MissReason,
    SampledToken,
    SamplingParams,
    TensorSpec,
    TokenLogprob,
    TraceContext,
)

LIMITS = Limits()
EXACTLY = settings(derandomize=True, deadline=None, max_examples=150)
IDS = st.integers(0, 2**31 - 1)
SMALL = st.integers(1, 4)
SESSIONS = st.from_regex(r"[A-Za-z0-9_-]{1,128}", fullmatch=True)
FINITE = st.floats(-1e6, 1e6)


def sampling() -> st.SearchStrategy[SamplingParams]:
    pairs = st.dictionaries(IDS, st.floats(-100, 100), max_size=5)
    return st.builds(
        SamplingParams,
        temperature=st.floats(0, 2),
        top_k=st.integers(0, 10**6),
        top_p=st.floats(0, 1),
        min_p=st.floats(0, 1),
        presence_penalty=st.floats(-2, 2),
        frequency_penalty=st.floats(-2, 2),
        repetition_penalty=st.floats(1e-3, 100),
        logit_bias=pairs.map(lambda biases: tuple(biases.items())),
        seed=st.integers(0, 2**64 - 1),
        logprobs=st.none() | st.integers(0, 20),
        prompt_length=st.integers(5, 2**24),
        banned=st.lists(IDS, max_size=5).map(tuple),
        banned_until=st.integers(0, 2**24),
        grammar=st.text(st.characters(exclude_categories=["Cs"]), max_size=9),
        forced=st.lists(IDS, max_size=5).map(tuple),
    )


@st.composite
def activations(draw: st.DrawFn, length: int) -> Activation:
    dtype = st.sampled_from(DType)
    rows = draw(st.lists(SMALL, max_size=2))
    specs = [TensorSpec("hidden", draw(dtype), (*rows, length, draw(SMALL)))]
    for index in range(draw(st.integers(0, 2))):
        shape = tuple(draw(st.lists(SMALL, min_size=1, max_size=3)))
        specs.append(TensorSpec(f"t{index}", draw(dtype), shape))
    size = sum(spec.nbytes for spec in specs)
    return Activation(tuple(specs), draw(st.binary(min_size=size, max_size=size)))


def traces() -> st.SearchStrategy[TraceContext]:
    return st.builds(
        TraceContext,
        st.integers(1, 2**128 - 1).map("{:032x}".format),
        st.integers(1, 2**64 - 1).map("{:016x}".format),
        st.booleans(),
    )


@st.composite
def requests(draw: st.DrawFn) -> ForwardRequest:
    mode = draw(st.sampled_from(Mode))
    length = draw(st.integers(1, 5))
    activation = draw(st.none() | activations(length))
    tokens = tuple(draw(st.lists(IDS, min_size=length, max_size=length)))
    tokens = () if activation is not None and draw(st.booleans()) else tokens
    only_raw = activation is None and draw(st.booleans())
    decode, wanted = mode is Mode.DECODE, draw(st.booleans())
    guessed = decode and wanted and len(tokens) > 1 and draw(st.booleans())
    prefix = draw(st.none() | st.from_regex(r"[0-9a-f]{16}", fullmatch=True))
    session = draw(SESSIONS if mode is not Mode.STATELESS else st.none() | SESSIONS)
    past_length = draw(st.integers(0, 10_000)) if decode else 0
    adopts = prefix is not None and past_length > 0 and draw(st.booleans())
    words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=9)
    return ForwardRequest(
        mode=mode,
        fill=mode is not Mode.STATELESS and not wanted and not adopts,
        session=session,
        past_length=past_length,
        layers=draw(st.none() | st.tuples(st.integers(0, 99), SMALL).map(_range)),
        model=draw(st.none() | words),
        fingerprint=draw(st.none() | words),
        attempt=draw(st.none() | st.integers(0, 10**9)),
        prefix=prefix,
        truncate=decode and prefix is not None and draw(st.booleans()),
        adopt=draw(SESSIONS.filter(lambda old: old != session)) if adopts else None,
        deadline_ms=draw(st.none() | st.integers(0, 10**9)),
        wire=draw(st.integers(0, 9)),
        trace=draw(st.none() | st.from_regex(r"[A-Za-z0-9._-]{1,20}", fullmatch=True)),
        traceparent=draw(st.none() | traces()),
        owner=draw(st.none() | st.from_regex(r"[A-Za-z0-9._-]{1,32}", fullmatch=True)),
        stages=draw(st.integers(1, 64)),
        tokens=tokens,
        drafts=draw(st.integers(1, len(tokens) - 1)) if guessed else 0,
        sampling=draw(st.none() | sampling()),
        want_token=wanted,
        activation=activation,
        raw=draw(st.binary(min_size=1, max_size=40)) if only_raw else b"",
    )


def replays() -> st.SearchStrategy[ForwardRequest]:
    return st.builds(
        ForwardRequest,
        mode=st.just(Mode.DECODE),
        session=SESSIONS,
        past_length=st.integers(0, 10_000),
        prefix=st.from_regex(r"[0-9a-f]{16}", fullmatch=True),
        attempt=st.none() | st.integers(0, 10**9),
        tokens=st.lists(IDS, min_size=1, max_size=5).map(tuple),
        sampling=st.none() | sampling(),
        want_token=st.just(False),
        replay=st.just(True),
        fill=st.booleans(),
    )


def _range(pair: tuple[int, int]) -> LayerRange:
    return LayerRange(pair[0], pair[0] + pair[1])


@EXACTLY
@given(requests() | replays(), st.booleans())
def test_every_request_arrives_as_it_was_sent(request, chunked):
    headers, parts = encode_request(request)
    body = bytearray(b"".join(parts))

    head = parse_head(headers.items(), None if chunked else len(body), LIMITS)

    assert head.finish(body) == request


@EXACTLY
@given(st.data())
def test_every_reply_arrives_as_it_was_sent(data):
    length = data.draw(st.integers(1, 5))
    asked = ForwardRequest(Mode.DECODE, past_length=1, tokens=(1,) * length)
    cached = st.none() | st.integers(0, 10**6)
    tops = st.builds(TokenLogprob, IDS, FINITE)
    tokens = st.builds(SampledToken, IDS, FINITE, st.lists(tops, max_size=20).map(tuple))
    drawn = st.builds(Drawn, st.lists(tokens, min_size=1, max_size=DRAFTS_MAX + 1).map(tuple))
    text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
    reply = data.draw(
        st.builds(ActivationReply, activations(length), cached, st.integers(0, 10**9))
        | st.builds(TokenReply, st.none() | drawn, text, cached, st.integers(0, 10**9))
        | st.builds(
            Refusal,
            st.sampled_from(Code),
            text,
            st.none() | st.floats(0, 1e5),
            st.none() | st.sampled_from(MissReason),
        )
    )

    status, headers, parts = encode_reply(reply)

    assert decode_reply(status, headers.items(), b"".join(parts), asked, LIMITS) == reply


NUMBERS = st.integers(-3, 40).map(str)
VALUES = (
    st.sampled_from(["prefill", "decode", "abc", "1,1,8", "1,8", "fp32", "bf16", "0-4", "m", "2"])
    | NUMBERS
    | st.text(max_size=12)
)
HEADERS = st.lists(st.tuples(st.sampled_from(FIELDS), VALUES), max_size=6)
WORDS = "tokens sampling tensors want_token name dtype shape temperature logit_bias banned forced"
WORDS += " text token_id logprob top_logprobs error reason layers model attempt shards"
KEYS = st.sampled_from(WORDS.split())
JSON_LIKE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
BODIES = st.binary(max_size=64) | st.dictionaries(KEYS, JSON_LIKE, max_size=4).map(
    lambda values: json.dumps(values).encode()
)


@settings(derandomize=True, deadline=None, max_examples=500)
@given(HEADERS, BODIES, st.booleans(), st.booleans())
def test_any_request_is_valid_or_a_bad_field_and_nothing_else(headers, body, chunked, measured):
    """Pits A95 and C5."""
    if measured:
        headers = [*headers, ("X-Meshnet-Meta", str(len(body)))]
    try:
        request = parse_head(headers, None if chunked else len(body), LIMITS).finish(body)
        activation_of(request, hidden_size=8, dtype=DType.FP32)
    except BadField:
        return

    assert request.activation is not None or request.raw or request.tokens
    assert (request.mode is Mode.DECODE) == ((CACHE, "decode") in headers)


@settings(derandomize=True, deadline=None, max_examples=500)
@given(st.sampled_from([200, 204, 302, 400, 404, 409, 413, 429, 500, 503]), HEADERS, BODIES)
def test_any_answer_is_a_reply_or_a_lost_hop_and_nothing_else(status, headers, body):
    asked = ForwardRequest(Mode.DECODE, past_length=1, tokens=(1,))
    try:
        reply = decode_reply(status, headers, body, asked, LIMITS)
    except HopLost:
        return

    assert isinstance(reply, Refusal) == (status != 200)


@EXACTLY
@given(BODIES)
def test_any_json_is_a_description_or_a_bad_field_and_nothing_else(body):
    for decode in (decode_node, lambda data, limits: decode_reserve("s", data, limits)):
        try:
            decode(body, LIMITS)
        except BadField:
            continue
