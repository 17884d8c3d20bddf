"""Which waiting steps of a device run together next.

    waiting --next_batch--> running (the caller's)
       ├──remove: nobody waits for it any more
       └──its deadline passes: told as spent

Invariants
    * only steps of one model and layer range run together, one per session, within the budget;
      a larger step runs alone;
    * a light step never waits for more than one batch with a chunk in it;
    * chunks run all the same: beside light steps where they fit, else in turn with them;
    * owners take turns, each with its oldest step; what can run with it does so in the same order;
    * nobody starves. With o owners and k earlier steps of its own, a light step runs within
      2 (k + 1) o batches. Between two chunks lie at most the batches of those who waited for the
      first, so with w = `waiting_max` a chunk runs within (k + 1) o (w²/4 + w + 2) batches. (That
      is the worst of all orders; with up to `steps_max` sessions it is every second batch.)
"""

from __future__ import annotations

from collections.abc import Iterator

from meshnet.core.scheduling.overlap import RecentSessions
from meshnet.core.scheduling.steps import (
    LIGHT_POSITIONS_MAX,
    Batch,
    BatchLimits,
    StepId,
    WaitingStep,
)
from meshnet.core.scheduling.turns import Turns
from meshnet.core.vocabulary import NoRoom, SessionId

RETRY_AFTER_S = 0.5

Chosen = list[tuple[StepId, WaitingStep]]


class StepScheduler:
    """The queue in front of one device. Not thread-safe."""

    def __init__(self, limits: BatchLimits | None = None) -> None:
        self._limits = limits or BatchLimits()
        self._steps: dict[StepId, WaitingStep] = {}
        self._sessions: dict[SessionId, list[StepId]] = {}
        self._light, self._chunks = Turns(), Turns()
        self._recent = RecentSessions()
        self._added = 0
        self._ran_chunk = self._passed_over = False
        self._waited: set[StepId] = set()
        """Light steps that waited while a chunk ran."""

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, step: WaitingStep) -> StepId:
        """Let a step wait for its turn. Raises NoRoom if too many wait already."""
        if len(self._steps) >= self._limits.waiting_max:
            raise NoRoom(f"{self._limits.waiting_max} steps wait already", RETRY_AFTER_S)
        self._added += 1
        step_id = StepId(self._added)
        self._steps[step_id] = step
        self._turns(step).add(step_id, step)
        if step.session is not None:
            self._sessions.setdefault(step.session, []).append(step_id)
        return step_id

    def remove(self, step_id: StepId) -> bool:
        """Forget a step that nobody waits for. False: it does not wait here any more."""
        step = self._steps.get(step_id)
        if step is None:
            return False
        self._turns(step).remove(step_id, step)
        self._forget(step_id, step)
        return True

    def clear(self) -> tuple[StepId, ...]:
        """Forget every step: nothing that waits will run."""
        waiting = tuple(self._steps)
        for step_id in waiting:
            self.remove(step_id)
        return waiting

    def next_batch(self, now: float) -> Batch:
        """Take the steps that run next off the queue; none if none waits."""
        return self._only(now) if len(self._steps) < 2 else self._chosen(now)

    def _chosen(self, now: float) -> Batch:
        spent = self._expire(now)
        if self._ran_chunk:
            self._waited.update(step_id for step_id, _ in self._ready(self._light))
        chosen = self._choose()
        for step_id, step in chosen:
            self._turns(step).serve(step_id, step)
            self._forget(step_id, step)
        self._recent.note([step for _, step in chosen])
        self._ran_chunk = any(not step.is_light for _, step in chosen)
        self._passed_over = bool(self._chunks) and not self._ran_chunk
        return Batch(tuple(step_id for step_id, _ in chosen), spent)

    def _only(self, now: float) -> Batch:
        """Do what `_chosen` does, where there is at most one step to choose from."""
        if not self._steps:
            self._ran_chunk = self._passed_over = False
            return _NOTHING
        ((step_id, step),) = self._steps.items()
        self._steps.clear()
        self._sessions.clear()
        self._turns(step).clear()
        if self._waited:
            self._waited.clear()
        self._passed_over = False
        if step.deadline is not None and step.deadline <= now:
            self._ran_chunk = False
            return Batch(spent=(step_id,))
        self._ran_chunk = step.positions > LIGHT_POSITIONS_MAX
        if not self._ran_chunk:
            self._recent.note_one(step)
        return Batch((step_id,))

    def _expire(self, now: float) -> tuple[StepId, ...]:
        late = [
            step_id
            for step_id, step in self._steps.items()
            if step.deadline is not None and step.deadline <= now
        ]
        for step_id in late:
            self.remove(step_id)
        return tuple(late)

    def _choose(self) -> Chosen:
        light = self._together(self._ready(self._light))
        if not light:
            return self._together(self._ready(self._chunks))
        if not self._waited.issubset(step_id for step_id, _ in light):
            return light  # a chunk now would be the second one that somebody waits for
        both = self._joined(light)
        if self._passed_over and len(both) == len(light):
            return self._together(self._ready(self._chunks)) or light
        return both

    def _ready(self, turns: Turns) -> Iterator[tuple[StepId, WaitingStep]]:
        """Yield in turn the steps that have no earlier one of their session before them."""
        for step_id, step in turns.in_order():
            if step.session is None or self._sessions[step.session][0] == step_id:
                yield step_id, step

    def _together(self, steps: Iterator[tuple[StepId, WaitingStep]]) -> Chosen:
        """Return the first step, whatever it is, and those of the others that may join it."""
        first = next(steps, None)
        if first is None:
            return []
        like = [(step_id, step) for step_id, step in steps if _merge(first[1], step)]
        steps_max = self._limits.steps_max
        if first[1].is_light and first[1].stages > 1:
            steps_max = min(steps_max, self._recent.share([first[1], *(step for _, step in like)]))
        chosen = [first]
        for each in like:
            if len(chosen) >= steps_max or not self._fits(chosen, each[1]):
                break
            chosen.append(each)
        return chosen

    def _joined(self, light: Chosen) -> Chosen:
        """Return `light` and the chunks whose turn it is, as far as they fit; none overtakes."""
        chosen = list(light)
        for each in self._ready(self._chunks):
            if len(chosen) >= self._limits.steps_max or not self._fits(chosen, each[1]):
                break
            if not _merge(chosen[0][1], each[1]):
                break
            chosen.append(each)
        return chosen

    def _fits(self, chosen: Chosen, step: WaitingStep) -> bool:
        positions = sum(each.positions for _, each in chosen)
        return positions + step.positions <= self._limits.positions_max

    def _turns(self, step: WaitingStep) -> Turns:
        return self._light if step.is_light else self._chunks

    def _forget(self, step_id: StepId, step: WaitingStep) -> None:
        del self._steps[step_id]
        self._waited.discard(step_id)
        if step.session is not None:
            steps = self._sessions[step.session]
            steps.remove(step_id)
            if not steps:
                del self._sessions[step.session]


_NOTHING = Batch()


def _merge(first: WaitingStep, other: WaitingStep) -> bool:
    return first.merges and other.merges and first.group == other.group
