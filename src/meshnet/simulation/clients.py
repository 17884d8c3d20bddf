"""People who chat with a simulated cluster, and what each of them saw."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from enum import Enum

from meshnet.head import FinishEvent, GenerationFailed, GenerationRequest, Head, TokenEvent
from meshnet.head.lingering import shared
from meshnet.simulation.plan import ChatPlan
from meshnet.simulation.toy_shard import oracle


class Ending(Enum):
    OPEN = "open"
    FINISHED = "finished"
    FAILED = "failed"
    LEFT = "left"
    CRASHED = "crashed"


@dataclass(slots=True)
class Outcome:
    """What one client saw, event by event."""

    plan: ChatPlan
    tokens: list[int] = field(default_factory=list)
    ending: Ending = Ending.OPEN
    finish: FinishEvent | None = None
    failure: str = ""
    endings: int = 0
    started_at: float = 0.0
    first_token_at: float | None = None
    ended_at: float = 0.0
    cached: int = 0
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def wrong(self) -> str | None:
        """Tokens must be the oracle's; where the chat did not finish, the oracle's first ones."""
        plan, seen = self.plan, tuple(self.tokens)
        count = plan.tokens_max if self.ending is Ending.FINISHED else len(seen)
        expected = oracle(plan.prompt, plan.sampling, count, plan.layers_total, plan.stop_ids)
        if seen == expected:
            return None
        return f"{plan.name}: expected tokens {expected}, got {seen}"

    def unfinished(self) -> str | None:
        if self.ending in (Ending.OPEN, Ending.FAILED):
            return f"{self.plan.name}: {self.ending.value} after {len(self.tokens)}: {self.failure}"
        return None

    def violation(self) -> str | None:
        """A generation ends once, and says of itself what the client counted."""
        if self.endings > 1:
            return f"{self.plan.name}: {self.endings} endings"
        finish = self.finish
        if finish is not None and finish.completion_tokens != len(self.tokens):
            counted = f"{finish.completion_tokens} tokens, client got {len(self.tokens)}"
            return f"{self.plan.name}: finish tells {counted}"
        if finish is not None and finish.cached_tokens != self.cached:
            return f"{self.plan.name}: {finish.cached_tokens} tokens cached, then {self.cached}"
        return None

    def borrowed(self, others: Sequence[Outcome]) -> str | None:
        """What was cached of its prompt must be of chats of its owner, with its head."""
        mine = (self.plan.owner, self.plan.head)
        own = [
            each.plan
            for each in others
            if self.cached and each is not self and (each.plan.owner, each.plan.head) == mine
        ]
        texts = [
            (*p.prompt, *oracle(p.prompt, p.sampling, p.tokens_max, p.layers_total, p.stop_ids))
            for p in own
        ]
        known = max((shared(text, self.plan.prompt) for text in texts), default=0)
        if self.cached > (known if mine[0] is not None else 0):
            return f"{self.plan.name}: {self.cached} tokens of somebody else's chat"
        return None


async def converse(
    head: Head, outcome: Outcome, deadline_s: float, after: Outcome | None = None
) -> None:
    """Chat as planned, `after` another chat is over, and write down what comes."""
    loop = asyncio.get_running_loop()
    plan = outcome.plan
    try:
        if after is not None:
            await after.over.wait()
        await asyncio.sleep(plan.starts_s)
        outcome.started_at = loop.time()
        async with asyncio.timeout(plan.leaves_after_s):
            await _listen(head, outcome, deadline_s)
    except TimeoutError:
        outcome.ending = Ending.LEFT
    finally:
        outcome.ended_at = loop.time()
        outcome.over.set()


async def _listen(head: Head, outcome: Outcome, deadline_s: float) -> None:
    plan = outcome.plan
    request = GenerationRequest(
        plan.prompt,
        plan.tokens_max,
        plan.sampling,
        plan.stop_ids,
        deadline_s,
        owner=plan.owner,
        prefix_owner=plan.owner,
    )
    try:
        async with aclosing(head.generate(request)) as events:
            async for event in events:
                if isinstance(event, TokenEvent):
                    outcome.tokens.append(event.token.token_id)
                    outcome.cached = event.cached_tokens
                    if outcome.first_token_at is None:
                        outcome.first_token_at = asyncio.get_running_loop().time()
                else:
                    outcome.finish, outcome.ending = event, Ending.FINISHED
                    outcome.endings += 1
                if plan.stalls_after == len(outcome.tokens) and not outcome.endings:
                    await asyncio.sleep(plan.stalls_s)
                if plan.leaves_after == len(outcome.tokens) and not outcome.endings:
                    outcome.ending = Ending.LEFT
                    return
    except GenerationFailed as failed:
        outcome.ending = Ending.FAILED
        outcome.endings += 1
        outcome.failure = f"{failed.code.value}: {failed}"
