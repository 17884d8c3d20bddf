"""What takes turns in a paired measurement: one way to serve one model, on the cores of all.

A side is a mesh of ours, the unsplit engine, transformers' `generate`, or another project's
server. The runner knows nothing about it but this protocol, so no side can be favoured.

Invariant: prompts of one measurement share no prefix, unless what is measured is its reuse; a
side may therefore keep whatever cache it likes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Stream:
    """One generation as its client saw it; seconds are counted from the request."""

    tokens: int
    at_s: tuple[float, ...]
    """Arrivals in order. A side that tells text may tell two tokens in one piece of it."""
    text: str = ""
    token_ids: tuple[int, ...] = ()
    """Empty where the side tells only text."""

    def __post_init__(self) -> None:
        if self.tokens < 1 or not self.at_s or len(self.at_s) > self.tokens:
            raise ValueError(f"stream: {len(self.at_s)} arrivals of {self.tokens} tokens")

    @property
    def ttft_s(self) -> float:
        return self.at_s[0]

    @property
    def tokens_per_s(self) -> float:
        """Rate after the first token. Raises ZeroDivisionError for a single token."""
        return (self.tokens - 1) / (self.at_s[-1] - self.at_s[0])

    def token_at_s(self, index: int) -> float:
        """When token `index` had arrived; between the pieces of text, by proportion."""
        place = index * (len(self.at_s) - 1) / max(1, self.tokens - 1)
        before = min(int(place), len(self.at_s) - 1)
        after = min(before + 1, len(self.at_s) - 1)
        share = place - before
        return self.at_s[before] * (1.0 - share) + self.at_s[after] * share


def unheard() -> None:
    """Nobody waits for the arrivals of a stream."""


class Side(Protocol):
    """One competitor. Everything it starts inherits the cores of this process."""

    @property
    def name(self) -> str:
        """What a reader calls it, e.g. `meshnet int8, 2 x 1`: unique in one measurement."""
        ...

    async def start(self) -> None:
        """Start its processes and wait until they serve. Raises MeshnetError."""
        ...

    async def stop(self) -> None:
        """End what was started; harmless before `start` and twice."""
        ...

    def pids(self) -> Sequence[int]:
        """Its processes, without their children: their time is not other load."""
        ...

    async def decode(
        self, prompt: Sequence[int], tokens: int, heard: Callable[[], None] = unheard
    ) -> Stream:
        """Generate exactly `tokens` greedy tokens after `prompt`; the model's stops do not stop it.

        May be called several times at once: each call is a session of its own.
        The first arrival ends the prefill, so `decode(prompt, 1)` measures it. `heard` is called
        at each arrival.

        Raises:
            MeshnetError: the side failed, or generated another number of tokens.
        """
        ...
