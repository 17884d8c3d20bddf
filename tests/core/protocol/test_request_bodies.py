"""The body of a request: meta block, tensors, raw bytes of old peers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from meshnet.core.protocol.codec import activation_of, encode_request, parse_head
from meshnet.core.protocol.limits import Limits
from meshnet.core.protocol.messages import ForwardRequest, Mode
from meshnet.core.vocabulary import (
    DRAFTS_MAX,
    HIDDEN,
    Activation,
    BadField,
    DType,
    SamplingParams,
    SessionId,
    TensorSpec,
    TooLarge,
)

LIMITS = Limits(body_bytes=100_000, meta_bytes=10_000, positions=500, json_containers=40)


def hidden(length: int, size: int = 8, dtype: DType = DType.FP32) -> Activation:
    spec = TensorSpec(HIDDEN, dtype, (1, length, size))
    return Activation((spec,), bytes(index % 251 for index in range(spec.nbytes)))


def sent(request: ForwardRequest) -> ForwardRequest:
    headers, parts = encode_request(request)
    body = b"".join(parts)
    return parse_head(headers.items(), len(body), LIMITS).finish(body)


def with_meta(meta: Any, rest: bytes = b"", **headers: str) -> ForwardRequest:
    block = meta if isinstance(meta, bytes) else json.dumps(meta).encode()
    fields = {"X-Meshnet-Meta": str(len(block))}
    fields |= {"X-Meshnet-" + name: value for name, value in headers.items()}
    body = block + rest
    return parse_head(fields.items(), len(body), LIMITS).finish(body)


def test_an_activation_is_a_view_of_the_body_and_not_a_copy():
    body = bytearray(32)
    headers = [("X-Meshnet-Shape", "1,1,8"), ("X-Meshnet-Dtype", "fp32")]

    request = parse_head(headers, 32, LIMITS).finish(body)
    body[0] = 7

    assert request.activation is not None
    assert request.activation.data[0] == 7


def test_encoding_hands_the_tensor_bytes_on_as_they_are():
    activation = hidden(2)

    _, parts = encode_request(ForwardRequest(Mode.STATELESS, activation=activation))

    assert len(parts) == 1
    assert parts[0] is activation.data


DECODE = {"Session": "a", "Cache": "decode", "Past-Len": "4"}


@pytest.mark.parametrize(
    ("meta", "mode"),
    [
        ({"tokens": [1, 2], "drafts": 2}, DECODE),
        ({"drafts": 1}, DECODE | {"Shape": "1,2,8", "Dtype": "fp32"}),
        ({"tokens": [1, 2], "drafts": 1, "want_token": False}, DECODE),
        ({"tokens": [1, 2], "drafts": -1}, DECODE),
        ({"tokens": [1] * 30, "drafts": DRAFTS_MAX + 1}, DECODE),
        ({"tokens": [1, 2], "drafts": 1}, {"Session": "a", "Cache": "prefill"}),
        ({"tokens": [1, 2], "drafts": 1}, {}),
    ],
)
def test_guesses_that_cannot_be_judged_are_refused(meta, mode):
    """They follow at least one id that is none, in a decode that wants a token."""
    rest = bytes(64) if "Shape" in mode else b""

    with pytest.raises(BadField, match="drafts"):
        with_meta(meta, rest, **mode)


def test_a_decode_says_how_many_of_its_ids_are_guesses():
    assert with_meta({"tokens": [1, 2, 3], "drafts": 2}, **DECODE).drafts == 2


def test_a_prefill_with_ids_and_sampling_arrives_as_it_was_sent():
    sampling = SamplingParams(
        temperature=0.7,
        top_k=40,
        logit_bias=((5, -1.5), (9, 100.0)),
        seed=2**64 - 1,
        logprobs=3,
        banned=(1, 2),
        banned_until=9,
    )
    request = ForwardRequest(
        Mode.PREFILL, SessionId("s"), tokens=(5, 6, 7), sampling=sampling, activation=hidden(3)
    )

    assert sent(request) == request


def test_a_request_of_ids_alone_has_no_activation():
    request = ForwardRequest(Mode.PREFILL, SessionId("s"), tokens=(5, 6), want_token=False)

    assert sent(request) == request


def test_several_tensors_are_described_in_the_meta_block():
    specs = (
        TensorSpec("hidden", DType.BF16, (4, 1, 2, 8)),
        TensorSpec("per_layer", DType.FP16, (6,)),
    )
    activation = Activation(specs, bytes(sum(spec.nbytes for spec in specs)))
    request = ForwardRequest(Mode.STATELESS, activation=activation)

    headers, _ = encode_request(request)

    assert "X-Meshnet-Shape" not in headers
    assert sent(request) == request


def test_the_body_of_an_old_peer_stays_raw_until_the_shard_reads_it():
    request = parse_head([], 64, LIMITS).finish(bytes(64))

    activation = activation_of(request, hidden_size=8, dtype=DType.FP32)

    assert request.activation is None
    assert activation is not None
    assert activation.hidden.shape == (1, 2, 8)


@pytest.mark.parametrize("size", [30, 33, 63])
def test_a_raw_body_that_is_no_whole_number_of_positions_is_refused(size):
    request = parse_head([], size, LIMITS).finish(bytes(size))

    with pytest.raises(BadField, match="multiple of 32 bytes"):
        activation_of(request, hidden_size=8, dtype=DType.FP32)


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Meshnet-Shape": "1,1,16"},
        {"X-Meshnet-Shape": "1,4,8"},
        {"X-Meshnet-Dtype": "fp32"},
    ],
)
def test_a_raw_body_that_contradicts_what_was_said_of_it_is_refused(headers):
    size = 32 if headers.get("X-Meshnet-Shape") != "1,4,8" else 128
    request = parse_head(headers.items(), size, LIMITS).finish(bytes(size))

    with pytest.raises(BadField):
        activation_of(request, hidden_size=8, dtype=DType.BF16)


def test_a_raw_body_with_the_right_shape_or_dtype_alone_is_read():
    for headers in ({"X-Meshnet-Shape": "1,2,8"}, {"X-Meshnet-Dtype": "bf16"}):
        request = parse_head(headers.items(), 32, LIMITS).finish(bytes(32))

        activation = activation_of(request, hidden_size=8, dtype=DType.BF16)

        assert activation is not None
        assert activation.hidden == TensorSpec(HIDDEN, DType.BF16, (1, 2, 8))


def test_ids_that_are_not_one_a_position_are_refused():
    with pytest.raises(BadField, match=r"meta\.tokens"):
        with_meta({"tokens": [1, 2]}, bytes(32), Shape="1,1,8", Dtype="fp32")


def test_past_and_new_positions_together_stay_within_the_limit():
    fields = {"Session": "s", "Cache": "decode", "Past-Len": "499"}

    assert with_meta({"tokens": [1]}, **fields).past_length == 499
    with pytest.raises(BadField, match="at most 500"):
        with_meta({"tokens": [1, 2]}, **fields)


WRONG_META: list[tuple[bytes, str]] = [
    (b"", "body"),
    (b"[]", "meta"),
    (b"{", "meta"),
    (b"\xff\xfe", "meta"),
    (b"null", "meta"),
    (b'{"tokens": [1], "tokens": [2]}', "meta"),
    (b'{"tokens": 1}', "meta.tokens"),
    (b'{"tokens": [-1]}', "meta.tokens"),
    (b'{"tokens": [1.0]}', "meta.tokens"),
    (b'{"tokens": [true]}', "meta.tokens"),
    (b'{"tokens": ["1"]}', "meta.tokens"),
    (b'{"tokens": [2147483648]}', "meta.tokens"),
    (b'{"tokens": [' + b"9" * 5000 + b"]}", "meta"),
    (b'{"tokens": [1], "want_token": 1}', "meta.want_token"),
    (b'{"tokens": [1], "sampling": []}', "meta.sampling"),
    (b'{"tokens": [1], "sampling": {"temperature": NaN}}', "meta"),
    (b'{"tokens": [1], "sampling": {"temperature": Infinity}}', "meta"),
    (b'{"tokens": [1], "sampling": {"temperature": 1e999}}', "meta.sampling.temperature"),
    (b'{"tokens": [1], "sampling": {"temperature": 2.5}}', "meta.sampling.temperature"),
    (b'{"tokens": [1], "sampling": {"temperature": "1"}}', "meta.sampling.temperature"),
    (b'{"tokens": [1], "sampling": {"temperature": true}}', "meta.sampling.temperature"),
    (b'{"tokens": [1], "sampling": {"top_k": 1.5}}', "meta.sampling.top_k"),
    (b'{"tokens": [1], "sampling": {"logprobs": 21}}', "meta.sampling.logprobs"),
    (b'{"tokens": [1], "sampling": {"seed": -1}}', "meta.sampling.seed"),
    (b'{"tokens": [1], "sampling": {"logit_bias": {"x": 1}}}', "meta.sampling.logit_bias"),
    (b'{"tokens": [1], "sampling": {"logit_bias": {"5": 101}}}', "meta.sampling.logit_bias value"),
    (b'{"tokens": [1], "sampling": {"banned": [-1]}}', "meta.sampling.banned"),
    (b'{"tokens": [1], "sampling": {"forced": [1]}}', "meta.sampling.len(forced)"),
    (
        b'{"tokens": [1], "sampling": {"forced": [2147483648], "prompt_length": 2}}',
        "meta.sampling.forced",
    ),
    (b'{"tokens": [1], "tensors": {}}', "meta.tensors"),
    (b'{"tensors": [{"name": "h", "dtype": "fp32"}]}', "meta.tensors[0].shape"),
    (b'{"tensors": [{"name": "h", "dtype": "fp99", "shape": [1, 1]}]}', "meta.tensors.dtype"),
    (b'{"tensors": [{"name": "h", "dtype": "fp32", "shape": [1, 0]}]}', "meta.tensors[0].shape"),
    (b'{"tensors": [{"name": "../h", "dtype": "fp32", "shape": [1, 1]}]}', "meta.tensors[0].name"),
    (b'{"tensors": [{"name": "h", "dtype": "fp32", "shape": [1, NaN]}]}', "meta"),
    (b'{"tensors": [{"name": "h", "dtype": "fp32", "shape": [4]}]}', "meta.tensors"),
    (b'{"a": ' + b"[" * 60 + b"]" * 60 + b"}", "meta"),
]


@pytest.mark.parametrize(("block", "field"), WRONG_META)
def test_a_wrong_meta_block_is_refused_by_the_name_of_the_key(block, field):
    with pytest.raises(BadField) as refused:
        with_meta(block)

    assert refused.value.field == field


def test_unknown_keys_of_the_meta_block_are_ignored_and_null_is_absent():
    request = with_meta({"tokens": [1], "route": [], "sampling": {"later": 1}, "tensors": None})

    assert request.tokens == (1,)
    assert request.sampling == SamplingParams()


def test_tensors_in_the_meta_block_and_a_shape_header_are_refused():
    tensors = [{"name": "h", "dtype": "fp32", "shape": [1, 8]}]

    with pytest.raises(BadField, match=r"meta\.tensors"):
        with_meta({"tensors": tensors}, bytes(32), Dtype="fp32")


def test_tensors_that_do_not_fill_the_body_are_refused():
    tensors = [{"name": "h", "dtype": "fp32", "shape": [1, 8]}]

    assert with_meta({"tensors": tensors}, bytes(32)).activation is not None
    for rest in (b"", bytes(31), bytes(33)):
        with pytest.raises(BadField, match="body"):
            with_meta({"tensors": tensors}, rest)


def test_two_tensors_of_one_name_or_too_many_are_refused():
    tensor = {"name": "h", "dtype": "fp32", "shape": [1, 8]}

    with pytest.raises(BadField, match="names that differ"):
        with_meta({"tensors": [tensor, tensor]}, bytes(64))
    with pytest.raises(BadField, match="at most 16"):
        with_meta({"tensors": [tensor | {"name": f"h{index}"} for index in range(17)]}, bytes(32))


def test_nesting_is_refused_even_where_many_containers_are_allowed():
    deep = b'{"a": ' + b"[" * 50_000 + b"]" * 50_000 + b"}"
    head = parse_head(
        [("X-Meshnet-Meta", str(len(deep)))], len(deep), Limits(json_containers=10**6)
    )

    with pytest.raises(BadField, match="meta"):
        head.finish(deep)


def test_half_a_body_is_refused():
    head = parse_head([], 64, LIMITS)

    with pytest.raises(BadField, match="64 bytes"):
        head.finish(bytes(63))


def test_a_body_in_chunks_is_held_to_the_same_limits_once_it_is_there():
    headers = [("X-Meshnet-Shape", "1,1,8"), ("X-Meshnet-Dtype", "fp32")]

    assert parse_head(headers, None, LIMITS).finish(bytes(32)).activation is not None
    with pytest.raises(BadField):
        parse_head(headers, None, LIMITS).finish(bytes(33))
    with pytest.raises(TooLarge):
        parse_head([], None, LIMITS).finish(bytes(100_001))
