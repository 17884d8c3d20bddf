"""The rules of a session and its lease, each by one example under a fake clock."""

from __future__ import annotations

import pytest
from tests.core.sessions.held import IDS, LAYERS, OTHER_LAYERS, Held, miss

from meshnet.core.protocol.digest import PrefixDigest
from meshnet.core.sessions.budget import ByteBudget
from meshnet.core.sessions.entry import Eviction, EvictionReason
from meshnet.core.sessions.store import SessionCacheStore
from meshnet.core.vocabulary import (
    MissReason,
    SessionId,
    StaleAttempt,
)


def test_a_decode_extends_what_a_prefill_cached():
    store = Held()
    store.cache("s", 0.0)

    lease = store.extend("s", 3, 1.0)

    assert (lease.length_before, lease.length_after, lease.state) == (3, 4, "3 long")
    assert store.end(lease, 1.0)
    assert store.lengths(1.0) == {"s": 4}


def test_an_unknown_session_is_a_miss():
    assert miss(Held(), "s", 3, 0.0) is MissReason.UNKNOWN_SESSION


def test_a_place_without_a_prefill_is_a_miss():
    store = Held()
    store.take("s", 0.0)

    assert miss(store, "s", 0, 1.0) is MissReason.UNKNOWN_SESSION


@pytest.mark.parametrize("past_length", [0, 2, 4])
def test_a_decode_is_served_only_at_the_exact_length(past_length: int):
    """Pit C2."""
    store = Held()
    store.cache("s", 0.0)

    assert miss(store, "s", past_length, 1.0) is MissReason.PAST_LENGTH


def test_another_layer_range_is_a_miss_even_if_it_ends_alike():
    store = Held()
    store.cache("s", 0.0)

    assert miss(store, "s", 3, 1.0, layers=OTHER_LAYERS) is MissReason.START_LAYER


def test_equal_length_is_not_equal_content():
    store = Held()
    assert store.end(store.start("s", 0.0), 0.0, ids=IDS)

    assert miss(store, "s", 3, 1.0, prefix=PrefixDigest.of((11, 12, 14)).hex) is MissReason.PREFIX
    assert store.extend("s", 3, 1.0, prefix=PrefixDigest.of(IDS).hex)


def test_the_digest_grows_with_every_step():
    store = Held()
    store.end(store.start("s", 0.0), 0.0, ids=IDS)
    store.end(store.extend("s", 3, 1.0), 1.0, ids=(14,))

    found = store.describe(SessionId("s"), 1.0)

    assert found is not None
    assert found.prefix == PrefixDigest.of((*IDS, 14)).hex


def test_without_a_prefix_the_length_decides():
    store = Held()
    store.end(store.start("s", 0.0), 0.0, ids=IDS)

    assert store.extend("s", 3, 1.0, prefix=None)


def test_a_session_filled_without_ids_cannot_prove_a_prefix():
    store = Held()
    store.cache("s", 0.0)

    assert miss(store, "s", 3, 1.0, prefix=PrefixDigest.of(IDS).hex) is MissReason.PREFIX


def test_one_step_without_ids_ends_the_digest():
    store = Held()
    store.end(store.start("s", 0.0), 0.0, ids=IDS)
    store.end(store.extend("s", 3, 1.0), 1.0)
    store.end(store.extend("s", 4, 2.0), 2.0, ids=(15,))

    found = store.describe(SessionId("s"), 2.0)

    assert found is not None
    assert (found.length, found.prefix) == (5, None)


@pytest.mark.parametrize("attempt", [1, 3])
def test_a_decode_of_any_other_attempt_is_a_miss(attempt: int):
    """Pit C4."""
    store = Held()
    store.end(store.start("s", 0.0, attempt=2), 0.0)

    assert miss(store, "s", 3, 1.0, attempt=attempt) is MissReason.ATTEMPT


def test_an_attempt_is_compared_only_where_both_sides_name_one():
    store = Held()
    store.end(store.start("named", 0.0, attempt=2), 0.0)
    store.end(store.start("nameless", 0.0, attempt=None), 0.0)

    assert store.extend("named", 3, 1.0, attempt=None)
    assert store.extend("nameless", 3, 1.0, attempt=7)


def test_a_session_whose_step_runs_is_busy():
    store = Held()
    store.cache("s", 0.0)
    store.extend("s", 3, 1.0)

    assert miss(store, "s", 3, 1.0) is MissReason.BUSY
    assert miss(store, "s", 4, 1.0) is MissReason.BUSY


def test_a_miss_changes_nothing_and_does_not_count_as_use():
    store = Held()
    store.cache("s", 0.0)

    miss(store, "s", 2, 599.0)

    assert store.lengths(600.0) == {"s": 3}
    assert store.lengths(600.1) == {}


def test_a_prefill_replaces_a_session_and_supersedes_its_running_step():
    """Pit C3."""
    store = Held()
    store.cache("s", 0.0)
    late = store.extend("s", 3, 1.0)

    fresh = store.start("s", 2.0, tokens=2, attempt=2, layers=OTHER_LAYERS)

    assert not store.holds(late)
    assert not store.end(late, 3.0)
    assert store.end(fresh, 3.0)
    found = store.describe(SessionId("s"), 3.0)
    assert found is not None
    assert (found.length, found.layers, found.attempt) == (2, OTHER_LAYERS, 2)


def test_a_stale_abandon_does_not_free_the_new_cache():
    """Pit C3."""
    store = Held()
    store.cache("s", 0.0)
    late = store.extend("s", 3, 1.0)
    store.end(store.start("s", 2.0, attempt=2), 2.0)

    assert not store.abandon(late)

    assert store.lengths(3.0) == {"s": 3}


