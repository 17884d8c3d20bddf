"""How fast answers came lately, for whoever wants to hold predictions against it.

Invariant: at most `ANSWERS_MAX` answers are remembered, and of each no more than two figures.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass

from meshnet.telemetry.events import Event, GenerationFinished

ANSWERS_MAX = 32
TOKENS_LEAST = 8
"""Of a shorter answer the rate says little."""


@dataclass(frozen=True, slots=True)
class Told:
    """Medians over the last `answers`; `first_s` is of their first tokens, whatever the prompts."""

    answers: int
    tokens_per_s: float
    first_s: float


class Pace:
    def __init__(self) -> None:
        self._answers: deque[tuple[float, float]] = deque(maxlen=ANSWERS_MAX)

    def observe(self, event: Event) -> None:
        if not isinstance(event, GenerationFinished) or event.ttft_s is None:
            return
        if event.tokens >= TOKENS_LEAST and event.decode_s > 0:
            self._answers.append(((event.tokens - 1) / event.decode_s, event.ttft_s))

    @property
    def told(self) -> Told | None:
        """None: no answer was long enough yet."""
        if not self._answers:
            return None
        rates, firsts = zip(*self._answers, strict=True)
        return Told(len(rates), statistics.median(rates), statistics.median(firsts))
