"""The checkers see states that are not put back, and no wrong where there is none."""

import pytest

from meshnet.simulation.draft_mutants import LATE
from meshnet.simulation.faults import CALM, STORM
from meshnet.simulation.state_mutants import STATE_MUTANTS, summing_plan
from meshnet.simulation.world import simulate_plan

SEEDS = range(40)


@pytest.mark.parametrize("mutant", STATE_MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_seen_within_a_bounded_number_of_seeds(mutant):
    plans = ((seed, summing_plan(seed, mutant.faults)) for seed in SEEDS)

    assert any(
        simulate_plan(seed, plan, mutant.faults, mutant.parts).complaints for seed, plan in plans
    )


@pytest.mark.parametrize("faults", [LATE, CALM, STORM], ids=["late", "calm", "storm"])
def test_the_real_code_keeps_every_promise_in_the_mutants_clusters(faults):
    """Else a mutant could be caught for what its cluster alone does."""
    plans = ((seed, summing_plan(seed, faults)) for seed in range(3))

    assert [
        line for seed, plan in plans for line in simulate_plan(seed, plan, faults).complaints
    ] == []
