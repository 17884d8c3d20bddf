"""Streaming chats of a client that watches closely, and what may be said of each one's end.

A stream ends RIGHT (all of it as in the undisturbed run), FAILED (right so far, then one clear
error, and no finish), CUT (right so far, then the connection was lost because its head died),
LEFT (right so far, then the client went), or it is a fault of ours: WRONG, or a HANG.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import Any

import httpx2
from tests.cluster.api import Told, body_of

GRACE_S = 15.0
"""What a stream may take beyond its request's deadline: a busy machine, and the way."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One chat, which has the same answer each time."""

    prompt: str
    tokens: int
    temperature: float = 0.0
    seed: int = 0
    top_k: int = 0
    """Few candidates, so that no draw is so near to another that rounding decides."""

    def body(self) -> dict[str, Any]:
        return body_of(
            self.prompt,
            self.tokens,
            temperature=self.temperature,
            seed=self.seed,
            top_k=self.top_k,
            stream=True,
            logprobs=True,
            stream_options={"include_usage": True},
        )


class End(Enum):
    """How the connection of a stream ended."""

    WHOLE = "whole"
    LOST = "lost"
    LEFT = "left"
    LATE = "late"
    """Neither by its deadline nor after a grace."""


@dataclass
class Answer:
    """What came of one chat; `status` is None if no answer began."""

    ask: Ask
    head: str
    told: Told = field(default_factory=Told)
    status: int | None = None
    refusal: Any = None
    end: End = End.WHOLE
    began_at: float = 0.0
    ended_at: float = 0.0

    @property
    def gaps_s(self) -> list[float]:
        """Times between two tokens, as the client read them."""
        at = self.told.arrivals
        return [b - a for a, b in pairwise(at)]


class Verdict(Enum):
    RIGHT = "right"
    FAILED = "failed"
    CUT = "cut"
    LEFT = "left"
    WRONG = "wrong"
    HANG = "hang"


class Leaving(Exception):
    """Raised by `seen`: the client has read enough and goes, without a word."""


async def stream(
    client: httpx2.AsyncClient,
    ask: Ask,
    *,
    head: str,
    url: str,
    deadline_s: float,
    seen: Callable[[int], None] = lambda count: None,
) -> Answer:
    """Stream one chat to its end, whatever that is; `seen` is told of every token, from 1."""
    answer = Answer(ask, head, began_at=time.monotonic())
    try:
        async with asyncio.timeout(deadline_s + GRACE_S):
            await _read(client, url, answer, seen)
    except TimeoutError:
        answer.end = End.LATE
    except httpx2.HTTPError:
        answer.end = End.LOST
    except Leaving:
        answer.end = End.LEFT
    answer.ended_at = time.monotonic()
    return answer


async def _read(
    client: httpx2.AsyncClient, url: str, answer: Answer, seen: Callable[[int], None]
) -> None:
    told = answer.told
    async with client.stream(
        "POST", f"{url}/v1/chat/completions", json=answer.ask.body(), timeout=None
    ) as response:
        answer.status = response.status_code
        if response.status_code != 200:
            answer.refusal = _json_or_text((await response.aread()).decode(errors="replace"))
            return
        async for line in response.aiter_lines():
            before = len(told.tokens)
            told.take(line)
            for count in range(before, len(told.tokens)):
                seen(count + 1)


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def judge(answer: Answer, calm: Told, *, head_died: bool) -> tuple[Verdict, str]:
    """Compare an answer with that of the undisturbed run; say what it is, and why."""
    told = answer.told
    if told.tokens != calm.tokens[: len(told.tokens)]:
        return Verdict.WRONG, f"another token at {_first_difference(told, calm)}"
    if not calm.text.startswith(told.text):
        return Verdict.WRONG, "another text"
    match answer.end:
        case End.LATE:
            return Verdict.HANG, f"no end in time, {len(told.tokens)} tokens"
        case End.WHOLE:
            return _judge_whole(answer, calm)
        case End.LEFT | End.LOST if told.finishes and not _has_all_tokens(told, calm):
            return Verdict.WRONG, f"a finish after {len(told.tokens)} tokens"
        case End.LOST if not head_died:
            return Verdict.WRONG, "the connection was lost, and its head lives"
        case End.LOST:
            return Verdict.CUT, ""
        case End.LEFT:
            return Verdict.LEFT, ""


def _judge_whole(answer: Answer, calm: Told) -> tuple[Verdict, str]:
    """The stream ended by itself: it is complete, or tells one clear error and no finish."""
    told = answer.told
    if _has_all_tokens(told, calm) and (told.usages, told.ended, told.errors) == (
        calm.usages, 1, [],
    ):  # fmt: skip
        return Verdict.RIGHT, ""
    if told.finishes or (told.ended and not told.errors):
        return Verdict.WRONG, f"a clean-looking end after {len(told.tokens)} tokens"
    errors = told.errors
    if answer.status != 200:
        refusal = answer.refusal
        errors = [refusal.get("error")] if isinstance(refusal, Mapping) else []
    if answer.status == 409 or len(errors) != 1 or not _is_clear(errors[0]):
        return Verdict.WRONG, f"HTTP {answer.status}, expected one clear error, got {errors}"
    return Verdict.FAILED, f"{answer.status} {errors[0]['code']}: {errors[0]['message']}"


def _has_all_tokens(told: Told, calm: Told) -> bool:
    return (told.tokens, told.text, told.finishes) == (calm.tokens, calm.text, calm.finishes)


def _is_clear(error: Any) -> bool:
    return (
        isinstance(error, Mapping)
        and all(isinstance(error.get(name), str) for name in ("message", "type", "code"))
        and bool(error["message"])
    )


def _first_difference(told: Told, calm: Told) -> str:
    for place, (got, expected) in enumerate(zip(told.tokens, calm.tokens, strict=False), start=1):
        if got != expected:
            return f"{place} of {len(calm.tokens)}"
    return f"{len(calm.tokens) + 1}, where there is none"
