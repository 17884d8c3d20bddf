"""Answers: ours, an ADR-0022 node's, a proxy's, and what is none of these."""

from __future__ import annotations

import json

import pytest

from meshnet.core.protocol.codec import decode_reply, encode_reply
from meshnet.core.protocol.limits import Limits
from meshnet.core.protocol.messages import (
    ActivationReply,
    Code,
    ForwardRequest,
    Mode,
    Refusal,
    Reply,
    TokenReply,
)
from meshnet.core.vocabulary import (
    DRAFTS_MAX,
    HIDDEN,
    Activation,
    Drawn,
    DType,
    HopLost,
    MissReason,
    SampledToken,
    SessionId,
    TensorSpec,
    TokenLogprob,
)

LIMITS = Limits()
JSON = [("Content-Type", "application/json")]
OCTETS = [("content-type", "application/octet-stream")]


def activation(length: int, size: int = 8, dtype: DType = DType.BF16) -> Activation:
    spec = TensorSpec(HIDDEN, dtype, (1, length, size))
    return Activation((spec,), bytes(spec.nbytes))


DECODE = ForwardRequest(Mode.DECODE, SessionId("s"), 17, activation=activation(1))
PREFILL = ForwardRequest(Mode.PREFILL, SessionId("s"), activation=activation(3))
IDS = ForwardRequest(Mode.PREFILL, SessionId("s"), tokens=(5, 6, 7))


def received(reply: Reply, asked: ForwardRequest) -> Reply:
    status, headers, parts = encode_reply(reply)
    return decode_reply(status, headers.items(), b"".join(parts), asked, LIMITS)


REPLIES = [
    ActivationReply(activation(1), cached=18, compute_us=250),
    ActivationReply(activation(1, size=16), cached=None),
    TokenReply(Drawn((SampledToken(5),)), "hé", cached=18),
    TokenReply(
        Drawn((SampledToken(5, -0.25, (TokenLogprob(5, -0.25), TokenLogprob(0, -3.5))),)),
        "",
        cached=18,
    ),
    TokenReply(Drawn((SampledToken(5), SampledToken(6, -0.5), SampledToken(0))), "abc", cached=20),
    TokenReply(None, "", cached=18, compute_us=7),
    Refusal(Code.CACHE_MISS, "expected 17, holds 12", reason=MissReason.PAST_LENGTH),
    Refusal(Code.NO_ROOM, "8 of 8 sessions", retry_after_s=0.25),
    *(Refusal(code, "why") for code in Code if code is not Code.CACHE_MISS),
]


@pytest.mark.parametrize("reply", REPLIES, ids=lambda reply: type(reply).__name__)
def test_a_reply_arrives_as_it_was_sent(reply):
    assert received(reply, DECODE) == reply


def test_several_tensors_of_a_reply_are_described_in_its_meta_block():
    specs = (
        TensorSpec("hidden", DType.BF16, (4, 1, 3, 8)),
        TensorSpec("shared", DType.FP32, (2, 3)),
    )
    reply = ActivationReply(Activation(specs, bytes(sum(s.nbytes for s in specs))), cached=3)

    assert received(reply, PREFILL) == reply


def test_a_cache_miss_says_exactly_what_adr_0022_says():
    """Pit C11."""
    status, _, parts = encode_reply(Refusal(Code.CACHE_MISS, "", reason=MissReason.PREFIX))

    assert status == 409
    assert b'"error":"cache_miss"' in parts[0]
    assert json.loads(parts[0])["reason"] == "prefix"


def test_a_single_draw_is_printed_as_it_always_was():
    """Readers from before drafts know `token_id` only, and never send drafts."""
    _, _, parts = encode_reply(TokenReply(Drawn((SampledToken(5),)), "a", cached=18))

    assert json.loads(parts[0]) == {"text": "a", "token_id": 5}


def test_more_draws_than_drafts_can_bring_cannot_be_read():
    values = {"text": "", "token_id": 1, "more": [{"token_id": 2}] * (DRAFTS_MAX + 1)}
    headers = [("Content-Type", "application/json"), ("X-Meshnet-Cached", "18")]

    with pytest.raises(HopLost, match="more"):
        decode_reply(200, headers, json.dumps(values).encode(), DECODE, LIMITS)


def test_retry_after_is_whole_seconds_rounded_up_for_strangers():
    _, headers, _ = encode_reply(Refusal(Code.NO_ROOM, "", retry_after_s=1.2))

    assert headers["Retry-After"] == "2"


def test_a_log_probability_that_is_no_number_is_refused_and_not_printed():
    reply = TokenReply(Drawn((SampledToken(5, float("nan")),)), "", cached=18)

    refusal = received(reply, DECODE)

    assert isinstance(refusal, Refusal)
    assert refusal.code is Code.NUMERICAL_ERROR


