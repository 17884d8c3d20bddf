"""The checkers see: each wrong version of the real code is caught, and the real code is not."""

from itertools import islice

import pytest

from meshnet.core.sessions.budget import ByteBudget
from meshnet.core.sessions.store import SessionCacheStore
from meshnet.core.vocabulary import LayerRange, SessionId
from meshnet.simulation.history import History
from meshnet.simulation.mutants import (
    DOUBLING,
    DYING_HEADS,
    MUTANTS,
    STALLING,
    TEARING,
    EvictsMostRecentlyUsed,
)
from meshnet.simulation.world import simulate

SEEDS = range(150)
LAYERS = LayerRange(0, 2)

WRONG_TOKENS = {
    "keep after a torn step",
    "check-then-act",
    "`!=` weakened",
    "old middle node trusted",
    "tail history lost on refill",
    "running generator",
    "rows swapped in a batch",
    "token emitted twice after a refill",
    "an older activation handed on",
}
"""Mutants that would show a user wrong text; the others break another promise."""


def first_complaint(mutant, seeds=SEEDS) -> History | None:
    histories = (simulate(seed, mutant.faults, mutant.parts) for seed in seeds)
    wanted = (each for each in histories if complaints_of_its_kind(mutant, each))
    return next(islice(wanted, 1), None)


def complaints_of_its_kind(mutant, history: History) -> tuple[str, ...]:
    return history.wrong if mutant.name in WRONG_TOKENS else history.complaints


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_caught_within_a_bounded_number_of_seeds(mutant):
    assert first_complaint(mutant) is not None


@pytest.mark.parametrize("faults", [DOUBLING, TEARING, DYING_HEADS, STALLING])
def test_the_real_code_keeps_every_promise_under_the_mutants_faults(faults):
    """Else a mutant could be caught for what the faults alone do."""
    complaints = [line for seed in range(20) for line in simulate(seed, faults).complaints]

    assert complaints == []


def survivor_of(store_class: type[SessionCacheStore[str]]) -> set[str]:
    store = store_class(budget=ByteBudget(1000), sessions_max=2, pin_s=5.0)
    for session, now in (("older", 0.0), ("newer", 10.0), ("third", 100.0)):
        store.prefill(
            SessionId(session), layers=LAYERS, tokens=1, attempt=1, wire=1, bytes_needed=1, now=now
        )
        lease = store._shelf.entries[SessionId(session)].lease
        assert lease is not None
        store.commit(lease, state="cache", ids=(1,), state_bytes=1, now=now)
    return {entry.session for entry in store.sessions(100.0)}


def test_the_least_recently_used_session_makes_room_and_the_mutant_gets_it_wrong():
    assert survivor_of(SessionCacheStore) == {"newer", "third"}
    assert survivor_of(EvictsMostRecentlyUsed) == {"older", "third"}
