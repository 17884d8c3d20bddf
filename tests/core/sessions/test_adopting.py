"""A session that ended and goes on as another, each rule by one example."""

from __future__ import annotations

import pytest
from tests.core.sessions.held import IDS, LAYERS, OTHER_LAYERS, Held, miss
from tests.core.sessions.test_truncating import prefix

from meshnet.core.sessions.entry import EvictionReason
from meshnet.core.vocabulary import MissReason, NoRoom, SessionId, StaleAttempt


def lingering(name: str = "old", **bounds: int) -> Held:
    store = Held(**bounds)
    store.end(store.start(name, 0.0), 0.0, ids=IDS)
    assert store.release(SessionId(name), 0.0, linger=True)
    return store


def adopt(store: Held, new: str, old: str, now: float = 1.0, past: int = 3, **fields: object):
    fields = {"prefix": prefix(*IDS[:past]), "tokens": 2} | fields
    return store.extend(new, past, now, adopt=old, **fields)  # type: ignore[arg-type]


def test_a_session_goes_on_under_the_name_of_its_heir_and_under_no_other():
    store = lingering()

    lease = adopt(store, "new", "old", attempt=7)

    assert (lease.session, lease.length_before, lease.length_after) == ("new", 3, 5)
    assert store.end(lease, 1.0, ids=(14, 15))
    assert store.lengths(1.0) == {"new": 5}
    assert store.extend("new", 5, 2.0, attempt=7, prefix=prefix(*IDS, 14, 15))
    assert miss(store, "old", 3, 2.0) is MissReason.UNKNOWN_SESSION


def test_a_session_is_adopted_once():
    store = lingering()
    adopt(store, "new", "old")

    assert miss(store, "other", 3, 1.0, adopt="old", prefix=prefix(*IDS)) is (
        MissReason.UNKNOWN_SESSION
    )
    assert miss(store, "new", 3, 1.0, adopt="old", prefix=prefix(*IDS)) is (
        MissReason.UNKNOWN_SESSION
    )


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"prefix": prefix(11, 12, 99)}, MissReason.PREFIX),
        ({"past_length": 2, "prefix": prefix(*IDS[:2])}, MissReason.PAST_LENGTH),
        ({"past_length": 4, "prefix": prefix(*IDS, 14)}, MissReason.PAST_LENGTH),
        ({"layers": OTHER_LAYERS}, MissReason.START_LAYER),
    ],
)
@pytest.mark.parametrize("reserved", [False, True])
def test_what_is_not_what_the_head_means_stays_what_it_is(fields, reason, reserved):
    """Pit A63. Equal lengths or names are not equal ids."""
    store = lingering()
    if reserved:
        store.take("new", 0.5, adopt="old", attempt=None)

    asked = {"past_length": 3, "prefix": prefix(*IDS)} | fields
    assert miss(store, "new", asked.pop("past_length"), 1.0, adopt="old", **asked) is reason

    store.release(SessionId("new"), 1.0)
    assert store.lengths(1.0) == {"old": 3}
    assert adopt(store, "new", "old").length_before == 3


def test_a_session_is_adopted_up_to_where_its_ids_are_those_meant():
    store = lingering()

    lease = adopt(store, "new", "old", past=2, truncate=True)

    assert (lease.length_before, lease.truncate) == (2, True)


def test_a_session_with_a_running_step_is_not_adopted():
    store = Held()
    store.end(store.start("old", 0.0), 0.0, ids=IDS)
    store.extend("old", 3, 0.0)

    assert miss(store, "new", 3, 0.0, adopt="old", prefix=prefix(*IDS)) is MissReason.BUSY


def test_a_late_step_does_not_adopt_what_a_prefill_has_replaced():
    store = lingering()
    store.end(store.start("new", 1.0, attempt=2), 1.0, ids=(1, 2, 3))

    assert miss(store, "new", 3, 2.0, adopt="old", attempt=1, prefix=prefix(*IDS)) is (
        MissReason.UNKNOWN_SESSION
    )
    assert store.lengths(2.0) == {"new": 3, "old": 3}


def test_a_reservation_for_an_heir_takes_no_second_place_and_no_second_bytes():
    store = lingering(sessions_max=1, bytes_max=10)

    store.take("new", 1.0, size=10, adopt="old", attempt=None)

    assert store.budget.bytes == 10
    assert adopt(store, "new", "old").length_before == 3
    assert store.budget.bytes == 10


def test_a_reservation_that_is_refused_leaves_the_session_as_it_was():
    store = lingering(bytes_max=10)
    store.end(store.start("busy", 0.0, tokens=5), 0.0)

    with pytest.raises(NoRoom):
        store.take("new", 1.0, size=6, adopt="old", attempt=None)

    assert store.lengths(1.0) == {"busy": 5, "old": 3}


def test_a_reservation_given_back_leaves_the_session_as_it_was():
    store = lingering()
    store.take("new", 1.0, size=500, adopt="old", attempt=None)

    assert store.release(SessionId("new"), 2.0)

    assert store.lengths(2.0) == {"old": 3}
    assert store.budget.bytes == 3


