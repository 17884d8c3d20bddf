"""Every header field of a request: what is refused, before a byte of the body is read."""

from __future__ import annotations

import pytest

from meshnet.core.protocol.codec import parse_head
from meshnet.core.protocol.limits import Limits
from meshnet.core.protocol.messages import Mode
from meshnet.core.vocabulary import BadField, LayerRange, TooLarge

LIMITS = Limits(body_bytes=10_000, meta_bytes=1_000, positions=500)
DECODE = {
    "X-Meshnet-Session": "abc",
    "X-Meshnet-Cache": "decode",
    "X-Meshnet-Past-Len": "17",
    "X-Meshnet-Shape": "1,1,8",
    "X-Meshnet-Dtype": "fp32",
}


def decode_with(**changed: str | None):
    fields = dict(DECODE)
    for name, value in changed.items():
        spelled = "X-Meshnet-" + name.replace("_", "-")
        fields.pop(spelled, None)
        if value is not None:
            fields[spelled] = value
    return list(fields.items())


def test_a_request_without_fields_is_stateless_and_everything_else_is_absent():
    head = parse_head([], 64, LIMITS)

    assert head.mode is Mode.STATELESS
    assert (head.session, head.layers, head.model, head.attempt) == (None, None, None, None)
    assert (head.prefix, head.deadline_ms, head.wire, head.past_length) == (None, None, 0, 0)


def test_every_field_of_a_decode_is_read():
    more = {
        "Layers": "3-9",
        "Model": "org/model-1.0",
        "Wire": "1",
        "Deadline_Ms": "2500",
        "Prefix": "0123456789abcdef",
        "Attempt": "4",
        "Truncate": "1",
    }

    head = parse_head(decode_with(**more), 32, LIMITS)

    assert (head.mode, head.session, head.past_length) == (Mode.DECODE, "abc", 17)
    assert (head.layers, head.model, head.wire) == (LayerRange(3, 9), "org/model-1.0", 1)
    assert (head.deadline_ms, head.prefix, head.attempt) == (2500, "0123456789abcdef", 4)
    assert head.truncate


@pytest.mark.parametrize(
    "fields",
    [
        decode_with(Truncate="0", Prefix="0123456789abcdef"),
        decode_with(Truncate="true", Prefix="0123456789abcdef"),
        decode_with(Truncate="1"),
        decode_with(Truncate="1", Prefix="0123456789abcdef", Cache="prefill", Past_Len=None),
    ],
)
def test_a_session_is_shortened_only_by_a_decode_that_says_of_which_ids(fields):
    """Without a digest nobody could tell a rejected draft from the tokens that replace it."""
    with pytest.raises(BadField, match="Truncate"):
        parse_head(fields, 32, LIMITS)


def test_field_names_are_read_in_any_case():
    lower = [(name.lower(), value) for name, value in decode_with()]

    assert parse_head(lower, 32, LIMITS).past_length == 17


INTEGERS = ["-1", "1e3", " 12 ", "12 ", "+5", "007", "", "0x10", "1_000", "٣", "99999999999", "1.0"]


@pytest.mark.parametrize("text", INTEGERS)
@pytest.mark.parametrize("field", ["Past-Len", "Attempt", "Wire", "Deadline-Ms", "Meta"])
def test_a_number_that_is_not_plain_decimal_digits_is_refused(field, text):
    """Pit C5."""
    with pytest.raises(BadField) as refused:
        parse_head(decode_with(**{field.replace("-", "_"): text}), 32, LIMITS)

    assert refused.value.field == f"X-Meshnet-{field}"
    assert repr(text)[:40] in str(refused.value)


WRONG = [
    ("Cache", ["Prefill", "DECODE", "foo", "", "stateless"]),
    ("Session", ["", "a" * 129, "a" * 10_000, "../x", "a..b", ".", "a/b", "ü", "a b", "a\n"]),
    ("Shape", ["", "8", "1,8,", "1,,8", "0,8", "-1,8", "1, 8", "1x8", "NaN,8", "9" * 10 + ",8"]),
    ("Shape", ["1,1,1,1,1,1,1,1,8"]),
    ("Dtype", ["FP32", "fp64", "float32", "", "int8"]),
    ("Layers", ["3", "9-3", "3-3", "-3-9", "a-b", "3-9 ", ""]),
    ("Model", ["", "a b", "a\x00b", "%ff", "%zz", "ü", "m" * 513]),
    ("Request", ["", "a b", "a\n", "r" * 129, "é"]),
    ("Owner", ["", "a b", "a\n", "o" * 33, "é"]),
    ("Stages", ["", "0", "65", "-1", "two", "01"]),
    ("Prefix", ["", "0123", "0123456789ABCDEF", "0123456789abcdefa"]),
]


@pytest.mark.parametrize(("field", "text"), [(f, text) for f, texts in WRONG for text in texts])
def test_a_field_that_is_present_and_wrong_is_refused_by_name(field, text):
    """Pit C5."""
    headers = decode_with(**{field: text})

    with pytest.raises(BadField) as refused:
        parse_head(headers, 32, Limits(header_bytes=20_000))

    assert refused.value.field == f"X-Meshnet-{field}"


