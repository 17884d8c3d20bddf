"""Who keeps its place in the store: time to live, the cap, reservations."""

from __future__ import annotations

import pytest
from tests.core.sessions.held import Held, miss

from meshnet.core.sessions.entry import Eviction, EvictionReason
from meshnet.core.vocabulary import (
    NoRoom,
    SessionId,
    StaleAttempt,
)


def test_a_session_nobody_used_for_longer_than_the_ttl_is_gone():
    """Pit C8."""
    store = Held()
    store.cache("s", 0.0)

    assert store.lengths(600.0) == {"s": 3}
    assert store.lengths(600.1) == {}
    assert store.evictions == {EvictionReason.TTL: 1}


ACCESSES = {
    "prefill": lambda store: store.start("t", 601.0),
    "decode": lambda store: miss(store, "t", 1, 601.0),
    "reserve": lambda store: store.take("t", 601.0),
    "describe": lambda store: store.describe(SessionId("t"), 601.0),
    "release": lambda store: store.release(SessionId("t"), 601.0),
    "sessions": lambda store: store.sessions(601.0),
}


@pytest.mark.parametrize("access", ACCESSES)
def test_every_access_evaluates_the_ttl(access: str):
    store = Held()
    store.cache("s", 0.0)

    ACCESSES[access](store)

    assert store.evictions == {EvictionReason.TTL: 1}


def test_a_commit_evaluates_the_ttl():
    store = Held()
    store.cache("s", 0.0)
    lease = store.start("t", 1.0)

    store.end(lease, 601.0)

    assert store.take_evictions() == [Eviction(SessionId("s"), EvictionReason.TTL)]


def test_a_running_step_is_use_however_long_it_takes():
    store = Held()
    lease = store.start("s", 0.0)

    assert store.end(lease, 10_000.0)
    assert store.lengths(10_001.0) == {"s": 3}


def test_a_decode_and_its_commit_renew_the_ttl():
    """Pit C8."""
    store = Held()
    store.cache("s", 0.0)

    lease = store.extend("s", 3, 500.0)
    assert store.end(lease, 900.0)

    assert store.lengths(1500.0) == {"s": 4}
    assert store.lengths(1500.1) == {}


def test_the_cap_evicts_the_session_idle_longest():
    store = Held()
    store.cache("oldest", 0.0)
    store.cache("newer", 1.0)
    store.end(store.extend("oldest", 3, 2.0), 2.0)

    store.cache("newest", 10.0)

    assert store.lengths(10.0) == {"oldest": 4, "newest": 3}
    assert store.evictions == {EvictionReason.LRU: 1}


def test_who_was_touched_less_than_the_pin_ago_is_not_evicted_for_a_place():
    store = Held(sessions_max=1)
    store.cache("s", 0.0)

    with pytest.raises(NoRoom) as caught:
        store.start("t", 4.9)
    assert caught.value.retry_after_s > 0
    assert store.start("t", 5.0)


def test_who_runs_a_step_is_not_evicted_for_a_place():
    store = Held(sessions_max=1)
    store.start("s", 0.0)

    with pytest.raises(NoRoom, match="all 1 places"):
        store.take("t", 100.0)


def test_a_reservation_takes_a_place_and_bytes_before_the_first_prefill():
    store = Held(sessions_max=1)

    store.take("s", 0.0, size=40)

    assert store.budget.bytes == 40
    with pytest.raises(NoRoom):
        store.start("t", 1.0)
    assert store.start("s", 1.0)


def test_a_reservation_that_nobody_used_is_evictable_after_the_pin():
    store = Held(sessions_max=1)
    store.take("s", 0.0)

    store.take("t", 5.0)

    assert store.lengths(5.0) == {"t": 0}


def test_a_reservation_is_renewed_by_asking_again():
    store = Held(sessions_max=1)
    store.take("s", 0.0)
    store.take("s", 4.0, size=9)

    with pytest.raises(NoRoom):
        store.take("t", 8.9)

    assert store.budget.bytes == 9


def test_a_reservation_for_a_cached_session_keeps_what_is_cached():
    """The head reserves again before a refill; until that comes the old attempt is the truth."""
    store = Held()
    store.cache("s", 0.0)

    store.take("s", 1.0, size=40, attempt=2)

    assert store.budget.bytes == 40
    assert store.extend("s", 3, 2.0, attempt=1)


def test_a_reservation_of_an_older_attempt_is_refused():
    store = Held()
    store.cache("s", 0.0)
    store.end(store.start("s", 0.0, attempt=3), 0.0)

    with pytest.raises(StaleAttempt):
        store.take("s", 1.0, attempt=2)


def test_a_late_prefill_does_not_fill_the_place_of_a_newer_attempt():
    store = Held()
    store.take("s", 0.0, attempt=2)

    with pytest.raises(StaleAttempt):
        store.start("s", 1.0, attempt=1)
    assert store.start("s", 1.0, attempt=2)


def test_a_reservation_without_an_attempt_does_not_lower_the_one_known():
    store = Held()
    store.take("s", 0.0, attempt=2)
    store.take("s", 0.0, attempt=None)

    with pytest.raises(StaleAttempt):
        store.start("s", 1.0, attempt=1)


def test_an_adr_0022_head_takes_the_place_of_the_least_recently_used_pinned_or_not():
    store = Held()
    store.cache("older", 0.0)
    store.cache("newer", 0.1)

    store.cache("old head", 0.2, wire=0)

    assert store.lengths(0.2) == {"newer": 3, "old head": 3}


def test_an_adr_0022_head_spares_running_steps_while_it_can():
    store = Held()
    store.start("running", 0.0)
    store.cache("idle", 0.1)

    store.cache("old head", 0.2, wire=0)

    assert set(store.lengths(0.2)) == {"running", "old head"}


def test_an_adr_0022_head_is_granted_a_place_even_if_all_run():
    """It knows no 429; the session that goes costs one refill, never an answer."""
    store = Held(sessions_max=1)
    lease = store.start("running", 0.0)

    store.cache("old head", 0.1, wire=0)

    assert not store.end(lease, 0.2)
    assert store.lengths(0.2) == {"old head": 3}


def test_a_running_session_that_lost_its_place_takes_that_of_the_youngest():
    """Else two that run each keep the place the other needs on some node, and neither goes on."""
    store = Held()
    store.cache("b", 0.0)
    store.cache("c", 0.1)

    store.start("a", 0.2, attempt=2)

    assert store.take_evictions() == [Eviction(SessionId("c"), EvictionReason.PREEMPTED)]


def test_nobody_takes_the_place_of_an_older_session_nor_of_a_running_step():
    store = Held()
    store.cache("a", 0.0)
    store.start("c", 0.1)

    with pytest.raises(NoRoom):
        store.start("b", 0.2, attempt=2)

    assert store.lengths(0.2) == {"a": 3, "c": 0}


def test_a_generation_that_has_not_run_waits_for_its_place_however_old_it_is():
    store = Held()
    store.cache("b", 0.0)
    store.cache("c", 0.1)

    with pytest.raises(NoRoom):
        store.start("a", 0.2, attempt=1)
    with pytest.raises(NoRoom):
        store.take("a", 0.2, attempt=None)
