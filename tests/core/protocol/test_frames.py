"""Frames of a session stream: what is sent arrives, and nothing else gets in."""

from __future__ import annotations

import random
import struct
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.protocol.test_codec_properties import (
    DRAFTS_MAX,
    FINITE,
    IDS,
    activations,
    replays,
    requests,
)

from meshnet.core.protocol.frames import (
    ALIGNMENT,
    Ending,
    Opening,
    decode_step,
    encode_release,
    encode_step,
    fits,
    frame_bytes_max,
    number_of,
)
from meshnet.core.protocol.frames_replies import decode_answer, encode_answer
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
    HIDDEN,
    Activation,
    BadField,
    Drawn,
    DType,
    HopLost,
    LayerRange,
    MissReason,
    SampledToken,
    SamplingParams,
    SessionId,
    TensorSpec,
    TokenLogprob,
    TooLarge,
)

LIMITS = Limits()
EXACTLY = settings(derandomize=True, deadline=None, max_examples=150)
NUMBERS = st.integers(0, 2**32 - 1)
OPENING = Opening(SessionId("s"))


def activation(*shape: int) -> Activation:
    spec = TensorSpec(HIDDEN, DType.FP32, shape)
    return Activation((spec,), bytes(index % 251 for index in range(spec.nbytes)))


DECODE = ForwardRequest(
    Mode.DECODE,
    SessionId("s"),
    past_length=17,
    layers=LayerRange(4, 9),
    attempt=2,
    prefix="00112233445566ff",
    deadline_ms=900,
    tokens=(42,),
    activation=activation(1, 1, 8),
)
PREFILL = ForwardRequest(
    Mode.PREFILL, SessionId("s"), tokens=(1, 2, 3), sampling=SamplingParams(temperature=0.5)
)


@EXACTLY
@given(requests().filter(fits) | replays(), NUMBERS)
def test_every_step_arrives_as_it_was_sent(request, number):
    frame = encode_step(number, request)

    assert decode_step(frame, Opening.of(request), LIMITS) == request
    assert number_of(frame) == number
    assert len(frame) <= frame_bytes_max(LIMITS)


@EXACTLY
@given(requests().filter(fits))
def test_every_opening_arrives_as_it_was_sent(request):
    opening = Opening.of(request)

    read = Opening.parse(opening.session, opening.headers().items(), LIMITS)

    assert read == opening


@EXACTLY
@given(st.data(), NUMBERS)
def test_every_answer_arrives_as_it_was_sent(data, number):
    length = data.draw(st.integers(1, 5))
    asked = replace(DECODE, tokens=(1,) * length, activation=None)
    cached = st.none() | st.integers(0, 10**6)
    tops = st.builds(TokenLogprob, IDS, FINITE)
    tokens = st.builds(
        SampledToken, IDS, st.none() | FINITE, st.lists(tops, max_size=20).map(tuple)
    )
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

    frame = encode_answer(number, reply)

    assert decode_answer(frame, asked, LIMITS) == reply
    assert number_of(frame) == number


@pytest.mark.parametrize("ids", [0, 1, 3])
@pytest.mark.parametrize("sampling", [None, SamplingParams(seed=7)])
def test_tensors_begin_where_they_can_be_read_in_place(ids, sampling):
    body = activation(1, max(ids, 1), 8)
    request = replace(DECODE, tokens=tuple(range(ids)), sampling=sampling, activation=body)

    frame = encode_step(1, request)

    at = len(frame) - len(body.data)
    assert (at % ALIGNMENT, frame[at:]) == (0, body.data)


def test_what_arrives_is_not_copied():
    frame = bytearray(encode_step(1, DECODE))

    read = decode_step(frame, OPENING, LIMITS)
    frame[-1] ^= 255

    assert read is not None
    assert read.activation is not None
    assert read.activation.data[-1] == frame[-1]


def test_a_decodes_answer_is_a_few_fixed_bytes():
    reply = TokenReply(Drawn((SampledToken(5),)), "", cached=18, compute_us=900)

    assert len(encode_answer(1, reply)) == 64


def test_a_release_says_no_more():
    frame = encode_release()

    assert decode_step(frame, OPENING, LIMITS) is Ending.RELEASED
    with pytest.raises(BadField):
        decode_step(frame + b"\0", OPENING, LIMITS)


