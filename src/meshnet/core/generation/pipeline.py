"""Steps that walk through the stages of a route behind each other.

A stage is a hop, or a run of hops that hand steps on to each other and answer as one.

    before stage 0    c3 c4 ...        steps that wait; the first of all is c0
    at stage 0        c2               asked, not answered
    before stage 1
    at stage 1        c1
    before stage 2    c0               answered by stage 1, and stage 2 was not asked yet

A single step is a pipeline of one.

Invariants
    * every stage gets the steps in their order, each one when the stage before has answered it,
      and has at most as many at once as it has room for: a single hop one;
    * a stage is asked nothing while an answered step waits before the next one: fast hops do not
      fill the head's memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from meshnet.core.generation.sequence import Step
from meshnet.core.generation.transcript import Forward, StepRef
from meshnet.core.vocabulary import Activation


@dataclass(frozen=True, slots=True)
class Entering:
    """A step before a stage: its number, and what the stage before made of it."""

    step: Step
    number: int
    stage: int
    activation: Activation | None


@dataclass(frozen=True, slots=True)
class Question:
    """A step at a stage. At `until` its hops count as silent, unless they were heard of."""

    forward: Forward
    step: Step
    asked_at: float
    until: float

    def heard(self, now: float) -> Question:
        """The same, with time from now on, as far as the step's own time goes."""
        latest = self.asked_at + self.forward.timeout_s
        return replace(self, until=max(self.until, min(now + self.forward.silence_s, latest)))


class Pipeline:
    def __init__(self, steps: Sequence[Step], first_number: int, rooms: Sequence[int]) -> None:
        """`rooms` says how many steps each stage may have at once."""
        self._rooms = tuple(rooms)
        self._before: list[deque[Entering]] = []
        self._at: list[dict[int, Question]] = []
        for _ in rooms:
            self._before.append(deque())
            self._at.append({})
        for number, step in enumerate(steps, first_number):
            self._before[0].append(Entering(step, number, 0, None))

    @property
    def open(self) -> list[Question]:
        """All questions, the oldest of each stage first."""
        questions: list[Question] = []
        for stage in self._at:
            questions.extend(stage.values())
        return questions

    @property
    def steps(self) -> tuple[Step, ...]:
        """What is at the first stage or before it, in order."""
        at, before = self._at[0], self._before[0]
        if not at and not before:
            return ()
        waiting = (entering.step for entering in before)
        return (*(question.step for question in at.values()), *waiting)

    @property
    def ended(self) -> bool:
        """Whether every step has passed every stage."""
        return not any(self._before) and not any(self._at)

    @property
    def room(self) -> int:
        """How many steps the route's only stage may have; 1 where there are others."""
        return self._rooms[0] if len(self._rooms) == 1 else 1

    def add(self, step: Step, number: int) -> None:
        """Let one more step follow."""
        self._before[0].append(Entering(step, number, 0, None))

    def resume(self, now: float) -> None:
        """Give every question its time anew: nobody listened to the answers."""
        for question in self.open:
            self.ask(replace(question, until=now + question.forward.silence_s))

    @property
    def until(self) -> float:
        """When the first question is given up."""
        return min(question.until for question in self.open)

    def question(self, ref: StepRef) -> Question | None:
        """Return the open question of this name."""
        question = self._at[ref.hop].get(ref.step) if 0 <= ref.hop < len(self._at) else None
        if question is None or (question.forward.ref is not ref and question.forward.ref != ref):
            return None
        return question

    def overdue(self, now: float) -> Question | None:
        return next((each for each in self.open if now >= each.until), None)

    def ready(self) -> Iterator[Entering]:
        """Take out what can be asked now; the caller puts each to its stage with `ask`."""
        for stage in reversed(range(len(self._before))):
            if not (before := self._before[stage]):
                continue
            jammed = any(self._before[stage + 1 : stage + 2])
            while before and len(self._at[stage]) < self._rooms[stage] and not jammed:
                yield before.popleft()

    def ask(self, question: Question) -> None:
        ref = question.forward.ref
        self._at[ref.hop][ref.step] = question

    def heard(self, question: Question, now: float) -> None:
        """There was a sign of life of a hop that this is asked of."""
        self.ask(question.heard(now))

    def in_turn(self, question: Question) -> bool:
        """Whether no step before this one is at its stage."""
        return next(iter(self._at[question.forward.ref.hop].values())) is question

    def passed(self, question: Question, activation: Activation | None, now: float) -> None:
        """The stage has answered; with an activation the step goes on to the next one."""
        ref = question.forward.ref
        del self._at[ref.hop][ref.step]
        for behind in [*self._at[ref.hop].values()]:
            self.heard(behind, now)
        if activation is not None:
            entering = Entering(question.step, ref.step, ref.hop + 1, activation)
            self._before[ref.hop + 1].append(entering)
