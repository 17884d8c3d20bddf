"""Who keeps its bytes: promises, preemption, and shards that share a device."""

from __future__ import annotations

import pytest
from tests.core.sessions.held import LAYERS, Held, miss

from meshnet.core.sessions.budget import ByteBudget
from meshnet.core.sessions.entry import EvictionReason
from meshnet.core.vocabulary import (
    MissReason,
    NoRoom,
    SessionId,
    TooLarge,
)


def test_a_promise_outlives_the_prefill_and_is_not_counted_twice():
    store = Held()
    store.take("s", 0.0, size=40)
    store.cache("s", 0.0)
    during = store.budget.bytes

    store.end(store.start("s", 1.0, tokens=50, attempt=2), 1.0)

    assert (during, store.budget.bytes) == (40, 50)


def test_a_shorter_refill_gives_bytes_back_at_once():
    store = Held()
    store.cache("s", 0.0, tokens=9)

    store.start("s", 1.0, tokens=4, attempt=2)

    assert store.budget.bytes == 4


def test_an_adr_0022_head_takes_bytes_of_an_idle_session_before_a_pinned_one():
    store = Held(sessions_max=8, bytes_max=10)
    store.cache("idle", 0.0, tokens=4)
    store.cache("pinned", 6.0, tokens=4)

    store.cache("old head", 6.1, tokens=5, wire=0)

    assert store.lengths(6.1) == {"pinned": 4, "old head": 5}


def test_an_adr_0022_head_takes_bytes_of_the_least_recently_used_pinned_or_not():
    store = Held(sessions_max=8, bytes_max=10)
    store.cache("older", 0.0, tokens=4)
    store.cache("newer", 0.1, tokens=4)

    store.cache("old head", 0.2, tokens=5, wire=0)

    assert store.lengths(0.2) == {"newer": 4, "old head": 5}
    assert store.evictions == {EvictionReason.BYTES: 1}


def test_an_adr_0022_head_takes_the_bytes_of_all_if_it_needs_them():
    store = Held(sessions_max=8, bytes_max=10)
    store.cache("idle", 0.0, tokens=4)
    running = store.start("running", 0.1, tokens=4)

    store.cache("old head", 0.2, tokens=10, wire=0)

    assert store.lengths(0.2) == {"old head": 10}
    assert not store.end(running, 0.3)


def test_bytes_come_first_from_unpinned_sessions_the_least_recently_used_first():
    store = Held(sessions_max=8, bytes_max=10)
    store.cache("a", 0.0, tokens=3)
    store.cache("b", 0.1, tokens=3)
    store.cache("c", 6.0, tokens=3)

    store.cache("d", 6.1, tokens=4)

    assert store.lengths(6.1) == {"b": 3, "c": 3, "d": 4}
    assert store.evictions == {EvictionReason.BYTES: 1}


def test_a_new_session_never_preempts_one_that_is_in_use():
    store = Held(sessions_max=8, bytes_max=10)
    store.cache("a", 0.0, tokens=7)

    with pytest.raises(NoRoom, match="7 of 10"):
        store.start("b", 1.0, tokens=4)

    assert store.lengths(1.0) == {"a": 7}


def test_an_old_session_that_grows_preempts_the_youngest():
    store = Held(sessions_max=8, bytes_max=9)
    for session in ("1-old", "2-middle", "3-young"):
        store.cache(session, 0.0)

    assert store.end(store.extend("1-old", 3, 1.0), 1.0)

    assert store.lengths(1.0) == {"1-old": 4, "2-middle": 3}
    assert store.evictions == {EvictionReason.PREEMPTED: 1}


def test_the_youngest_that_cannot_grow_gives_way_and_waits_for_room():
    store = Held(sessions_max=8, bytes_max=6)
    store.cache("1-old", 0.0)
    store.cache("3-young", 0.0)

    assert miss(store, "3-young", 3, 1.0) is MissReason.PREEMPTED
    assert store.lengths(1.0) == {"1-old": 3}
    assert store.evictions == {EvictionReason.PREEMPTED: 1}
    with pytest.raises(NoRoom):
        store.start("3-young", 2.0, tokens=4, attempt=2)
    store.release(SessionId("1-old"), 3.0)
    assert store.start("3-young", 3.0, tokens=4, attempt=2)


def test_seniority_is_the_order_of_ids_and_so_the_same_on_every_node():
    """Two sessions may reach two nodes in different orders; both must prefer the same one."""
    orders = (("1-old", "2-young"), ("2-young", "1-old"))
    for order in orders:
        store = Held(sessions_max=8, bytes_max=6)
        for session in order:
            store.cache(session, 0.0)

        store.extend("1-old", 3, 1.0)

        assert set(store.lengths(1.0)) == {"1-old"}


