"""Every rule of the session store by one example, under a fake clock."""

from __future__ import annotations

import pytest

from meshnet.core.protocol.digest import PrefixDigest
from meshnet.core.sessions.budget import ByteBudget
from meshnet.core.sessions.entry import Eviction, EvictionReason, Lease
from meshnet.core.sessions.store import SessionCacheStore
from meshnet.core.vocabulary import (
    KVCacheMiss,
    LayerRange,
    MissReason,
    NoRoom,
    SessionId,
    StaleAttempt,
    TooLarge,
)

LAYERS = LayerRange(2, 6)
OTHER_LAYERS = LayerRange(3, 6)
IDS = (11, 12, 13)


class Held(SessionCacheStore[str]):
    """A store whose questions are short; a token takes a byte, a state is a string."""

    def __init__(
        self, sessions_max: int = 2, bytes_max: int = 1000, budget: ByteBudget | None = None
    ) -> None:
        self.budget = ByteBudget(bytes_max) if budget is None else budget
        super().__init__(budget=self.budget, sessions_max=sessions_max)

    def start(
        self,
        session: str,
        now: float,
        *,
        tokens: int = 3,
        attempt: int | None = 1,
        wire: int = 1,
        layers: LayerRange = LAYERS,
    ) -> Lease[str]:
        return self.prefill(
            SessionId(session),
            layers=layers,
            tokens=tokens,
            attempt=attempt,
            wire=wire,
            bytes_needed=tokens,
            now=now,
        )

    def extend(
        self,
        session: str,
        past_length: int,
        now: float,
        *,
        tokens: int = 1,
        prefix: str | None = None,
        attempt: int | None = 1,
        layers: LayerRange = LAYERS,
    ) -> Lease[str]:
        return self.decode(
            SessionId(session),
            layers=layers,
            past_length=past_length,
            tokens=tokens,
            prefix=prefix,
            attempt=attempt,
            bytes_needed=past_length + tokens,
            now=now,
        )

    def end(self, lease: Lease[str], now: float, *, ids: tuple[int, ...] = ()) -> bool:
        size = lease.length_after
        return self.commit(lease, state=f"{size} long", ids=ids, state_bytes=size, now=now)

    def cache(self, session: str, now: float, *, tokens: int = 3, wire: int = 1) -> None:
        assert self.end(self.start(session, now, tokens=tokens, wire=wire), now)

    def take(self, session: str, now: float, *, size: int = 1, attempt: int | None = 1) -> None:
        self.reserve(SessionId(session), layers=LAYERS, bytes_needed=size, attempt=attempt, now=now)

    def lengths(self, now: float) -> dict[str, int]:
        self.check_integrity()
        return {held.session: held.length for held in self.sessions(now)}


def miss(store: Held, *args: object, **fields: object) -> MissReason:
    with pytest.raises(KVCacheMiss) as caught:
        store.extend(*args, **fields)  # type: ignore[arg-type]
    return caught.value.reason


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


def test_a_budget_of_nothing_cannot_be_made():
    with pytest.raises(ValueError, match="bytes_max"):
        ByteBudget(0)
