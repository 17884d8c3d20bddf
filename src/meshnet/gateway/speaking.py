"""From shown text to what it says: pieces whose thoughts and calls have been parted from it.

Invariants
    * a call is told when all of it is there, and counts from 0 in its answer;
    * an answer that holds a call ends by it, whatever ended its text (pit A50);
    * log probabilities travel with the next piece that says anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace

from meshnet.core.generation.transcript import FinishReason
from meshnet.core.vocabulary import Said, Spoken, Thought, ToolCall
from meshnet.gateway.assembly import Call, Piece, PlacedToken
from meshnet.gateway.ports import Speech


@dataclass(frozen=True, slots=True)
class Parting:
    """How the text of one chat is parted."""

    begin: Callable[[], Speech]
    """Follows one answer; blocking: it reads the prompt."""
    new_id: Callable[[], str]
    parallel: bool


async def parted(
    pieces: AsyncGenerator[Piece, None], parting: Parting
) -> AsyncGenerator[Piece, None]:
    """Give out the same answer in parts; closing it closes `pieces`. Raises what they raise."""
    async with aclosing(pieces) as parts:
        answer = _Answer(parting, await asyncio.to_thread(parting.begin))
        async for piece in parts:
            told = answer.take(piece)
            if told is not None:
                yield told
            if told is not None and told.finish is not None:
                return


class _Answer:
    def __init__(self, parting: Parting, speech: Speech) -> None:
        self._parting, self._speech = parting, speech
        self._tokens: tuple[PlacedToken, ...] = ()
        self._calls = self._thoughts = self._counted = 0

    def take(self, piece: Piece) -> Piece | None:
        """Return what the piece says; None: nothing yet."""
        said = self._speech.feed(piece.text)
        if piece.finish is not None:
            said = [*said, *self._speech.end()]
        self._tokens += piece.tokens
        self._count(said, piece.completion_tokens)
        calls = self._called(said)
        finish = piece.finish
        if calls and not self._parting.parallel:
            calls, finish = calls[:1], FinishReason.STOP
        self._calls += len(calls)
        if not said and finish is None:
            return None
        tokens, self._tokens = self._tokens, ()
        return replace(
            piece,
            text="".join(part.text for part in said if isinstance(part, Spoken)),
            thought="".join(part.text for part in said if isinstance(part, Thought)),
            calls=calls,
            tokens=tokens,
            finish=finish,
            called=finish is not None and self._calls > 0,
            thought_tokens=self._thoughts,
        )

    def _count(self, said: list[Said], completion_tokens: int) -> None:
        """Count the tokens up to a thought as its own."""
        if any(isinstance(part, Thought) for part in said):
            self._thoughts += completion_tokens - self._counted
        self._counted = completion_tokens

    def _called(self, said: list[Said]) -> tuple[Call, ...]:
        calls = (part for part in said if isinstance(part, ToolCall))
        return tuple(
            Call(index, f"call_{self._parting.new_id()}", call)
            for index, call in enumerate(calls, self._calls)
        )
