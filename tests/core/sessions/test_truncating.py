"""Shortening a session before a step, each rule by one example."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.sessions.held import IDS, Held, miss

from meshnet.core.protocol.digest import PrefixDigest
from meshnet.core.sessions.known_ids import KnownIds
from meshnet.core.vocabulary import MissReason, SessionId

GUESSED = (14, 15, 16)


def prefix(*ids: int) -> str:
    return PrefixDigest.of(ids).hex


def with_guesses() -> Held:
    """A store whose session holds three ids and three more that were guessed."""
    store = Held()
    store.end(store.start("s", 0.0), 0.0, ids=IDS)
    step = store.extend("s", 3, 0.0, tokens=3, prefix=prefix(*IDS))
    store.end(step, 0.0, ids=GUESSED)
    return store


def test_a_longer_session_is_shortened_to_the_ids_that_the_head_means():
    store = with_guesses()

    lease = store.extend("s", 4, 1.0, prefix=prefix(*IDS, 14), truncate=True)

    assert (lease.length_before, lease.length_after, lease.truncate) == (4, 5, True)
    assert store.end(lease, 1.0, ids=(20,))
    found = store.describe(SessionId("s"), 1.0)
    assert found is not None
    assert (found.length, found.prefix) == (5, prefix(*IDS, 14, 20))


def test_a_session_of_the_length_asked_for_is_extended_as_it_is():
    lease = with_guesses().extend("s", 6, 1.0, prefix=prefix(*IDS, *GUESSED), truncate=True)

    assert not lease.truncate


def test_a_rejected_guess_of_equal_length_is_not_what_replaced_it():
    """A late duplicate of the step with the guesses leaves as many positions as the right ones."""
    store = with_guesses()

    replaced = prefix(*IDS, 14, 15, 99)
    assert miss(store, "s", 6, 1.0, prefix=replaced, truncate=True) is MissReason.PREFIX


def test_a_shorter_prefix_of_other_ids_is_a_miss():
    store = with_guesses()

    assert miss(store, "s", 4, 1.0, prefix=prefix(*IDS, 99), truncate=True) is MissReason.PREFIX


@pytest.mark.parametrize(("truncate", "proof"), [(False, prefix(*IDS)), (True, None)])
def test_nothing_is_shortened_without_leave_and_proof(truncate: bool, proof: str | None):
    store = with_guesses()

    reason = miss(store, "s", 3, 1.0, prefix=proof, truncate=truncate)

    assert reason is MissReason.PAST_LENGTH


@pytest.mark.parametrize("past_length", [0, 7])
def test_a_session_is_never_shortened_to_nothing_nor_made_longer(past_length: int):
    store = with_guesses()

    reason = miss(store, "s", past_length, 1.0, prefix=prefix(), truncate=True)

    assert reason is MissReason.PAST_LENGTH


def test_a_session_whose_ids_nobody_told_cannot_be_shortened():
    store = Held()
    store.cache("s", 0.0, tokens=6)

    assert miss(store, "s", 3, 1.0, prefix=prefix(*IDS), truncate=True) is MissReason.PREFIX


def test_a_shortening_step_that_never_ran_leaves_the_session_as_it_was():
    store = with_guesses()

    assert store.withdraw(store.extend("s", 4, 1.0, prefix=prefix(*IDS, 14), truncate=True))

    assert store.lengths(1.0) == {"s": 6}
    assert store.extend("s", 6, 2.0, prefix=prefix(*IDS, *GUESSED))


def test_a_shortening_step_that_failed_midway_costs_the_session():
    store = with_guesses()

    assert store.abandon(store.extend("s", 4, 1.0, prefix=prefix(*IDS, 14), truncate=True))

    assert store.lengths(1.0) == {}


@settings(derandomize=True, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.lists(st.integers(0, 2**31 - 1), max_size=6))))
def test_the_digest_of_every_prefix_is_that_of_its_ids(changes):
    """Cuts near the end start from a kept digest, others from none; neither may show."""
    known, expected = KnownIds(), []
    for share, ids in changes:
        length = int(share * len(expected))
        known.replace_from(known.prefix(length), ids)
        expected = expected[:length] + ids

        assert known.digest == PrefixDigest.of(expected)
        for length in range(len(expected) + 1):
            assert known.prefix(length) == PrefixDigest.of(expected[:length])