@pytest.mark.parametrize(
    "request_",
    [
        ForwardRequest(Mode.STATELESS, SessionId("s"), tokens=(1,)),
        ForwardRequest(Mode.DECODE, SessionId("s"), 3, raw=bytes(32)),
    ],
)
def test_what_a_stream_cannot_carry_goes_by_post(request_):
    assert not fits(request_)


STEP_FIELDS = {
    "kind": (0, "B", 3),
    "mode": (1, "B", 3),
    "flags": (2, "H", 64),
    "attempt": (8, "Q", 10**10),
    "deadline": (16, "Q", 10**10),
    "past length": (32, "I", 2**20),
    "no layers": (36, "I", 9),
    "far layers": (40, "I", 10**6),
    "ids": (44, "I", 2),
    "many ids": (44, "I", 2**32 - 1),
    "meta": (48, "I", 1),
    "dtype": (52, "B", 4),
    "no dtype": (52, "B", 0),
    "one dimension": (53, "B", 1),
    "five dimensions": (53, "B", 5),
    "drafts": (54, "H", 1),
    "no rows": (56, "I", 0),
    "rows": (60, "I", 2),
    "a size beyond": (68, "I", 1),
    "a huge size": (64, "I", 2**32 - 1),
}


@pytest.mark.parametrize(("at", "form", "value"), STEP_FIELDS.values(), ids=STEP_FIELDS.keys())
def test_a_step_with_one_wrong_field_is_refused(at, form, value):
    frame = bytearray(encode_step(1, DECODE))
    struct.pack_into(f"<{form}", frame, at, value)

    with pytest.raises(BadField):
        decode_step(frame, OPENING, LIMITS)


@pytest.mark.parametrize("at", [8, 16, 24], ids=["attempt", "deadline", "prefix"])
def test_what_is_absent_must_be_zero(at):
    bare = replace(DECODE, attempt=None, prefix=None, deadline_ms=None)
    frame = bytearray(encode_step(1, bare))
    assert decode_step(frame, OPENING, LIMITS) == bare

    frame[at] = 1

    with pytest.raises(BadField):
        decode_step(frame, OPENING, LIMITS)


def test_the_gap_before_the_tensors_must_be_zero():
    frame = bytearray(encode_step(1, DECODE))
    assert frame[76:80] == bytes(4)

    frame[77] = 1

    with pytest.raises(BadField):
        decode_step(frame, OPENING, LIMITS)


@pytest.mark.parametrize(
    "wrong",
    [
        replace(PREFILL, past_length=3),
        replace(PREFILL, truncate=True, prefix="00112233445566ff"),
        replace(DECODE, truncate=True, prefix=None),
        replace(PREFILL, drafts=1),
        replace(DECODE, drafts=1, tokens=(1, 2), want_token=False, activation=None),
        replace(DECODE, drafts=2, tokens=(1, 2), activation=None),
        replace(DECODE, drafts=17, tokens=tuple(range(20)), activation=None),
        replace(DECODE, tokens=(1, 2)),
        replace(DECODE, tokens=(), activation=None),
        replace(DECODE, tokens=(2**31,)),
        replace(DECODE, past_length=LIMITS.positions),
    ],
)
def test_a_step_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(BadField):
        decode_step(encode_step(1, wrong), OPENING, LIMITS)


def test_a_meta_block_over_the_limit_is_too_large():
    frame = encode_step(1, PREFILL)

    with pytest.raises(TooLarge):
        decode_step(frame, OPENING, Limits(meta_bytes=5))


def test_ids_over_the_limit_are_refused_before_they_are_read():
    frame = encode_step(1, replace(PREFILL, tokens=tuple(range(40))))

    with pytest.raises(BadField, match="at most 39 ids"):
        decode_step(frame, OPENING, Limits(positions=39))


@pytest.mark.parametrize("words", [b'{"tokens":[1]}', b'{"want_token":false}', b'{"drafts":1}'])
def test_what_the_header_says_the_meta_block_must_not_say_again(words):
    frame = bytearray(encode_step(1, replace(PREFILL, sampling=None)))
    struct.pack_into("<I", frame, 48, len(words))

    with pytest.raises(BadField, match="meta"):
        decode_step(bytes(frame) + words, OPENING, LIMITS)


