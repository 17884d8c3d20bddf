"""Layers of a session that travel, and the order to take one over."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.protocol.test_codec_properties import IDS, SESSIONS, SMALL, sampling

from meshnet.core.protocol.codec import encode_refusal, encode_session
from meshnet.core.protocol.limits import Limits
from meshnet.core.protocol.messages import Code, Refusal
from meshnet.core.protocol.moving import (
    LayerReply,
    LayerRequest,
    TakeRequest,
    decode_layer,
    decode_layer_request,
    decode_take,
    decode_taken,
    encode_layer,
    encode_layer_request,
    encode_take,
)
from meshnet.core.vocabulary import (
    BadField,
    DType,
    HopLost,
    LayerRange,
    LayerState,
    ModelId,
    NodeId,
    SamplingParams,
    SessionDescription,
    SessionId,
    TensorSpec,
)

LIMITS = Limits(positions=1000)
EXACTLY = settings(derandomize=True, deadline=None, max_examples=150)
TEXT = st.text(st.characters(codec="ascii", min_codepoint=33, max_codepoint=126), min_size=1)
ATTEMPTS = st.integers(0, 10**10 - 1)
PREFIXES = st.from_regex(r"[0-9a-f]{16}", fullmatch=True)
SPEC = TensorSpec("keys", DType.FP32, (1, 2, 3))
REPLY = LayerReply(3, 7, "0" * 16, 1, "f", "a", LayerState((SPEC,), bytes(24), (5, 7)))
ASKED = LayerRequest(SessionId("s"), 3, 7, "0" * 16, 1, ModelId("m"), "f")
ORDER = TakeRequest(
    SessionId("s"),
    NodeId("http://127.0.0.1:9001"),
    LayerRange(3, 6),
    1,
    (1, 2, 3),
    ModelId("m"),
    "f",
    SamplingParams(),
    1000,
)


@st.composite
def layers(draw: st.DrawFn) -> LayerState:
    specs = tuple(
        TensorSpec(f"t.{at}", draw(st.sampled_from(DType)), tuple(shape))
        for at, shape in enumerate(
            draw(st.lists(st.lists(SMALL, min_size=1, max_size=4), max_size=20))
        )
    )
    data = draw(st.binary(min_size=1, max_size=7)) * sum(spec.nbytes for spec in specs)
    marks = tuple(sorted(draw(st.sets(st.integers(1, 1000), max_size=2))))
    return LayerState(specs, data[: sum(spec.nbytes for spec in specs)], marks)


@EXACTLY
@given(
    reply=st.builds(
        LayerReply,
        layer=st.integers(0, 999),
        length=st.integers(0, 1000),
        prefix=PREFIXES,
        attempt=ATTEMPTS,
        fingerprint=TEXT,
        arithmetic=TEXT,
        held=layers(),
    )
)
def test_a_layer_arrives_as_it_was_sent(reply: LayerReply):
    headers, parts = encode_layer(reply)

    assert decode_layer(200, headers.items(), b"".join(parts), LIMITS) == reply


@EXACTLY
@given(
    request=st.builds(
        LayerRequest,
        session=SESSIONS.map(SessionId),
        layer=st.integers(0, 10**6),
        length=st.integers(0, 10**6),
        prefix=PREFIXES,
        attempt=ATTEMPTS,
        model=TEXT.filter(lambda text: len(text) < 150).map(ModelId),
        fingerprint=TEXT.filter(lambda text: len(text) < 150),
    )
)
def test_what_is_asked_of_a_giver_arrives_as_it_was_sent(request: LayerRequest):
    headers = encode_layer_request(request)

    read = decode_layer_request(request.session, str(request.layer), headers.items(), LIMITS)

    assert read == request


@EXACTLY
@given(
    order=st.builds(
        TakeRequest,
        session=SESSIONS.map(SessionId),
        giver=TEXT.filter(lambda text: len(text) < 500).map(NodeId),
        layers=st.builds(
            lambda start, count: LayerRange(start, start + count),
            st.integers(0, 100),
            st.integers(1, 50),
        ),
        attempt=ATTEMPTS,
        tokens=st.lists(IDS, min_size=1, max_size=20).map(tuple),
        model=TEXT.map(ModelId),
        fingerprint=TEXT,
        sampling=sampling(),
        deadline_ms=st.integers(1, 10**9),
    )
)
def test_an_order_to_take_a_session_arrives_as_it_was_sent(order: TakeRequest):
    assert decode_take(order.session, encode_take(order), LIMITS) == order


@EXACTLY
@given(data=st.data())
def test_a_layer_cut_or_changed_anywhere_is_read_or_lost_and_nothing_else(data: st.DataObject):
    headers, parts = encode_layer(REPLY)
    body = bytearray(b"".join(parts))
    at = data.draw(st.integers(0, len(body) - 1))
    if data.draw(st.booleans()):
        del body[at:]
    else:
        body[at] = data.draw(st.integers(0, 255))

    try:
        read = decode_layer(200, headers.items(), body, LIMITS)
    except HopLost:
        return
    assert isinstance(read, LayerReply)


@pytest.mark.parametrize(
    "name", ["layer", "length", "prefix", "attempt", "fingerprint", "arithmetic", "tensors"]
)
def test_a_layer_that_does_not_say_whose_it_is_is_lost(name: str):
    _, (meta, data) = encode_layer(REPLY)
    values = json.loads(bytes(meta))
    del values[name]
    meta = json.dumps(values).encode()

    with pytest.raises(HopLost, match=name):
        decode_layer(200, {"X-Meshnet-Meta": str(len(meta))}.items(), meta + bytes(data), LIMITS)


@pytest.mark.parametrize("meta_bytes", ["0", "100000", None])
def test_a_layer_without_its_meta_block_is_lost(meta_bytes: str | None):
    _, parts = encode_layer(REPLY)
    headers = {} if meta_bytes is None else {"X-Meshnet-Meta": meta_bytes}

    with pytest.raises(HopLost, match="X-Meshnet-Meta"):
        decode_layer(200, headers.items(), b"".join(parts), LIMITS)


@pytest.mark.parametrize("name", ["X-Meshnet-Past-Len", "X-Meshnet-Prefix", "X-Meshnet-Attempt"])
def test_a_giver_is_told_exactly_what_is_meant(name: str):
    headers = encode_layer_request(ASKED)
    del headers[name]

    with pytest.raises(BadField, match=name):
        decode_layer_request("s", "3", headers.items(), LIMITS)


@pytest.mark.parametrize("layer", ["", "-1", "1.5", "x", "99999999999"])
def test_a_layer_is_a_number(layer: str):
    with pytest.raises(BadField, match="layer"):
        decode_layer_request("s", layer, encode_layer_request(ASKED).items(), LIMITS)


@pytest.mark.parametrize("name", ["from", "layers", "attempt", "tokens", "model", "sampling"])
def test_an_order_that_lacks_something_is_refused(name: str):
    values = json.loads(encode_take(ORDER))
    del values[name]

    with pytest.raises(BadField, match=name):
        decode_take("s", json.dumps(values).encode(), LIMITS)


def test_an_order_for_no_position_is_refused():
    values = json.loads(encode_take(ORDER)) | {"tokens": []}

    with pytest.raises(BadField, match="tokens"):
        decode_take("s", json.dumps(values).encode(), LIMITS)


def test_what_a_receiver_answers_arrives_as_it_was_sent():
    told = SessionDescription(SessionId("s"), LayerRange(3, 6), 3, "0" * 16, 1, 99)
    refusal = Refusal(Code.NO_ROOM, "full", retry_after_s=0.5)
    status, headers, body = encode_refusal(refusal)

    assert decode_taken(200, [], encode_session(told), LIMITS) == told
    assert decode_taken(status, headers.items(), body, LIMITS) == refusal


@pytest.mark.parametrize(("status", "body"), [(200, b"{}"), (404, b"no"), (405, b""), (500, b"")])
def test_an_answer_of_something_else_is_a_loss(status: int, body: bytes):
    with pytest.raises(HopLost):
        decode_taken(status, [], body, LIMITS)


@pytest.mark.parametrize("field", ["layer", "length", "attempt"])
def test_another_layer_is_no_answer(field: str):
    assert REPLY.answers(ASKED)
    assert not REPLY.answers(replace(ASKED, **{field: 9}))
    assert not REPLY.answers(replace(ASKED, prefix="1" * 16))
