"""A node serves a shard to itself, to find out what a step takes from one end to the other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from meshnet.cli.served_step import STEPS, WARMUPS, served_step_s
from meshnet.core.vocabulary import Activation, Drawn, LayerRange, MeshnetError, ShardStep
from meshnet.node.compute import ComputeThread
from meshnet.simulation.toy_shard import ToyShard, ToyState


class Counting(ToyShard):
    def __init__(self) -> None:
        super().__init__(LayerRange(1, 3), layers_total=4)
        self.calls: list[int | str] = []

    def run(self, step: ShardStep, state: ToyState | None) -> Activation | Drawn | None:
        self.calls.append(step.past_length)
        return super().run(step, state)


@pytest.fixture
def compute() -> Iterator[ComputeThread]:
    thread = ComputeThread(name="test-compute")
    yield thread
    thread.close(10.0)


async def test_each_step_but_the_first_follows_another_of_its_session_and_something_else(
    compute: ComputeThread,
):
    shard = Counting()

    step_s = await served_step_s(compute, shard, lambda: shard.calls.append("something else"))

    assert step_s > 0
    assert shard.calls == [
        call for past in range(WARMUPS + STEPS) for call in ("something else", past)
    ]


async def test_a_shard_that_fails_is_an_error_and_no_figure(compute: ComputeThread):
    shard = ToyShard(LayerRange(1, 3), layers_total=4, fail_after=lambda: 1)

    with pytest.raises(MeshnetError, match="layer"):
        await served_step_s(compute, shard, lambda: None)
