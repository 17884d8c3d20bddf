"""What sessions can do without goes before any session goes (ADR-0041)."""

from __future__ import annotations

import pytest
from tests.core.sessions.held import IDS, LAYERS

from meshnet.core.protocol.digest import PrefixDigest
from meshnet.core.sessions.budget import ByteBudget
from meshnet.core.sessions.store import SessionCacheStore
from meshnet.core.vocabulary import KVCacheMiss, MissReason, NoRoom, SessionId, TooLarge


class Keeping(SessionCacheStore[list[str]]):
    """A store in which a position takes 10 bytes, 4 of which it can do without."""

    def __init__(self, bytes_max: int) -> None:
        self.budget = ByteBudget(bytes_max)
        super().__init__(
            budget=self.budget, sessions_max=8, drop_spare=lambda state: state.append("dropped")
        )

    def take(self, session: str, positions: int, now: float = 0.0) -> None:
        self.reserve(
            SessionId(session),
            layers=LAYERS,
            bytes_needed=10 * positions,
            spare_bytes=4 * positions,
            attempt=1,
            now=now,
        )
        self.check_integrity()

    def cache(self, session: str, positions: int = 3, now: float = 0.0) -> list[str]:
        lease = self.prefill(
            SessionId(session),
            layers=LAYERS,
            tokens=positions,
            attempt=1,
            wire=1,
            bytes_needed=10 * positions,
            spare_bytes=4 * positions,
            now=now,
        )
        spare = 4 * positions if lease.keeps else 0
        state: list[str] = []
        assert self.commit(
            lease,
            state=state,
            ids=range(positions),
            state_bytes=6 * positions + spare,
            spare_bytes=spare,
            now=now,
        )
        self.check_integrity()
        return state

    def kept(self, session: str) -> int:
        found = self.describe(SessionId(session), 0.0)
        assert found is not None
        return found.replayable


def test_what_a_session_can_do_without_counts_like_its_other_bytes():
    store = Keeping(1000)
    store.cache("s", 3)

    assert store.budget.bytes == 30
    assert store.kept("s") == 3


def test_it_goes_before_any_session_goes():
    store = Keeping(60)
    state = store.cache("older", 3)

    store.cache("newer", 4, now=10.0)

    assert {each.session for each in store.sessions(10.0)} == {"older", "newer"}
    assert state == ["dropped"]
    assert (store.kept("older"), store.kept("newer")) == (0, 4)
    assert store.budget.bytes == 18 + 40


def test_the_least_wanted_session_gives_it_up_first():
    store = Keeping(100)
    store.cache("older", 3, now=0.0)
    store.cache("newer", 3, now=1.0)

    store.cache("third", 5, now=2.0)

    assert (store.kept("older"), store.kept("newer"), store.kept("third")) == (0, 3, 5)


def test_a_session_does_without_rather_than_let_another_go():
    store = Keeping(36)
    store.cache("older", 3)

    store.cache("newer", 3, now=10.0)

    assert {each.session for each in store.sessions(10.0)} == {"older", "newer"}
    assert store.kept("newer") == 0
    assert store.budget.bytes == 36


def test_a_session_that_fits_only_without_it_is_served_without_it():
    store = Keeping(20)

    store.cache("s", 3)

    assert store.kept("s") == 0
    assert store.budget.bytes == 18


def test_what_does_not_fit_without_it_either_never_fits():
    store = Keeping(17)

    with pytest.raises(TooLarge):
        store.take("s", 3)


def test_a_promise_is_shortened_before_it_keeps_somebody_out():
    store = Keeping(50)
    store.take("first", 4)

    store.take("second", 2)

    assert store.budget.bytes == 24 + 20
    store.cache("first", 4)
    assert store.kept("first") == 0


def test_a_session_that_gave_it_up_never_keeps_anything_again():
    """There is a gap at its beginning."""
    store = Keeping(60)
    store.cache("older", 3)
    store.cache("newer", 4, now=10.0)
    store.release(SessionId("newer"), 11.0)

    lease = store.decode(
        SessionId("older"),
        layers=LAYERS,
        past_length=3,
        tokens=1,
        prefix=None,
        attempt=1,
        bytes_needed=40,
        spare_bytes=16,
        now=12.0,
    )

    assert not lease.keeps
    assert store.budget.bytes == 24


def test_a_session_of_which_a_step_runs_keeps_what_it_has():
    store = Keeping(60)
    state = store.cache("older", 3)
    store.decode(
        SessionId("older"),
        layers=LAYERS,
        past_length=3,
        tokens=1,
        prefix=None,
        attempt=1,
        bytes_needed=40,
        spare_bytes=16,
        now=1.0,
    )

    with pytest.raises(NoRoom):
        store.take("newer", 4, now=1.0)

    assert state == []


def test_what_is_refused_takes_nothing_from_anybody():
    store = Keeping(60)
    state = store.cache("older", 3)

    with pytest.raises(NoRoom):
        store.take("newer", 8, now=1.0)

    assert state == []
    assert store.kept("older") == 3


DIGEST = PrefixDigest()


def replay(store: Keeping, past: int, *ids: int, prefix: str | None = None, attempt=1):
    return store.replay(
        SessionId("s"),
        layers=LAYERS,
        past_length=past,
        ids=ids,
        prefix=PrefixDigest.of(range(past)).hex if prefix is None else prefix,
        attempt=attempt,
        now=1.0,
    )


@pytest.fixture
def holding() -> Keeping:
    store = Keeping(1000)
    store.cache("s", 3)
    return store


@pytest.mark.parametrize(("past", "ids"), [(0, (0, 1, 2)), (0, (0,)), (1, (1, 2))])
def test_what_was_kept_of_the_sessions_own_ids_is_told(holding, past, ids):
    assert replay(holding, past, *ids, attempt=2) == []
    (described,) = holding.sessions(1.0)
    assert (described.length, described.attempt) == (3, 1)


@pytest.mark.parametrize(
    ("past", "ids", "reason"),
    [
        (0, (0, 1, 9), MissReason.PREFIX),
        (0, (0, 1, 2, 3), MissReason.PAST_LENGTH),
        (4, (1,), MissReason.PAST_LENGTH),
    ],
)
def test_other_ids_or_more_of_them_are_a_miss(holding, past, ids, reason):
    with pytest.raises(KVCacheMiss) as caught:
        replay(holding, past, *ids)
    assert caught.value.reason is reason


def test_ids_that_follow_others_are_a_miss(holding):
    with pytest.raises(KVCacheMiss) as caught:
        replay(holding, 1, 1, 2, prefix=PrefixDigest.of(IDS[:1]).hex)
    assert caught.value.reason is MissReason.PREFIX


def test_an_older_attempt_is_told_nothing(holding):
    with pytest.raises(KVCacheMiss) as caught:
        replay(holding, 0, 0, attempt=0)
    assert caught.value.reason is MissReason.ATTEMPT


def test_a_step_that_runs_behind_them_holds_nothing_up_but_one_that_shortens_does(holding):
    def decode(past: int) -> None:
        holding.decode(
            SessionId("s"),
            layers=LAYERS,
            past_length=past,
            tokens=1,
            prefix=PrefixDigest.of(range(past)).hex,
            attempt=1,
            bytes_needed=10,
            now=1.0,
            truncate=True,
        )

    decode(2)
    assert replay(holding, 0, 0, 1) == []
    with pytest.raises(KVCacheMiss) as caught:
        replay(holding, 0, 0, 1, 2)
    assert caught.value.reason is MissReason.BUSY
