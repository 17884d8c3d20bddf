"""Meshes whose nodes come and go keep every promise, and the report adds up what that costs."""

import pytest

from meshnet.simulation.campaign import CHURN, campaign, churn_costs, one_seed
from meshnet.simulation.churn import SPACINGS, simulate_churn
from meshnet.simulation.history import Costs, History
from meshnet.simulation.mutants import EmitsTwiceAfterRefill
from meshnet.simulation.salvage_mutants import KeepsRowsOfWrongGuesses
from meshnet.simulation.world import Parts

SEEDS = 30


def test_whoever_dies_drains_or_joins_every_chat_ends_with_the_oracles_tokens():
    result = campaign(range(SEEDS), CHURN)

    assert result.first_complaint is None
    assert result.passed
    assert tuple(row.spacing for row in result.churn) == SPACINGS
    assert all(row.losses and 0.0 < row.availability <= 1.0 for row in result.churn)


def test_one_seed_of_churn_is_one_history():
    assert one_seed(3, CHURN) == one_seed(3, CHURN)


def test_a_session_of_which_positions_were_sent_again_was_touched_then():
    """The audit once took such a one for idle; in this seed another is evicted soon after."""
    assert one_seed(783, CHURN).complaints == ()


@pytest.mark.parametrize(
    "wrong",
    [
        Parts(generation=EmitsTwiceAfterRefill),
        Parts(leaving=KeepsRowsOfWrongGuesses),
    ],
    ids=["refill", "partial refill"],
)
def test_what_is_wrong_after_a_loss_shows_in_churn(wrong):
    """Else its chats would be too short or too few to be hit."""
    assert any(simulate_churn(seed, parts=wrong).wrong for seed in range(SEEDS))


def history(spacing: float, gaps_s: tuple[float, ...], **given: int) -> History:
    costs = Costs(spacing, given.pop("looks"), given.pop("routes"), gaps_s)
    counted = {"generations": 1, "refills": 1, "events": 1} | given
    return History(
        seed=0, virtual_s=1.0, wrong=(), unfinished=(), violations=(), costs=costs, **counted
    )  # type: ignore[arg-type]


def test_costs_are_told_apart_by_how_far_apart_events_were():
    rows = churn_costs(
        [
            history(1.0, (1.0, 9.0), looks=100, routes=60, tokens=30, refilled_positions=20),
            history(1.0, (2.0,), looks=100, routes=90, tokens=70, refilled_positions=10),
            history(4.0, (), looks=10, routes=10, tokens=0, refilled_positions=0),
            history(0.0, (), looks=0, routes=0, tokens=500, refilled_positions=7),
        ]
    )

    assert [(row.spacing, row.seeds, row.availability) for row in rows] == [
        (1.0, 2, 0.75),
        (4.0, 1, 1.0),
    ]
    assert [row.refilled_per_thousand for row in rows] == [300.0, 0.0]
    assert [(row.losses, row.gap_median_s, row.gap_max_s) for row in rows] == [
        (3, 2.0, 9.0),
        (0, 0.0, 0.0),
    ]
