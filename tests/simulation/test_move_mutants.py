"""The checkers see sessions that move wrongly, and no wrong where there is none."""

from __future__ import annotations

import asyncio

import pytest

from meshnet.simulation.draft_mutants import LATE
from meshnet.simulation.faults import CALM, STORM
from meshnet.simulation.move_mutants import MOVE_MUTANTS, draining_plan
from meshnet.simulation.world import World, simulate_plan

SEEDS = range(40)


@pytest.mark.parametrize("mutant", MOVE_MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_seen_within_a_bounded_number_of_seeds(mutant):
    plans = ((seed, draining_plan(seed, mutant.faults)) for seed in SEEDS)

    assert any(
        simulate_plan(seed, plan, mutant.faults, mutant.parts).complaints for seed, plan in plans
    )


class Moves:
    """Counts the moves of a cluster's heads when its chats are over."""

    def __init__(self) -> None:
        self.count = 0

    async def __call__(self, world: World) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.count += sum(each.head.counters.moves for each in world.heads)


@pytest.mark.parametrize("faults", [LATE, CALM, STORM], ids=["late", "calm", "storm"])
def test_sessions_move_from_draining_nodes_and_every_promise_is_kept(faults):
    moves = Moves()

    complaints = [
        line
        for seed in range(8)
        for line in simulate_plan(seed, draining_plan(seed, faults), faults, watch=moves).complaints
    ]

    assert complaints == []
    assert moves.count > 0