def test_no_step_runs_on_a_session_that_was_only_reserved_for():
    store = lingering()
    store.take("new", 1.0, adopt="old", attempt=None)

    assert miss(store, "new", 3, 1.0) is MissReason.UNKNOWN_SESSION
    assert miss(store, "old", 3, 1.0) is MissReason.UNKNOWN_SESSION


def test_a_prefill_of_the_heir_uses_the_place_and_forgets_the_session():
    store = lingering(sessions_max=1)
    store.take("new", 1.0, adopt="old", attempt=None)

    assert store.end(store.start("new", 1.0, tokens=4), 1.0)

    assert store.lengths(1.0) == {"new": 4}


def test_a_session_released_while_it_is_lent_is_forgotten():
    store = lingering()
    store.take("new", 1.0, adopt="old", attempt=None)

    assert store.release(SessionId("old"), 1.0)
    assert miss(store, "new", 3, 1.0, adopt="old", prefix=prefix(*IDS)) is (
        MissReason.UNKNOWN_SESSION
    )
    assert store.release(SessionId("new"), 1.0)
    assert store.lengths(1.0) == {}


def test_an_heir_reserved_for_without_adoption_joins_its_place_with_the_session():
    store = lingering(sessions_max=2, bytes_max=12)
    store.take("new", 1.0, size=8, attempt=None)

    adopt(store, "new", "old")

    assert store.budget.bytes == 8
    store.cache("third", 1.0)


def test_a_lingering_session_gives_way_at_once_and_before_any_other():
    store = lingering(sessions_max=2)
    store.cache("idle", -10.0)

    store.take("third", 0.1)

    assert set(store.lengths(0.1)) == {"idle", "third"}
    assert store.evictions == {EvictionReason.LRU: 1}


def test_a_place_without_positions_does_not_linger():
    store = Held()
    store.take("s", 0.0)

    store.release(SessionId("s"), 0.0, linger=True)

    assert store.lengths(0.0) == {}


@pytest.mark.parametrize("ending", ["given back", "adopted", "forgotten"])
def test_nothing_begins_under_the_name_of_a_session_that_is_lent(ending):
    """Pit A63. A late copy of an old step or reservation must not take a name that comes back."""
    store = lingering(sessions_max=4)
    store.cache("third", 0.0)
    store.take("new", 1.0, adopt="old", attempt=None)

    for attempt in (1, 2, None):
        with pytest.raises(StaleAttempt):
            store.start("old", 1.0, attempt=attempt)
        with pytest.raises(StaleAttempt):
            store.take("old", 1.0, attempt=attempt)
    with pytest.raises(StaleAttempt):
        store.take("old", 1.0, adopt="third", attempt=None)
    assert miss(store, "old", 3, 1.0, adopt="third", prefix=prefix(*IDS)) is (
        MissReason.UNKNOWN_SESSION
    )

    assert store.lengths(1.0) == {"new": 3, "third": 3}
    if ending == "given back":
        assert store.release(SessionId("new"), 1.0)
    elif ending == "adopted":
        adopt(store, "new", "old")
    else:
        assert store.release(SessionId("old"), 1.0)
    names = {"old", "third"} if ending == "given back" else {"new", "third"}
    assert set(store.lengths(1.0)) == names


def test_who_asks_for_a_session_that_ended_comes_late():
    """A keep-alive or a copy of a step may be overtaken by the end, and must pin nothing again."""
    store = lingering(sessions_max=1, bytes_max=10)

    with pytest.raises(StaleAttempt):
        store.take("old", 1.0, size=10)
    assert miss(store, "old", 3, 1.0) is MissReason.UNKNOWN_SESSION
    assert miss(store, "old", 2, 1.0, truncate=True, prefix=prefix(*IDS[:2])) is (
        MissReason.UNKNOWN_SESSION
    )

    assert store.budget.bytes == 3
    assert adopt(store, "new", "old").length_before == 3


def test_a_session_that_ended_starts_anew_with_a_later_attempt_only():
    store = lingering(sessions_max=1)

    with pytest.raises(StaleAttempt):
        store.start("old", 1.0, attempt=1)
    assert store.lengths(1.0) == {"old": 3}

    assert store.end(store.start("old", 1.0, attempt=2, tokens=2), 1.0)
    with pytest.raises(NoRoom):
        store.take("third", 1.1)
    assert store.extend("old", 2, 1.0, attempt=2)


def test_a_reservation_of_other_layers_leaves_those_of_what_is_lent():
    """Its positions are in the caches of the layers that made them, whatever is asked for."""
    store = lingering()
    store.take("new", 1.0, adopt="old", attempt=None)

    store.take("new", 1.0, attempt=None, layers=OTHER_LAYERS)

    assert miss(store, "new", 3, 1.0, adopt="old", prefix=prefix(*IDS), layers=OTHER_LAYERS) is (
        MissReason.START_LAYER
    )
    assert adopt(store, "new", "old").layers == LAYERS
