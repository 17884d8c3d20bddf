"""Wrong ways to guess and to truncate, each a small subclass, to show that the checkers see."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from meshnet.core.generation.machine import Generation
from meshnet.core.generation.states import Asking
from meshnet.core.generation.stopping import StopRules
from meshnet.core.generation.transcript import (
    GenerationAction,
    GenerationEvent,
    Replied,
    StepRef,
)
from meshnet.core.protocol.messages import Refusal
from meshnet.core.vocabulary import (
    POSITIONS_MAX,
    Drawn,
    NodeId,
    SampledToken,
    SamplingParams,
    SessionId,
    ShardStep,
)
from meshnet.simulation.audit import ToyLease
from meshnet.simulation.faults import CALM, Faults
from meshnet.simulation.mutants import Real
from meshnet.simulation.plan import CUTS, ChatPlan, ClusterPlan, NodePlan, plan
from meshnet.simulation.toy_shard import ToyShard, ToyState
from meshnet.simulation.world import Parts


class TakesRejectedDraftOfEqualLength(Real):
    """Compares lengths where nothing is to be truncated: a late rejected draft is as long."""

    def decode(
        self, session: SessionId, *, past_length: int, prefix: str | None, **asked: Any
    ) -> ToyLease:
        entry = self._shelf.entries.get(session)
        if entry is not None and entry.length == past_length:
            prefix = None
        return super().decode(session, past_length=past_length, prefix=prefix, **asked)


class TruncatesWhateverIsLonger(Real):
    """Shortens a session that is long enough, whatever ids it holds."""

    def decode(
        self, session: SessionId, *, past_length: int, prefix: str | None, **asked: Any
    ) -> ToyLease:
        entry = self._shelf.entries.get(session)
        if entry is not None and entry.ids is not None and past_length < entry.length:
            prefix = entry.ids.prefix(past_length).hex
        return super().decode(session, past_length=past_length, prefix=prefix, **asked)


class AcceptsOneDraftTooMany(ToyShard):
    """Takes the first wrong guess for a right one."""

    def _drawn(self, rows: list[int], step: ShardStep, history: list[int]) -> Drawn:
        drawn = super()._drawn(rows, step, history)
        guesses = step.tokens[len(step.tokens) - step.drafts :]
        right = len(drawn.tokens) - 1
        if right == len(guesses):
            return drawn
        return Drawn((*drawn.tokens[:-1], SampledToken(guesses[right]), drawn.tokens[-1]))


class MiddleHopKeepsRejectedDrafts(ToyShard):
    """Truncates nothing on the second of three hops."""

    def truncate(self, state: ToyState, length: int) -> None:
        if state.layers != CUTS[1]:
            super().truncate(state, length)


class IgnoresStopsInsideDrafts(Generation):
    """Looks for the end at the last token of a step only."""

    def _emit(self, tokens: tuple[SampledToken, ...], now: float) -> list[GenerationAction]:
        spec, run = self._spec, tokens[:-1]
        actions: list[GenerationAction] = []
        if run:
            self._spec = replace(spec, stop=StopRules(frozenset(), POSITIONS_MAX))
            actions = super()._emit(run, now)
            self._spec = spec
        return [*actions, *super()._emit(tokens[len(run) :], now)]


class TakesAnswersOfVoidWindows(Generation):
    """Takes an answer for that to the open question if both leave a session of one length."""

    def asks(self, ref: StepRef) -> bool:
        mine = ref.attempt == self._questions.attempt and isinstance(self._state, Asking)
        return mine or super().asks(ref)

    def handle(self, event: GenerationEvent, now: float) -> list[GenerationAction]:
        if isinstance(event, Replied) and isinstance(self._state, Asking):
            asked = next(iter(self._state.pipeline.open), None)
            long = None if isinstance(event.reply, Refusal) else event.reply.cached
            if asked is not None and long == asked.step.length_after:
                event = replace(event, ref=asked.forward.ref)
        return super().handle(event, now)


@dataclass(frozen=True, slots=True)
class DraftMutant:
    """A wrong part, and the faults, guesses and windows that bring it to light."""

    name: str
    parts: Parts
    drafts: int
    faults: Faults = CALM
    windows: int = 1


LATE = Faults(duplicated=0.5, slow=0.25, slow_max_s=0.3)
"""Second copies of steps arrive when later steps are over."""

DRAFT_MUTANTS = (
    DraftMutant(
        "a late rejected draft of equal length",
        Parts(store=TakesRejectedDraftOfEqualLength),
        drafts=2,
        faults=LATE,
    ),
    DraftMutant(
        "digest ignored after truncation",
        Parts(store=TruncatesWhateverIsLonger),
        drafts=8,
        faults=LATE,
    ),
    DraftMutant("one draft too many", Parts(shard=AcceptsOneDraftTooMany), drafts=3),
    DraftMutant(
        "truncation not applied at one hop", Parts(shard=MiddleHopKeepsRejectedDrafts), drafts=3
    ),
    DraftMutant(
        "stop id inside a draft ignored", Parts(generation=IgnoresStopsInsideDrafts), drafts=8
    ),
    DraftMutant(
        "a late answer to a void window of equal length",
        Parts(generation=TakesAnswersOfVoidWindows),
        drafts=2,
        windows=4,
    ),
)


def guessing_plan(seed: int, faults: Faults, drafts: int, windows: int = 1) -> ClusterPlan:
    """Draw a cluster of three nodes whose chats are long, guess much and are often wrong.

    With several windows their heads have streams, and the nodes hand steps on.
    """
    drawn = plan(seed, faults)
    nodes = tuple(NodePlan(NodeId(f"n{index}"), layers) for index, layers in enumerate(CUTS))
    chats = tuple(_talkative(chat) for chat in drawn.chats)
    streaming = frozenset(range(drawn.heads)) if windows > 1 else frozenset()
    return ClusterPlan(
        nodes, drawn.heads, chats, drafts=drafts, windows=windows, streaming_heads=streaming
    )


def _talkative(chat: ChatPlan) -> ChatPlan:
    """Long answers drawn at random; a stop id is one of the prompt, where guesses are found."""
    sampling = SamplingParams(
        temperature=1.0, seed=chat.sampling.seed, prompt_length=len(chat.prompt)
    )
    stops = chat.stop_ids & frozenset(chat.prompt)
    return replace(chat, tokens_max=80, sampling=sampling, stop_ids=stops)
