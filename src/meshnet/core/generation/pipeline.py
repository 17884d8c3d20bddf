"""Steps that walk through the hops of a route behind each other, at most one at each hop.

    before hop 0    c3 c4 ...          steps that wait; the first of all is c0
    at hop 0        c2                 asked, not answered
    before hop 1
    at hop 1        c1
    before hop 2    c0                 answered by hop 1, and hop 2 was not asked yet

A single step is a pipeline of one.

Invariants
    * every hop gets the steps in their order, each one when the hop before has answered it and
      the hop itself has answered the step before;
    * at most one answered step waits before a hop: a fast hop does not fill the head's memory.
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
    """A step before a hop: its number, and what the hop before made of it."""

    step: Step
    number: int
    hop: int
    activation: Activation | None


@dataclass(frozen=True, slots=True)
class Question:
    """A step at a hop. At `until` the hop counts as lost, unless it was heard of."""

    forward: Forward
    step: Step
    asked_at: float
    until: float


class Pipeline:
    def __init__(self, steps: Sequence[Step], first_number: int, hops: int) -> None:
        self._before: list[deque[Entering]] = [deque() for _ in range(hops)]
        self._before[0].extend(
            Entering(step, number, 0, None) for number, step in enumerate(steps, first_number)
        )
        self._at: dict[int, Question] = {}

    @property
    def until(self) -> float:
        """When the first question is given up."""
        return min(question.until for question in self._at.values())

    def question(self, ref: StepRef) -> Question | None:
        """Return the open question of this name."""
        question = self._at.get(ref.hop)
        return question if question is not None and question.forward.ref == ref else None

    def overdue(self, now: float) -> Question | None:
        return next((each for each in self._at.values() if now >= each.until), None)

    def ready(self) -> Iterator[Entering]:
        """Take out what can be asked now; the caller puts each to its hop with `ask`."""
        for hop in reversed(range(len(self._before))):
            before = self._before[hop]
            jammed = hop + 1 < len(self._before) and self._before[hop + 1]
            if before and hop not in self._at and not jammed:
                yield before.popleft()

    def ask(self, question: Question) -> None:
        self._at[question.forward.ref.hop] = question

    def extend(self, question: Question, until: float) -> None:
        """Wait for this answer until then."""
        self._at[question.forward.ref.hop] = replace(question, until=until)

    def passed(self, question: Question, activation: Activation | None) -> None:
        """The hop has answered; with an activation the step goes on to the next one."""
        ref = question.forward.ref
        del self._at[ref.hop]
        if activation is not None:
            entering = Entering(question.step, ref.step, ref.hop + 1, activation)
            self._before[ref.hop + 1].append(entering)
