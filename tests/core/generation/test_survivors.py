"""Who survived a loss, and what the others need: by what each hop says of the session."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.core.generation.talk import SESSION, route_of

from meshnet.core.generation.survivors import Salvage, Span, salvage
from meshnet.core.protocol.digest import PrefixDigest
from meshnet.core.vocabulary import HopLost, NodeId, Route, SessionDescription

IDS = (1, 2, 3, 4, 5)
CONFIRMED = PrefixDigest.of(IDS)
ROUTE = replace(
    route_of(4), truncate=True, replay=frozenset(NodeId(f"node{index}") for index in range(4))
)
A, B, C, D = ROUTE.hops


def holding(hop, length=5, *, prefix=None, attempt=1, replayable=None) -> SessionDescription:
    digest = PrefixDigest.of((*IDS, 6, 7)[:length]).hex if prefix is None else prefix
    kept = length if replayable is None else replayable
    return SessionDescription(SESSION, hop.layers, length, digest, attempt, 100, kept)


def saved(*found, route: Route = ROUTE, attempt=1, spoiled=()) -> Salvage | None:
    return salvage(route, found, confirmed=CONFIRMED, attempt=attempt, spoiled=spoiled)


def test_only_the_hop_that_lost_the_session_is_filled_by_the_one_before_it():
    found = (holding(A, 6), holding(B), None, holding(D))

    assert saved(*found) == Salvage((Span((C,), B),), held=6)


def test_neighbours_that_lost_it_are_filled_as_one():
    assert saved(holding(A), None, None, holding(D)) == Salvage((Span((B, C), A),), held=5)


def test_hops_that_do_not_follow_each_other_are_filled_apart():
    found = (holding(A), None, holding(C), HopLost("silent"))

    assert saved(*found) == Salvage((Span((B,), A), Span((D,), C)), held=5)


def test_ids_enter_a_span_that_begins_at_the_first_layer():
    assert saved(None, holding(B), holding(C), holding(D)) == Salvage((Span((A,), None),), held=5)


def test_nothing_is_filled_where_all_hops_hold_it():
    assert saved(*map(holding, ROUTE.hops)) == Salvage((), held=5)


def test_a_hop_that_kept_no_activations_is_filled_with_the_one_behind_it():
    found = (holding(A), holding(B, replayable=0), None, holding(D))

    assert saved(*found) == Salvage((Span((B, C), A),), held=5)


def test_where_nobody_kept_activations_ids_enter_and_the_hops_behind_survive():
    found = (holding(A, replayable=0), holding(B, replayable=4), None, holding(D))

    assert saved(*found) == Salvage((Span((A, B, C), None),), held=5)


WRONG = {
    "it holds fewer positions": holding(B, 4),
    "it holds other ids": holding(B, prefix="0" * 16),
    "it is of a later attempt": holding(B, attempt=2),
    "it never heard of attempts": holding(B, attempt=None),
    "it is of other layers": replace(holding(B), layers=A.layers),
    "it is longer, and nobody knows of which ids": replace(holding(B, 6), prefix=None),
}


@pytest.mark.parametrize("state", WRONG.values(), ids=WRONG)
def test_a_hop_does_not_survive_if(state):
    assert saved(holding(A), state, holding(C), holding(D)) == Salvage((Span((B,), A),), held=5)


def test_a_longer_session_survives_only_where_all_hops_can_shorten_theirs():
    route = replace(ROUTE, truncate=False)
    found = (holding(A, 6), None, holding(C), holding(D))

    assert saved(*found, route=route) == Salvage((Span((A, B), None),), held=5)
    assert saved(*found) == Salvage((Span((B,), A),), held=6)


def test_a_hop_that_could_not_go_on_with_what_it_held_is_filled():
    found = (holding(A), holding(B), holding(C), holding(D))

    assert saved(*found, spoiled={B}) == Salvage((Span((B,), A),), held=5)


def test_an_older_node_is_filled_like_one_that_lost_it():
    """It would refuse an attempt that rises without a prefill."""
    route = replace(ROUTE, replay=ROUTE.replay - {NodeId("node1")})
    found = (holding(A), holding(B), holding(C), holding(D))

    assert saved(*found, route=route) == Salvage((Span((B,), A),), held=5)


@pytest.mark.parametrize("found", [(), (None,) * 4, (HopLost("silent"),) * 4])
def test_where_nothing_survived_there_is_nothing_to_salvage(found):
    assert saved(*found) is None
