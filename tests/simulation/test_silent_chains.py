"""A chain in the simulated cluster of which one node falls silent: which it was shows at once."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field

from tests.simulation.test_scenarios import LOOPBACK, chats, nodes

from meshnet.core.generation.transcript import RefillReason
from meshnet.core.vocabulary import NodeId
from meshnet.simulation.plan import CUTS, ClusterPlan, NodePlan
from meshnet.simulation.world import HEAD_LIMITS, World, simulate_plan

LOOK_S = 0.005
SILENT = NodeId("n1")
STOPPED_S = 100.0


@dataclass
class StopsTheMiddle:
    """Stops the middle node during the decodes, and sees when the chat goes on."""

    after_s: float = 0.0
    refills: Counter[RefillReason] = field(default_factory=Counter)

    async def __call__(self, world: World) -> None:
        loop = asyncio.get_running_loop()
        (outcome,) = world.outcomes
        while len(outcome.tokens) < 3:  # noqa: ASYNC110  # virtual time
            await asyncio.sleep(LOOK_S)
        world.machines[SILENT].stop(STOPPED_S)
        held, stopped_at = len(outcome.tokens), loop.time()
        while len(outcome.tokens) <= held + 1:  # noqa: ASYNC110  # one was on its way
            await asyncio.sleep(LOOK_S)
        self.after_s = loop.time() - stopped_at
        self.refills = world.heads[0].head.counters.refills
        await asyncio.sleep(STOPPED_S)


def test_the_silent_hop_of_a_chain_is_found_by_one_question_to_all_and_then_avoided():
    """Not by asking hop by hop, and waiting for each as long as for the whole chain."""
    limits = HEAD_LIMITS.generation
    cluster = ClusterPlan(
        (*nodes(8), NodePlan(NodeId("spare"), CUTS[1])),
        heads=1,
        chats=chats(1, 1, 20),
        drafts=0,
        streaming_heads=frozenset({0}),
    )
    stops = StopsTheMiddle()

    history = simulate_plan(1, cluster, LOOPBACK, watch=stops)

    assert history.complaints == ()
    assert stops.refills == {RefillReason.LOST: 1}
    silence_s = limits.step.of(1)
    assert silence_s < stops.after_s < silence_s + limits.locate_s + 2.0