@pytest.mark.parametrize("headers", [[], OCTETS])
def test_an_activation_of_an_old_node_has_the_positions_and_dtype_that_were_asked(headers):
    reply = decode_reply(200, headers, bytes(3 * 16 * 2), PREFILL, LIMITS)

    assert reply == ActivationReply(activation(3, size=16), cached=None)


@pytest.mark.parametrize("size", [0, 5, 97])
def test_an_activation_of_an_old_node_that_does_not_divide_is_lost(size):
    with pytest.raises(HopLost):
        decode_reply(200, OCTETS, bytes(size), PREFILL, LIMITS)


@pytest.mark.parametrize(
    "headers", [JSON, [], [("Content-Type", "application/json; charset=utf-8")]]
)
@pytest.mark.parametrize("body", [b'{"text": " Paris"}', b'{"text": " Paris", "token_id": null}'])
def test_a_tail_without_token_id_answers_text_and_no_token(headers, body):
    assert decode_reply(200, headers, body, DECODE, LIMITS) == TokenReply(None, " Paris", None)


def test_a_tail_of_adr_0022_answers_its_token_id():
    body = b'{"text": " Paris", "token_id": 7042}'

    reply = decode_reply(200, JSON, body, DECODE, LIMITS)

    assert reply == TokenReply(Drawn((SampledToken(7042),)), " Paris", None)


UNREADABLE = [
    (JSON, b""),
    (JSON, b"{}"),
    (JSON, b"<html>"),
    (JSON, b'{"text": "a", "token_id": -1}'),
    (JSON, b'{"text": "a", "token_id": "5"}'),
    (JSON, b'{"text": 5, "token_id": 5}'),
    (JSON, b'{"text": "a", "token_id": 5, "logprob": NaN}'),
    (JSON, b'{"text": "a", "token_id": 5, "top_logprobs": [[1]]}'),
    (JSON, b'{"text": "a", "token_id": 5, "top_logprobs": {"1": 2}}'),
    ([*OCTETS, ("X-Meshnet-Shape", "1,2,8"), ("X-Meshnet-Dtype", "bf16")], bytes(32)),
    ([*OCTETS, ("X-Meshnet-Shape", "1,1,8"), ("X-Meshnet-Dtype", "bf16")], bytes(15)),
    ([*OCTETS, ("X-Meshnet-Cached", "-1")], bytes(16)),
    ([*OCTETS, ("X-Meshnet-Cached", "1"), ("X-Meshnet-Cached", "2")], bytes(16)),
    ([*OCTETS, ("X-Meshnet-Meta", "2")], b"{}" + bytes(16)),
]


@pytest.mark.parametrize(("headers", "body"), UNREADABLE)
def test_an_answer_that_cannot_be_read_is_a_lost_hop(headers, body):
    with pytest.raises(HopLost):
        decode_reply(200, headers, body, DECODE, LIMITS)


def test_a_token_over_the_json_limit_is_a_lost_hop():
    body = json.dumps({"text": "a" * LIMITS.json_bytes, "token_id": 5}).encode()

    with pytest.raises(HopLost, match="JSON of at most"):
        decode_reply(200, JSON, body, DECODE, LIMITS)


def test_ids_alone_asked_of_a_node_that_does_not_describe_its_answer_is_a_lost_hop():
    with pytest.raises(HopLost, match="dtype"):
        decode_reply(200, OCTETS, bytes(48), IDS, LIMITS)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (409, b""),
        (409, b"conflict"),
        (409, b'{"error": "conflict"}'),
        (404, b"not found"),
        (500, b"Internal Server Error"),
        (502, b'{"error": "cache_miss"}'),
        (302, b""),
        (204, b""),
    ],
)
def test_a_status_of_a_proxy_is_a_lost_hop_and_never_a_miss(status, body):
    """Pit C11."""
    with pytest.raises(HopLost, match=str(status)):
        decode_reply(status, [], body, DECODE, LIMITS)


def test_a_cache_miss_is_believed_only_in_answer_to_a_decode():
    """Pit C11."""
    body = b'{"error": "cache_miss"}'

    assert decode_reply(409, JSON, body, DECODE, LIMITS) == Refusal(Code.CACHE_MISS, "")
    with pytest.raises(HopLost, match="prefill"):
        decode_reply(409, JSON, body, PREFILL, LIMITS)


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, Code.BAD_REQUEST),
        (401, Code.UNAUTHORIZED),
        (403, Code.FORBIDDEN),
        (413, Code.TOO_LARGE),
        (429, Code.NO_ROOM),
        (503, Code.NOT_READY),
    ],
)
def test_a_status_that_tells_enough_by_itself_needs_no_body(status, code):
    reply = decode_reply(status, [("Retry-After", "3")], b"<html>", DECODE, LIMITS)

    assert isinstance(reply, Refusal)
    assert (reply.code, reply.retry_after_s) == (code, 3.0)