def test_seniority_is_age_and_not_the_time_of_last_use():
    store = Held(sessions_max=8, bytes_max=9)
    for session in ("1-old", "2-middle", "3-young"):
        store.cache(session, 0.0)
    store.end(store.start("1-old", 2.0, attempt=2), 2.0)

    store.extend("2-middle", 3, 3.0)

    assert set(store.lengths(3.0)) == {"1-old", "2-middle"}


def test_a_session_that_runs_no_step_is_preempted_before_a_younger_one_that_does():
    store = Held(sessions_max=8, bytes_max=9)
    for session in ("1-old", "2-middle", "3-young"):
        store.cache(session, 0.0)
    running = store.extend("3-young", 3, 0.0, tokens=0)

    store.extend("1-old", 3, 1.0)

    assert store.holds(running)
    assert set(store.lengths(1.0)) == {"1-old", "3-young"}


def test_the_oldest_progresses_even_if_all_younger_ones_run():
    store = Held(sessions_max=8, bytes_max=6)
    store.cache("old", 0.0)
    store.cache("young", 0.0)
    running = store.extend("young", 3, 0.0, tokens=0)

    assert store.extend("old", 3, 1.0)

    assert not store.end(running, 1.0)
    assert set(store.lengths(1.0)) == {"old"}


def test_room_that_does_not_suffice_is_not_made():
    """Whoever is refused has cost nobody anything."""
    store = Held(sessions_max=2, bytes_max=10)
    store.cache("pinned", 6.0, tokens=6)
    store.cache("idle", 0.0, tokens=3)

    with pytest.raises(NoRoom):
        store.start("big", 6.1, tokens=5)

    assert set(store.lengths(6.1)) == {"pinned", "idle"}


def test_who_leaves_for_a_place_leaves_its_bytes_too():
    store = Held(sessions_max=2, bytes_max=10)
    store.cache("a", 0.0, tokens=5)
    store.cache("b", 0.1, tokens=5)

    store.cache("c", 6.0, tokens=5)

    assert store.lengths(6.0) == {"b": 5, "c": 5}


def test_a_session_larger_than_the_bound_is_told_that_it_never_fits():
    store = Held(bytes_max=10)
    store.cache("s", 0.0, tokens=10)

    with pytest.raises(TooLarge, match="at most 10 bytes"):
        store.extend("s", 10, 1.0)
    with pytest.raises(TooLarge):
        store.start("t", 1.0, tokens=11, wire=0)
    with pytest.raises(TooLarge):
        store.take("t", 1.0, size=11)

    assert store.lengths(1.0) == {"s": 10}


def test_bytes_beyond_the_estimate_are_paid_by_the_next_that_grows():
    """Pit A68."""
    store = Held(sessions_max=8, bytes_max=8)
    lease = store.start("old", 0.0, tokens=3)
    store.cache("young", 0.0, tokens=3)
    assert store.commit(lease, state="fat", ids=(), state_bytes=7, now=0.0)
    assert store.budget.bytes == 10

    store.decode(
        SessionId("old"),
        layers=LAYERS,
        past_length=3,
        tokens=1,
        prefix=None,
        attempt=1,
        bytes_needed=8,
        now=1.0,
    )

    assert store.budget.bytes == 8


def test_shards_of_one_device_share_its_bytes_and_not_their_places():
    budget = ByteBudget(10)
    first, second = Held(1, budget=budget), Held(1, budget=budget)
    first.cache("s", 0.0, tokens=6)

    with pytest.raises(NoRoom):
        second.start("s", 1.0, tokens=6)
    second.cache("s", 5.0, tokens=6)

    assert (first.lengths(5.0), second.lengths(5.0)) == ({}, {"s": 6})
    assert first.evictions == {EvictionReason.BYTES: 1}


def test_the_ttl_of_one_shard_frees_bytes_for_another():
    budget = ByteBudget(10)
    first, second = Held(1, budget=budget), Held(1, budget=budget)
    first.cache("s", 0.0, tokens=6)

    second.cache("t", 601.0, tokens=6)

    assert first.evictions == {EvictionReason.TTL: 1}


def test_an_unloaded_shard_holds_nothing():
    budget = ByteBudget(10)
    first, second = Held(1, budget=budget), Held(1, budget=budget)
    first.cache("s", 0.0, tokens=10)

    first.close()

    assert first.sessions(0.0) == ()
    assert second.start("t", 0.0, tokens=10)


def test_a_budget_of_nothing_cannot_be_made():
    with pytest.raises(ValueError, match="bytes_max"):
        ByteBudget(0)
