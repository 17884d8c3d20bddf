"""PUT /sessions/{id} as JSON."""

from __future__ import annotations

import pytest

from meshnet.core.protocol.codec import (
    decode_reserve,
    decode_reserve_reply,
    encode_refusal,
    encode_reserve,
    encode_reserved,
)
from meshnet.core.protocol.limits import Limits
from meshnet.core.protocol.messages import Code, Refusal, Reserved, ReserveRequest
from meshnet.core.vocabulary import BadField, HopLost, LayerRange, ModelId, SessionId

LIMITS = Limits(positions=1000)
FULL = ReserveRequest(SessionId("s"), 700, ModelId("m"), LayerRange(0, 10), 3)
BARE = ReserveRequest(SessionId("s"), 1)


@pytest.mark.parametrize("request_", [FULL, BARE])
def test_a_reservation_arrives_as_it_was_sent(request_):
    assert decode_reserve("s", encode_reserve(request_), LIMITS) == request_


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b'{"tokens": 0}',
        b'{"tokens": 1001}',
        b'{"tokens": 1.5}',
        b'{"tokens": 5, "layers": "3"}',
        b'{"tokens": 5, "layers": [0, 3]}',
        b'{"tokens": 5, "attempt": -1}',
        b'{"tokens": 5, "model": 7}',
        b'{"tokens": 5, "model": "\\ud800"}',
    ],
)
def test_a_wrong_reservation_is_refused(body):
    with pytest.raises(BadField):
        decode_reserve("s", body, LIMITS)


def test_a_session_id_of_a_path_is_held_to_the_same_rule():
    with pytest.raises(BadField, match="X-Meshnet-Session"):
        decode_reserve("..", encode_reserve(BARE), LIMITS)


@pytest.mark.parametrize("running", [False, True])
def test_both_answers_arrive_as_they_were_sent(running: bool):
    reserved = Reserved(SessionId("s"), 700, running)
    refusal = Refusal(Code.NO_ROOM, "full", retry_after_s=0.5)
    status, headers, body = encode_refusal(refusal)

    assert decode_reserve_reply(200, [], encode_reserved(reserved), FULL, LIMITS) == reserved
    assert decode_reserve_reply(status, headers.items(), body, FULL, LIMITS) == refusal


@pytest.mark.parametrize("body", [b"", b"{}", b"granted", b'{"running": 1}', b"[" * 10_000])
def test_a_grant_in_other_words_is_a_grant_of_which_nothing_runs(body: bytes):
    assert decode_reserve_reply(200, [], body, FULL, LIMITS) == Reserved(FULL.session, FULL.tokens)


@pytest.mark.parametrize("status", [404, 405, 501])
def test_an_old_node_that_does_not_know_the_method_grants_everything(status):
    answer = decode_reserve_reply(status, [], b"Unsupported method", FULL, LIMITS)

    assert answer == Reserved(FULL.session, FULL.tokens)


def test_a_node_of_ours_that_lacks_the_model_refuses():
    status, headers, body = encode_refusal(Refusal(Code.NOT_FOUND, "no such model"))

    answer = decode_reserve_reply(status, headers.items(), body, FULL, LIMITS)

    assert answer == Refusal(Code.NOT_FOUND, "no such model")


@pytest.mark.parametrize("status", [302, 409, 500, 502])
def test_any_other_answer_is_a_lost_hop(status):
    with pytest.raises(HopLost):
        decode_reserve_reply(status, [], b"?", FULL, LIMITS)
