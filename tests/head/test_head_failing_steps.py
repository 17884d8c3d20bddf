"""Steps that fail again and again for the same reason."""

from __future__ import annotations

import pytest
from tests.head.cluster import A, Cluster, collect, request, running

from meshnet.core.vocabulary import LayerRange, StepTorn
from meshnet.head import FailureCode, GenerationFailed
from meshnet.simulation.loop import run
from meshnet.simulation.toy_shard import ToyShard


class Poisoned(ToyShard):
    """Its layers fail midway in every step."""

    def run(self, step, state):
        raise StepTorn("index out of range")


def test_a_prompt_that_tears_every_step_is_given_up_after_a_few_prefills():
    async def main():
        cluster = Cluster()
        cluster.boot(A, Poisoned(LayerRange(0, 2), layers_total=6))
        async with running(cluster) as head:
            with pytest.raises(GenerationFailed) as failed:
                await collect(head, request())

            assert failed.value.code is FailureCode.UPSTREAM
            assert len(cluster.forwards) < 10

    run(main, 0)
