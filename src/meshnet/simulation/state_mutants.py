"""A wrong way to go back to a mark, to show that the checkers see."""

from __future__ import annotations

from dataclasses import replace

from meshnet.simulation.adoption_mutants import going_on_plan
from meshnet.simulation.faults import CALM, Faults
from meshnet.simulation.mutants import Mutant
from meshnet.simulation.plan import ClusterPlan
from meshnet.simulation.toy_shard import ToyShard, ToyState
from meshnet.simulation.world import Parts


class LeavesStatesAsTheyAre(ToyShard):
    """Goes back to a mark, and goes on with what was summed up since."""

    def truncate(self, state: ToyState, length: int) -> None:
        last = [chain[-1] for chain in state.chains]
        super().truncate(state, length)
        for chain, number in zip(state.chains, last, strict=True):
            chain[-1] = number


def summing_plan(seed: int, faults: Faults) -> ClusterPlan:
    """Draw a cluster in which chats have turns, and sessions go back to their marks only."""
    cluster = going_on_plan(seed, faults)
    nodes = tuple(replace(node, sums_up=True) for node in cluster.nodes)
    return replace(cluster, nodes=nodes)


STATE_MUTANTS = (Mutant("a state not put back", Parts(shard=LeavesStatesAsTheyAre), CALM),)
