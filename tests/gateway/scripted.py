"""A generator that draws what a test wrote down: a participant, with the head's manners.

It ends like the head does (stop id, last allowed token, failure), waits where the script says,
and counts how its generations ended.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field

from meshnet.core.vocabulary import SampledToken, SessionId, TokenLogprob
from meshnet.head import (
    FinishEvent,
    FinishReason,
    GenerationFailed,
    GenerationRequest,
    TokenEvent,
)


@dataclass
class Gate:
    """Where a script waits until the test opens it; `reached` tells that it waits."""

    reached: asyncio.Event = field(default_factory=asyncio.Event)
    opened: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait(self) -> None:
        self.reached.set()
        await self.opened.wait()


Step = int | Gate | GenerationFailed | Exception
Script = Sequence[Step] | Callable[[GenerationRequest], Sequence[Step]]


class ScriptedGenerator:
    """Yield the ids of the script; the last one repeats for ever unless something ends it."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.requests: list[GenerationRequest] = []
        self.drawn = 0
        self.cached_tokens = 0
        self.finished = 0
        self.failed = 0
        self.closed_early = 0
        self.over = asyncio.Event()

    @property
    def running(self) -> int:
        ended = self.finished + self.failed + self.closed_early
        return len(self.requests) - ended

    async def generate(
        self, request: GenerationRequest
    ) -> AsyncGenerator[TokenEvent | FinishEvent, None]:
        self.requests.append(request)
        steps = list(self._script(request) if callable(self._script) else self._script)
        try:
            drawn = 0
            reason: FinishReason | None = None
            while reason is None:
                forced = request.sampling.forced[drawn : drawn + 1]
                step = forced[0] if forced else steps.pop(0) if len(steps) > 1 else steps[0]
                if isinstance(step, Gate):
                    await step.wait()
                    continue
                if isinstance(step, Exception):
                    raise step
                drawn += 1
                self.drawn += 1
                yield TokenEvent(drawn_token(step, request), self.cached_tokens)
                reason = _reason(step, drawn, request)
            yield _finish(request, reason, drawn)
            self.finished += 1
        except GenerationFailed:
            self.failed += 1
            raise
        except (GeneratorExit, asyncio.CancelledError):
            self.closed_early += 1
            raise
        finally:
            self.over.set()


def drawn_token(token_id: int, request: GenerationRequest) -> SampledToken:
    """Logprobs of a distribution that halves from the drawn token to the next ids."""
    asked = request.sampling.logprobs
    if asked is None:
        return SampledToken(token_id)
    top = tuple(
        TokenLogprob((token_id + rank) % 278, -math.log(2.0) * (rank + 1)) for rank in range(asked)
    )
    return SampledToken(token_id, -math.log(2.0), top)


def _reason(token_id: int, drawn: int, request: GenerationRequest) -> FinishReason | None:
    if token_id in request.stop_ids and drawn > len(request.sampling.forced):
        return FinishReason.STOP
    if drawn >= request.tokens_max:
        return FinishReason.LENGTH
    return None


def _finish(request: GenerationRequest, reason: FinishReason, drawn: int) -> FinishEvent:
    return FinishEvent(
        reason=reason,
        session=SessionId("scripted"),
        prompt_tokens=len(request.prompt),
        completion_tokens=drawn,
        prefills=1,
        refills=0,
        ttft_s=0.0,
        duration_s=0.0,
        hops=(),
    )
