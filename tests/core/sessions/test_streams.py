"""An open stream keeps its session's place; one that closed leaves the session to whoever asks."""

from __future__ import annotations

import pytest
from tests.core.sessions.held import Held

from meshnet.core.sessions.budget import ByteBudget
from meshnet.core.sessions.entry import Eviction, EvictionReason
from meshnet.core.vocabulary import NoRoom, SessionId

S = SessionId("s")


def test_a_session_with_an_open_stream_keeps_its_place():
    store = Held(sessions_max=1)
    store.budget.streams.pin(S)
    store.cache("s", 0.0)

    with pytest.raises(NoRoom):
        store.take("t", 500.0)


def test_a_stream_that_closed_leaves_its_session_unpinned_not_deleted():
    store = Held(sessions_max=1)
    store.budget.streams.pin(S)
    store.cache("s", 0.0)

    store.budget.streams.unpin(S)

    assert store.lengths(500.0) == {"s": 3}
    store.take("t", 500.0)
    assert store.take_evictions() == [Eviction(S, EvictionReason.LRU)]


def test_of_two_streams_the_one_that_is_left_keeps_the_place():
    """A head opens a new stream before the node has noticed that the old one is broken."""
    store = Held(sessions_max=1)
    store.cache("s", 0.0)
    store.budget.streams.pin(S)
    store.budget.streams.pin(S)

    store.budget.streams.unpin(S)

    with pytest.raises(NoRoom):
        store.take("t", 500.0)


def test_a_stream_keeps_the_bytes_of_its_session_from_younger_ones():
    store = Held(bytes_max=4)
    store.budget.streams.pin(S)
    store.cache("s", 0.0)

    with pytest.raises(NoRoom):
        store.take("t", 500.0, size=2)


def test_a_stream_keeps_nothing_from_an_older_session():
    store = Held(bytes_max=4)
    store.budget.streams.pin(S)
    store.cache("a", 0.0, tokens=2)
    store.cache("s", 0.0, tokens=2)

    assert store.end(store.extend("a", 2, 500.0), 500.0)

    assert store.take_evictions() == [Eviction(S, EvictionReason.PREEMPTED)]


def test_an_open_stream_does_not_outlive_the_ttl():
    store = Held()
    store.budget.streams.pin(S)
    store.cache("s", 0.0)

    assert store.lengths(600.1) == {}


def test_all_shards_of_a_device_know_of_a_stream():
    budget = ByteBudget(1000)
    first, second = Held(1, budget=budget), Held(1, budget=budget)
    budget.streams.pin(S)
    first.cache("s", 0.0)
    second.cache("s", 0.0)

    for store in (first, second):
        with pytest.raises(NoRoom):
            store.take("t", 500.0)


def test_what_was_never_pinned_cannot_be_unpinned():
    with pytest.raises(AssertionError):
        ByteBudget(1).streams.unpin(S)
