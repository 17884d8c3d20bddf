"""Wrong ways to go on with what survived a loss, to show that the checkers see (ADR-0041)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from meshnet.core.generation.questions import Questions
from meshnet.core.generation.survivors import Found, Salvage, Span
from meshnet.core.sessions import checks
from meshnet.core.vocabulary import Activation, NodeId, SessionId
from meshnet.node.leaving import LeavingRows
from meshnet.node.steps import Kept
from meshnet.simulation.audit import ToyLease
from meshnet.simulation.draft_mutants import LATE, guessing_plan
from meshnet.simulation.faults import Faults
from meshnet.simulation.mutants import Mutant, Real
from meshnet.simulation.plan import CUTS, ClusterPlan, NodePlan
from meshnet.simulation.toy_shard import ToyState
from meshnet.simulation.world import Parts


class KeepsRowsOfWrongGuesses(LeavingRows):
    """Shortens nothing: what left the layers for wrong guesses is sent again with the rest."""

    def put(self, past_length: int, leaving: object) -> None:
        if self._rows is not None and isinstance(leaving, Activation) and past_length:
            self._rows += leaving.data
        else:
            super().put(past_length, leaving)


class SendsWhateverItKept(Real):
    """Sends positions again without a look at whose ids they are of."""

    def replay(self, session: SessionId, **asked: Any) -> Kept[ToyState]:
        entry = self._shelf.entries.get(session)
        stop = asked["past_length"] + len(asked["ids"])
        if entry is None or entry.state is None or not entry.held.spare or stop > entry.length:
            return super().replay(session, **asked)
        return entry.state


class TakesOlderAttempts(Real):
    """Goes on with a session whose ids are right, whatever came after the attempt that asks."""

    def decode(self, session: SessionId, **asked: Any) -> ToyLease:
        with patch.object(checks, "_follows", _equal):
            return super().decode(session, **asked)


class HandsFillsOn(Questions):
    """Fills the hop behind each span as well, though it holds all it needs."""

    def salvaged(self, found: Sequence[Found]) -> Salvage | None:
        right = super().salvaged(found)
        if right is None:
            return None
        return replace(right, spans=tuple(map(self._longer, right.spans)))

    def _longer(self, span: Span) -> Span:
        behind = self.route.hops.index(span.hops[-1]) + 1
        return replace(span, hops=(*span.hops, *self.route.hops[behind : behind + 1]))


def _equal(*_: object) -> bool:
    return True


CRASHING = replace(LATE, crash_every_s=1.0)
"""Nodes die while late copies of steps with wrong guesses are on their way."""


def failing_plan(seed: int, faults: Faults) -> ClusterPlan:
    """Draw a cluster with a spare for every node; chats are long, guess much and often wrongly."""
    rng = random.Random(f"failing {seed}")
    windows = rng.choice((1, 1, 4))
    cluster = guessing_plan(seed, faults, drafts=rng.choice((0, 2, 8)), windows=windows)
    spares = tuple(NodePlan(NodeId(f"s{index}"), layers) for index, layers in enumerate(CUTS))
    streaming = frozenset(range(cluster.heads)) if rng.random() < 0.5 else cluster.streaming_heads
    chats = tuple(replace(chat, tokens_max=30) for chat in cluster.chats[:3])
    nodes = (*cluster.nodes, *spares)
    return replace(cluster, nodes=nodes, chats=chats, streaming_heads=streaming)


SALVAGE_MUTANTS = (
    Mutant("kept rows not shortened", Parts(leaving=KeepsRowsOfWrongGuesses), CRASHING),
    Mutant("an older attempt goes on", Parts(store=TakesOlderAttempts), CRASHING),
)
