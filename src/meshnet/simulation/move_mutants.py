"""A wrong way to move a session, to show that the checkers see."""

from __future__ import annotations

import random
from dataclasses import replace

from meshnet.core.vocabulary import LayerState, NodeId
from meshnet.simulation.faults import CALM, Faults
from meshnet.simulation.mutants import Mutant
from meshnet.simulation.plan import (
    CUTS,
    STEP_MAX_S,
    TOKENS_MAX,
    ClusterPlan,
    NodePlan,
    plan,
)
from meshnet.simulation.toy_shard import ROW_BYTES, ToyShard, ToyState
from meshnet.simulation.world import Parts

DRAINS_MAX_S = 6.0


class GivesAnOlderLayer(ToyShard):
    """Gives its first layer as it was one position ago, under the length of the others."""

    def export_layer(self, state: ToyState, layer: int) -> LayerState:
        held = super().export_layer(state, layer)
        if layer != state.layers.start:
            return held
        data = bytes(held.data)
        return replace(held, data=data[:-ROW_BYTES] + data[-2 * ROW_BYTES : -ROW_BYTES])


def draining_plan(seed: int, faults: Faults) -> ClusterPlan:
    """Draw a cluster whose layers are all held twice, and of each two nodes one drains.

    Its devices are slow and its chats long: they run while nodes drain.
    """
    rng = random.Random(f"draining {seed}")
    drawn = plan(seed, faults)
    nodes = [NodePlan(NodeId(f"n{at}"), layers) for at, layers in enumerate(CUTS)]
    nodes += [NodePlan(NodeId(f"s{at}"), layers) for at, layers in enumerate(CUTS)]
    nodes = [replace(node, sums_up=rng.random() < 0.2) for node in nodes]
    chats = tuple(
        replace(
            chat,
            starts_s=rng.uniform(0.0, DRAINS_MAX_S),
            tokens_max=TOKENS_MAX - rng.randint(0, 4),
            stop_ids=frozenset(),
            leaves_after=None,
            leaves_after_s=None,
        )
        for chat in drawn.chats
        if chat.follows is None
    )
    twins = [rng.sample((nodes[at], nodes[at + len(CUTS)]), 2) for at in range(len(CUTS))]
    drains = tuple((one.node, rng.uniform(0.5, DRAINS_MAX_S)) for one, _ in twins)
    return replace(
        drawn,
        nodes=tuple(nodes),
        chats=chats,
        drains=drains,
        step_max_s=STEP_MAX_S[-1],
        reserved_tokens_max=512,
    )


MOVE_MUTANTS = (Mutant("a layer of an older length", Parts(shard=GivesAnOlderLayer), CALM),)
