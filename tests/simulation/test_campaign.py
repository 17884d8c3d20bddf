"""Seeded clusters keep every promise, and one seed is one history in every process."""

import os
import subprocess
import sys

import pytest

from meshnet.simulation.campaign import campaign, one_seed
from meshnet.simulation.faults import STORM
from meshnet.simulation.world import simulate

SEEDS = 60
REPLAY = """
from meshnet.simulation.campaign import one_seed
for seed in (3, 4, 5): print(one_seed(seed, "storm"), one_seed(seed, "churn"))
"""


@pytest.mark.parametrize("faults", ["calm", "storm"])
def test_every_generation_ends_with_the_oracles_tokens(faults):
    """Pits A62 and A80."""
    result = campaign(range(SEEDS), faults)

    assert result.first_complaint is None
    assert result.passed
    assert result.seeds == SEEDS


def test_windows_overtaken_at_a_slow_node_leave_no_more_out_than_a_stream_may_have():
    """The nodes' ends of the streams assert it; in this seed nine were out once."""
    assert one_seed(701579, "storm").complaints == ()


def test_a_late_prefill_where_the_session_was_preempted_meanwhile_breaks_no_promise():
    """A node that let go of a session knows none of its attempts; in this seed one comes late."""
    assert one_seed(9301065, "storm").complaints == ()


def test_a_storm_tears_down_sessions_all_the_time():
    """A campaign without refills would prove nothing."""
    result = campaign(range(1000, 1000 + 10), "storm")

    assert result.refills > 2 * result.seeds


def test_one_seed_is_one_history():
    first, second = simulate(7, STORM), simulate(7, STORM)

    assert first == second
    assert first != simulate(8, STORM)


def test_a_seed_replays_in_another_process_whatever_its_hash_seed():
    """A failing seed from one machine must fail on the next."""
    expected = "".join(
        f"{one_seed(seed, 'storm')} {one_seed(seed, 'churn')}\n" for seed in (3, 4, 5)
    )
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        replayed = subprocess.run(
            [sys.executable, "-c", REPLAY],
            env=environment, capture_output=True, text=True, check=True, timeout=120,
        )  # fmt: skip

        assert replayed.stdout == expected


def test_a_campaign_counts_alike_on_two_processes():
    alone, together = campaign(range(12), "storm"), campaign(range(12), "storm", processes=2)

    assert (alone.events, alone.refills, alone.tokens) == (
        together.events, together.refills, together.tokens,
    )  # fmt: skip
    assert alone.first_seeds == together.first_seeds == ()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("faults", ["calm", "storm"])
def test_a_thousand_seeds_keep_every_promise(faults):
    result = campaign(range(1000), faults, processes=os.cpu_count() or 1)

    assert result.first_complaint is None
    assert result.passed
