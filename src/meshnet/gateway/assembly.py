"""From tokens to text: which characters leave when, and which tokens go with them.

    token --decoder--> complete code points --stop filter--> piece {text, tokens, finish}

Invariants
    * the texts of all pieces joined are the answer, streamed or not;
    * a token travels with the piece that carries its first character; a token that ends the
      generation, and those of a stop string's text, travel with none;
    * `completion_tokens` counts every token drawn, also those that carry no text.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from meshnet.core.generation.transcript import FailureCode, FinishReason
from meshnet.core.vocabulary import SampledToken, ToolCall
from meshnet.gateway.planning import Plan
from meshnet.gateway.ports import Follower, Generator, StreamDecoder, TextModel
from meshnet.gateway.stopping import StopFilter
from meshnet.head import FinishEvent, GenerationFailed

_OFF_GRAMMAR = "The last node drew a token that the response_format forbids: update it."


@dataclass(frozen=True, slots=True)
class PlacedToken:
    """A token of the answer and the offset of its first character in the text."""

    token: SampledToken
    offset: int
    follows: bool = True
    """False for the first token of a prompt: nothing was there to expect it from."""


@dataclass(frozen=True, slots=True)
class Call:
    """The call of a tool, the `index`-th of its answer."""

    index: int
    call_id: str
    call: ToolCall


@dataclass(frozen=True, slots=True)
class Piece:
    """What may be shown now. The last piece of an answer has a finish reason."""

    text: str
    tokens: tuple[PlacedToken, ...]
    completion_tokens: int
    finish: FinishReason | None = None
    cached_tokens: int = 0
    """Of the prompt: what an earlier session held of it."""
    stop: str | None = None
    """The stop string that ended it."""
    thought: str = ""
    calls: tuple[Call, ...] = ()
    called: bool = False
    """With the finish reason: the answer holds a call."""
    thought_tokens: int = 0
    """Of the completion's, those of thoughts."""


class Assembly:
    """Turn the tokens of one generation into pieces."""

    def __init__(
        self,
        decoder: StreamDecoder,
        *,
        stops: tuple[str, ...],
        stop_ids: frozenset[int],
        tells_stop_ids: bool = False,
    ) -> None:
        """`tells_stop_ids`: the one that ends the answer has an entry of its own, without text."""
        self._decoder = decoder
        self._filter = StopFilter(stops)
        self._stop_ids = stop_ids
        self._waiting: deque[PlacedToken] = deque()
        self._decoded = 0
        self._shown = 0
        self._count = 0
        self._follows = False
        self._tells_stop_ids = tells_stop_ids

    def echo(self, tokens: Sequence[SampledToken]) -> Piece:
        """Take tokens of the prompt: they are shown whatever they are, and not counted."""
        text = ""
        for token in tokens:
            self._waiting.append(PlacedToken(token, self._decoded, follows=self._follows))
            decoded = self._decoder.push(token.token_id)
            self._follows, self._decoded = True, self._decoded + len(decoded)
            text += decoded
        return self._piece(text)

    def push(self, token: SampledToken) -> Piece:
        """Take the next token. The piece has a finish reason if it completed a stop string."""
        self._count += 1
        if token.token_id in self._stop_ids:
            if self._tells_stop_ids:
                self._waiting.append(PlacedToken(token, self._decoded))
            return self._piece("")
        self._waiting.append(PlacedToken(token, self._decoded))
        return self._piece(self._take(self._decoder.push(token.token_id)))

    def finish(self, reason: FinishReason) -> Piece:
        """There are no more tokens: give out what was held."""
        text = self._take(self._decoder.flush())
        if self._filter.stopped:
            return self._piece(text)
        text += self._filter.flush()
        self._shown += len(text)
        placed = tuple(self._waiting)
        self._waiting.clear()
        return Piece(text, placed, self._count, reason)

    def _take(self, decoded: str) -> str:
        self._decoded += len(decoded)
        return self._filter.push(decoded)

    def _piece(self, text: str) -> Piece:
        self._shown += len(text)
        placed = []
        while self._waiting and self._waiting[0].offset < self._shown:
            placed.append(self._waiting.popleft())
        finish = FinishReason.STOP if self._filter.stopped else None
        return Piece(text, tuple(placed), self._count, finish, stop=self._filter.stop)


async def pieces(
    generator: Generator, text: TextModel, plan: Plan, *, skip_special: bool = True
) -> AsyncGenerator[Piece, None]:
    """Generate and give out what may be shown, the last piece with its finish reason.

    Closing it closes the generation, and so does a stop string, before its piece is given out.
    Raises GenerationFailed.
    """
    request, to_echo = plan.request, deque(plan.forced)
    assembly = Assembly(
        text.decoder(skip_special=skip_special),
        stops=plan.stops,
        stop_ids=frozenset() if request is None else request.stop_ids,
        tells_stop_ids=bool(to_echo),
    )
    if plan.echo:
        known = plan.prompt[: len(plan.prompt) - len(to_echo)]
        piece = assembly.echo([SampledToken(token_id) for token_id in known])
        if piece.text:
            yield piece
    if request is None:
        yield assembly.finish(FinishReason.LENGTH)
        return
    follower = await _follower(text, request.sampling.grammar)
    last, cached = None, 0
    async with aclosing(generator.generate(request)) as events:
        async for event in events:
            if isinstance(event, FinishEvent):
                last = assembly.finish(event.reason)
                continue
            cached = event.cached_tokens
            if to_echo:
                _check_forced(event.token, to_echo.popleft())
                piece = assembly.echo([event.token])
            else:
                _check_allowed(event.token, follower)
                piece = assembly.push(event.token)
            if piece.finish is not None:
                last = piece
                break
            if piece.text:
                yield replace(piece, cached_tokens=cached)
    if last is None:
        raise GenerationFailed(FailureCode.UPSTREAM, "The generation ended without a reason.")
    yield replace(last, cached_tokens=cached)


async def _follower(text: TextModel, grammar: str) -> Follower | None:
    """Beside the event loop: it may compile, or wait for another grammar to be compiled."""
    return await asyncio.to_thread(text.follow, grammar) if grammar else None


def _check_allowed(token: SampledToken, follower: Follower | None) -> None:
    if follower is not None and not follower.take(token.token_id):
        raise GenerationFailed(FailureCode.UPSTREAM, _OFF_GRAMMAR)


def _check_forced(token: SampledToken, wanted: int) -> None:
    if token.token_id != wanted:
        raise GenerationFailed(
            FailureCode.UPSTREAM, "The last node drew another token than the prompt's: update it."
        )