ANSWERS: list[Reply] = [
    ActivationReply(activation(1, 1, 8), 18, 900),
    TokenReply(Drawn((SampledToken(5, -0.5, (TokenLogprob(5, -0.5),)),)), "é", 18, 900),
    TokenReply(None, "", 18),
    Refusal(Code.CACHE_MISS, "no", reason=MissReason.PREFIX),
]


@pytest.mark.parametrize("reply", ANSWERS)
@pytest.mark.parametrize("at", [0, 1, 2, 3, 8, 16, 24, 28, 44])
def test_an_answer_with_one_wrong_field_is_a_lost_hop_or_says_something_else(reply, at):
    frame = bytearray(encode_answer(1, reply))
    frame[at] = 0 if frame[at] == 200 else 200

    try:
        read = decode_answer(frame, DECODE, LIMITS)
    except HopLost:
        return

    assert read != reply


@pytest.mark.parametrize("frame", [b"", bytes(7), bytes(60), encode_release()])
def test_what_is_no_answer_is_a_lost_hop(frame):
    with pytest.raises(HopLost):
        decode_answer(frame, DECODE, LIMITS)


def test_an_activation_of_another_length_is_a_lost_hop():
    frame = encode_answer(1, ActivationReply(activation(1, 2, 8), 18))

    with pytest.raises(HopLost, match="1 positions"):
        decode_answer(frame, DECODE, LIMITS)


def test_a_miss_answers_no_prefill():
    frame = encode_answer(1, Refusal(Code.CACHE_MISS, "no"))

    with pytest.raises(HopLost, match="cache_miss"):
        decode_answer(frame, PREFILL, LIMITS)


@pytest.mark.parametrize("logprob", [float("nan"), float("inf"), -1e300])
def test_a_logprob_that_is_no_number_is_never_read(logprob):
    frame = bytearray(encode_answer(1, ANSWERS[1]))
    struct.pack_into("<d", frame, 48 + 8, logprob)

    with pytest.raises(HopLost):
        decode_answer(frame, DECODE, LIMITS)


def test_a_logprob_that_is_no_number_is_never_sent():
    reply = TokenReply(Drawn((SampledToken(5, float("nan")),)), "", 18)

    read = decode_answer(encode_answer(1, reply), DECODE, LIMITS)

    assert isinstance(read, Refusal)
    assert read.code is Code.NUMERICAL_ERROR


HOSTILE = 10_000


def mutated(frame: bytes, rng: random.Random) -> bytes:
    """Change some bytes, mostly of the header, or the length."""
    hostile = bytearray(frame)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(min(len(hostile), 80) if rng.random() < 0.8 else len(hostile))
        hostile[at] = rng.choice((0, 1, 2, 127, 128, 255, rng.randrange(256)))
    if rng.random() < 0.3:
        del hostile[rng.randrange(len(hostile)) :]
    if rng.random() < 0.1:
        hostile += rng.randbytes(rng.randrange(64))
    return bytes(hostile)


def test_ten_thousand_hostile_steps_are_read_or_refused_and_nothing_else():
    rng = random.Random(3)
    small = Limits(positions=4096, meta_bytes=4096)
    several = Activation(
        (TensorSpec(HIDDEN, DType.BF16, (1, 1, 8)), TensorSpec("more", DType.FP16, (3,))),
        bytes(22),
    )
    frames = [
        encode_step(7, DECODE),
        encode_step(7, PREFILL),
        encode_step(7, replace(DECODE, activation=several)),
        encode_release(),
    ]
    read = 0
    for index in range(HOSTILE):
        frame = mutated(frames[index % len(frames)], rng)
        try:
            step = decode_step(frame, OPENING, small)
        except BadField:
            continue
        read += 1
        assert isinstance(step, Ending) or decode_step(encode_step(7, step), OPENING, small) == step

    assert 0 < read < HOSTILE


def test_ten_thousand_hostile_answers_are_read_or_lost_and_nothing_else():
    rng = random.Random(4)
    frames = [encode_answer(7, reply) for reply in ANSWERS]
    read = 0
    for index in range(HOSTILE):
        frame = mutated(frames[index % len(frames)], rng)
        try:
            reply = decode_answer(frame, DECODE, LIMITS)
        except HopLost:
            continue
        read += 1
        assert decode_answer(encode_answer(7, reply), DECODE, LIMITS) == reply

    assert 0 < read < HOSTILE