def test_a_stale_withdrawal_does_not_free_the_new_lease():
    store = Held()
    late = store.start("s", 0.0)
    fresh = store.start("s", 1.0, attempt=2)

    assert not store.withdraw(late)

    assert store.holds(fresh)


def test_a_prefill_of_an_older_attempt_is_never_granted():
    store = Held()
    store.end(store.start("s", 0.0, attempt=2), 0.0)

    with pytest.raises(StaleAttempt, match="1 is older than 2"):
        store.start("s", 1.0, attempt=1)

    assert store.lengths(1.0) == {"s": 3}


def test_a_duplicate_of_a_prefill_is_never_granted_running_or_ended():
    store = Held()
    lease = store.start("s", 0.0, attempt=2)

    with pytest.raises(StaleAttempt, match="prefilled before"):
        store.start("s", 1.0, attempt=2)
    store.end(lease, 1.0)
    with pytest.raises(StaleAttempt, match="prefilled before"):
        store.start("s", 2.0, attempt=2)


def test_a_prefill_without_an_attempt_is_always_granted():
    """An ADR-0022 head counts no attempts; its next prefill is its next truth."""
    store = Held()
    store.end(store.start("s", 0.0, attempt=2), 0.0)

    for now in (1.0, 2.0):
        assert store.end(store.start("s", now, attempt=None), now)


def test_a_step_that_failed_midway_costs_the_session_and_one_prefill():
    """Layers mutate in place, so a torn step must never be resumed."""
    store = Held()
    store.cache("s", 0.0)
    torn = store.extend("s", 3, 1.0)

    assert store.abandon(torn)

    assert miss(store, "s", 3, 2.0) is MissReason.UNKNOWN_SESSION
    assert store.evictions == {EvictionReason.TORN: 1}


def test_a_decode_that_never_started_leaves_the_session_as_it_was():
    store = Held()
    store.cache("s", 0.0)

    assert store.withdraw(store.extend("s", 3, 1.0))

    assert store.extend("s", 3, 2.0)


def test_a_prefill_that_never_started_leaves_a_place_and_may_be_sent_again():
    store = Held()

    assert store.withdraw(store.start("s", 0.0))

    assert store.lengths(0.0) == {"s": 0}
    assert miss(store, "s", 0, 1.0) is MissReason.UNKNOWN_SESSION
    assert store.end(store.start("s", 1.0), 1.0)


def test_a_release_forgets_the_session_and_its_running_step():
    store = Held()
    lease = store.start("s", 0.0)

    assert store.release(SessionId("s"), 1.0)

    assert not store.end(lease, 2.0)
    assert not store.abandon(lease)
    assert not store.release(SessionId("s"), 3.0)
    assert store.evictions == {EvictionReason.RELEASED: 1}


def test_a_description_tells_what_is_committed():
    store = Held()
    store.end(store.start("s", 0.0, attempt=4), 0.0, ids=IDS)

    found = store.describe(SessionId("s"), 1.0)

    assert found is not None
    assert (found.session, found.layers, found.length) == ("s", LAYERS, 3)
    assert (found.prefix, found.attempt, found.kv_bytes) == (PrefixDigest.of(IDS).hex, 4, 3)
    assert store.describe(SessionId("t"), 1.0) is None


def test_evictions_are_handed_over_once_and_counted_for_ever():
    store = Held(sessions_max=1)
    store.cache("s", 0.0)
    store.cache("t", 10.0)

    assert store.take_evictions() == [Eviction(SessionId("s"), EvictionReason.LRU)]
    assert store.take_evictions() == []
    assert store.evictions == {EvictionReason.LRU: 1}


@pytest.mark.parametrize(
    ("sessions_max", "ttl_s", "pin_s"), [(0, 600.0, 5.0), (1, 0.0, 0.0), (1, 1.0, 2.0)]
)
def test_a_store_without_room_or_time_cannot_be_made(sessions_max: int, ttl_s: float, pin_s: float):
    with pytest.raises(ValueError, match="expected sessions_max"):
        SessionCacheStore[str](
            budget=ByteBudget(1), sessions_max=sessions_max, ttl_s=ttl_s, pin_s=pin_s
        )


def test_a_later_attempt_goes_on_with_a_session_whose_ids_are_proved_and_voids_the_older():
    """What survived a loss is not prefilled again (ADR-0041)."""
    store = Held()
    store.end(store.start("s", 0.0), 0.0, ids=IDS)
    digest = PrefixDigest.of(IDS)

    lease = store.extend("s", 3, 1.0, prefix=digest.hex, attempt=3)
    assert store.end(lease, 1.0, ids=(14,))

    after = digest.extend((14,)).hex
    assert miss(store, "s", 4, 2.0, prefix=after, attempt=1) is MissReason.ATTEMPT
    assert miss(store, "s", 4, 2.0, prefix=after, attempt=2) is MissReason.ATTEMPT
    assert store.extend("s", 4, 2.0, prefix=after, attempt=3).length_after == 5


def test_a_later_attempt_is_a_miss_where_nothing_proves_the_ids():
    store = Held()
    store.end(store.start("s", 0.0), 0.0, ids=IDS)

    assert miss(store, "s", 3, 1.0, attempt=2) is MissReason.ATTEMPT
    assert miss(store, "s", 3, 1.0, prefix="0" * 16, attempt=2) is MissReason.PREFIX
    assert store.extend("s", 3, 1.0, attempt=1).length_after == 4
