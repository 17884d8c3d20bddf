"""The checkers see wrong guessing and wrong truncation, and no wrong where there is none."""

import pytest

from meshnet.simulation.draft_mutants import DRAFT_MUTANTS, LATE, guessing_plan
from meshnet.simulation.faults import CALM
from meshnet.simulation.world import simulate_plan

SEEDS = range(40)


@pytest.mark.parametrize("mutant", DRAFT_MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_shows_a_user_wrong_text_within_a_bounded_number_of_seeds(mutant):
    plans = (
        (seed, guessing_plan(seed, mutant.faults, mutant.drafts, mutant.windows)) for seed in SEEDS
    )

    histories = (simulate_plan(seed, plan, mutant.faults, mutant.parts) for seed, plan in plans)
    assert any(each.wrong for each in histories)


@pytest.mark.parametrize("faults", [LATE, CALM], ids=["late", "calm"])
@pytest.mark.parametrize(("drafts", "windows"), [(2, 1), (8, 1), (2, 4)])
def test_the_real_code_keeps_every_promise_in_the_mutants_clusters(faults, drafts, windows):
    """Else a mutant could be caught for what its cluster alone does."""
    plans = ((seed, guessing_plan(seed, faults, drafts, windows)) for seed in range(2))

    assert [
        line for seed, plan in plans for line in simulate_plan(seed, plan, faults).complaints
    ] == []
