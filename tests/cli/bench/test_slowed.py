"""A slower machine, played by a shard that sleeps."""

from __future__ import annotations

import pytest

from meshnet.cli.bench.slowed import SlowedShard, slowed


class Shard:
    def __init__(self) -> None:
        self.now, self.slept_s = 0.0, 0.0

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept_s += seconds

    def run(self, step: str, state: str) -> str:
        self.now += 2.0
        return step + state

    def run_batch(self, work: list[str]) -> list[str]:
        self.now += 3.0
        return work

    def text_of(self, token_id: int) -> str:
        return str(token_id)


def test_a_step_takes_a_multiple_of_its_time_and_yields_the_same():
    shard = Shard()
    slow = SlowedShard(shard, 2.5, clock=shard.clock, sleep=shard.sleep)

    results = (slow.run("a", "b"), slow.run_batch(["c"]), slow.text_of(7))

    assert results == ("ab", ["c"], "7")
    assert shard.slept_s == pytest.approx(1.5 * (2.0 + 3.0))


def test_a_node_that_is_not_slowed_has_its_shard_as_it_is():
    shard = Shard()

    assert slowed(1.0)(shard) is shard


def test_no_machine_is_faster_than_the_one_that_plays_it():
    with pytest.raises(ValueError, match="factor"):
        SlowedShard(Shard(), 0.5)
