"""Which refusal each error becomes."""

from __future__ import annotations

import pytest

from meshnet.core.protocol.messages import Code
from meshnet.core.protocol.refusals import encode_refusal, refusal_of
from meshnet.core.vocabulary import (
    BadField,
    HopLost,
    KVCacheMiss,
    MissReason,
    ModelError,
    NoRoom,
    NumericalError,
    StaleAttempt,
    StepTorn,
    TooLarge,
    WrongShard,
)

CODES = [
    (BadField("f", "x", "y"), Code.BAD_REQUEST),
    (TooLarge("f", "x", "y"), Code.TOO_LARGE),
    (WrongShard("w"), Code.NOT_FOUND),
    (KVCacheMiss(MissReason.BUSY, "w"), Code.CACHE_MISS),
    (StaleAttempt("w"), Code.STALE_ATTEMPT),
    (NoRoom("w", 1.5), Code.NO_ROOM),
    (StepTorn("w", out_of_memory=True), Code.OUT_OF_MEMORY),
    (StepTorn("w"), Code.INTERNAL),
    (NumericalError("w"), Code.NUMERICAL_ERROR),
    (HopLost("w"), Code.INTERNAL),
    (ModelError("w"), Code.INTERNAL),
]


@pytest.mark.parametrize(("error", "code"), CODES, ids=lambda value: type(value).__name__)
def test_every_error_of_ours_has_its_code(error, code):
    refusal = refusal_of(error)

    assert refusal.code is code
    assert refusal.message == str(error)


def test_a_refusal_keeps_the_reason_of_a_miss_and_the_wait_for_room():
    assert refusal_of(KVCacheMiss(MissReason.BUSY, "w")).reason is MissReason.BUSY
    assert refusal_of(NoRoom("w", 1.5)).retry_after_s == 1.5


def test_a_message_without_end_is_cut():
    _, _, body = encode_refusal(refusal_of(WrongShard("x" * 100_000)))

    assert len(body) < 3000
