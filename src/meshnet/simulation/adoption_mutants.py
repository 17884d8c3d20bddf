"""Wrong ways to go on with an ended session, to show that the checkers see."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from meshnet.core.vocabulary import SessionId
from meshnet.head.lingering import Lingering, LingeringSessions
from meshnet.simulation.audit import ToyLease
from meshnet.simulation.draft_mutants import guessing_plan
from meshnet.simulation.faults import CALM, Faults
from meshnet.simulation.mutants import Mutant, Real
from meshnet.simulation.plan import ClusterPlan, next_turn
from meshnet.simulation.world import Parts


class AnswersToTwoNames(Real):
    """Leaves an adopted session where it was as well."""

    def decode(self, session: SessionId, **asked: Any) -> ToyLease:
        lease = super().decode(session, **asked)
        if asked["adopt"] is not None:
            self._shelf.entries[asked["adopt"]] = self._shelf.entries[session]
        return lease


class SharesWithEverybody(LingeringSessions):
    """Offers every session to every owner."""

    def _open_to(self, each: Lingering, owner: str | None) -> bool:
        return True


def going_on_plan(seed: int, faults: Faults) -> ClusterPlan:
    """Draw a cluster of three nodes; each chat guesses much, wrongly, and has a next turn at once.

    So late copies of steps with guesses come between the turns.
    """
    cluster = guessing_plan(seed, faults, drafts=8)
    rng = random.Random(f"going on {seed}")
    first = [
        replace(chat, owner=rng.choice(("one", "two")), tokens_max=20, leaves_after=None)
        for chat in cluster.chats
        if chat.follows is None
    ]
    second = [replace(next_turn(chat, rng), starts_s=0.0) for chat in first]
    third = [replace(next_turn(chat, rng), starts_s=0.0) for chat in second]
    return replace(cluster, chats=(*first, *second, *third))


ADOPTION_MUTANTS = (
    Mutant("an adopted session answers to two names", Parts(store=AnswersToTwoNames), CALM),
    Mutant("sessions shared by all owners", Parts(lingering=SharesWithEverybody), CALM),
)