@pytest.mark.parametrize("name", list(DECODE))
def test_a_field_that_is_there_twice_is_refused(name):
    """Pit C5."""
    headers = [*decode_with(), (name.lower(), DECODE[name])]

    with pytest.raises(BadField) as refused:
        parse_head(headers, 32, LIMITS)

    assert refused.value.field == name


def test_a_decode_without_past_length_is_refused():
    """Pit C5."""
    with pytest.raises(BadField, match="X-Meshnet-Past-Len"):
        parse_head(decode_with(Past_Len=None), 32, LIMITS)


@pytest.mark.parametrize("mode", ["prefill", None])
def test_a_past_length_outside_a_decode_is_refused(mode):
    with pytest.raises(BadField, match="X-Meshnet-Past-Len"):
        parse_head(decode_with(Cache=mode), 32, LIMITS)


@pytest.mark.parametrize("mode", ["prefill", "decode"])
def test_a_cached_step_without_session_is_refused(mode):
    past = "17" if mode == "decode" else None

    with pytest.raises(BadField, match="X-Meshnet-Session"):
        parse_head(decode_with(Session=None, Cache=mode, Past_Len=past), 32, LIMITS)


def test_a_past_length_over_the_positions_limit_is_refused():
    with pytest.raises(BadField, match="0 to 500"):
        parse_head(decode_with(Past_Len="501"), 32, LIMITS)


def test_headers_over_their_limit_are_refused_and_unknown_ones_are_ignored():
    unknown = ("X-Meshnet-Later", "x" * 100)

    assert parse_head([*decode_with(), unknown, unknown], 32, LIMITS).past_length == 17
    with pytest.raises(BadField, match="4096"):
        parse_head([*decode_with(), ("X-Meshnet-Later", "x" * 4096)], 32, LIMITS)


def test_the_id_of_the_api_request_is_read_for_the_log():
    """Pit A110."""
    assert parse_head(decode_with(Request="my.req-1"), 32, LIMITS).trace == "my.req-1"
    assert parse_head(decode_with(), 32, LIMITS).trace is None


def test_the_owner_and_the_stages_of_a_step_are_read_and_may_be_absent():
    told = parse_head(decode_with(Owner="a1-b2", Stages="3"), 32, LIMITS)
    silent = parse_head(decode_with(), 32, LIMITS)

    assert (told.owner, told.stages) == ("a1-b2", 3)
    assert (silent.owner, silent.stages) == (None, 1)


def test_a_model_id_beyond_ascii_travels_percent_encoded():
    headers = decode_with(Model="mod%C3%A8le%20un")

    assert parse_head(headers, 32, LIMITS).model == "modèle un"


@pytest.mark.parametrize("length", [0, 31, 33, 64])
def test_a_length_that_contradicts_shape_and_dtype_is_refused_before_the_body(length):
    with pytest.raises(BadField, match="body"):
        parse_head(decode_with(), length, LIMITS)


def test_a_shape_without_dtype_still_decides_which_lengths_can_be_right():
    assert parse_head(decode_with(Dtype=None), 16, LIMITS).frame.shape == (1, 1, 8)
    with pytest.raises(BadField, match="16 or 32 bytes"):
        parse_head(decode_with(Dtype=None), 17, LIMITS)


def test_a_meta_block_longer_than_the_body_is_refused():
    with pytest.raises(BadField, match="X-Meshnet-Meta"):
        parse_head([("X-Meshnet-Meta", "65")], 64, LIMITS)


@pytest.mark.parametrize(
    ("headers", "length", "field"),
    [([], 10 * 2**30, "body"), ([("X-Meshnet-Meta", "1001")], 2000, "X-Meshnet-Meta")],
)
def test_a_body_or_meta_block_over_its_limit_is_too_large(headers, length, field):
    with pytest.raises(TooLarge) as refused:
        parse_head(headers, length, LIMITS)

    assert refused.value.field == field


def test_an_empty_body_is_refused_whatever_the_headers_say():
    with pytest.raises(BadField, match="body"):
        parse_head([], 0, LIMITS)
    with pytest.raises(BadField, match="body"):
        parse_head([], None, LIMITS).finish(b"")


ADOPTING = {
    "X-Meshnet-Session": "new",
    "X-Meshnet-Cache": "decode",
    "X-Meshnet-Past-Len": "3",
    "X-Meshnet-Prefix": "00112233445566ff",
    "X-Meshnet-Adopt": "old",
}


def test_a_decode_may_adopt_the_session_whose_digest_it_tells():
    assert parse_head(ADOPTING.items(), 4, Limits()).adopt == "old"


@pytest.mark.parametrize(
    "wrong",
    [
        {"X-Meshnet-Prefix": None},
        {"X-Meshnet-Past-Len": "0"},
        {"X-Meshnet-Cache": "prefill", "X-Meshnet-Past-Len": None},
        {"X-Meshnet-Cache": None, "X-Meshnet-Past-Len": None},
        {"X-Meshnet-Adopt": "new"},
        {"X-Meshnet-Adopt": ".."},
        {"X-Meshnet-Adopt": ""},
    ],
)
def test_nothing_else_may_adopt(wrong):
    fields = {name: value for name, value in (ADOPTING | wrong).items() if value is not None}

    with pytest.raises(BadField) as caught:
        parse_head(fields.items(), 4, Limits())

    assert caught.value.field == "X-Meshnet-Adopt"
