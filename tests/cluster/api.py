"""What a client of the API and an operator of the nodes see, read whole over real HTTP."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import httpx2
from prometheus_client.parser import text_string_to_metric_families
from tests.reference import prompt_ids, stop_ids, unsplit_greedy
from transformers import AutoTokenizer

ANSWER_DEADLINE_S = 240.0
POLL_S = 0.05
NARROW = [(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)]
"""With these options, and tokens as WIDE as can be, a stream is never far ahead of its reader: the
gateway generates no further than its client reads, but for what fits between their sockets."""
WIDE: dict[str, Any] = {"logprobs": True, "top_logprobs": 20}


@dataclass
class Told:
    """One streamed answer, as it came."""

    text: str = ""
    tokens: list[tuple[int, ...]] = field(default_factory=list)
    """The bytes of each token, by the log-probabilities that came with it."""
    arrivals: list[float] = field(default_factory=list)
    finishes: list[str] = field(default_factory=list)
    usages: list[dict[str, Any]] = field(default_factory=list)
    errors: list[Any] = field(default_factory=list)
    ended: int = 0
    """How often `[DONE]` came."""

    @property
    def worst_gap_s(self) -> float:
        return max(b - a for a, b in zip(self.arrivals, self.arrivals[1:], strict=False))

    def take(self, line: str) -> None:
        """Read one line of the event stream."""
        if not line.startswith("data:"):
            return
        data = line.removeprefix("data:").strip()
        if data == "[DONE]":
            self.ended += 1
            return
        chunk = json.loads(data)
        if "error" in chunk:
            self.errors.append(chunk["error"])
        if chunk.get("usage"):
            self.usages.append(chunk["usage"])
        for choice in chunk.get("choices", ()):
            self._choice(choice)

    def _choice(self, choice: dict[str, Any]) -> None:
        self.text += choice["delta"].get("content") or ""
        if choice["finish_reason"] is not None:
            self.finishes.append(choice["finish_reason"])
        entries = (choice.get("logprobs") or {}).get("content") or []
        self.tokens += [tuple(entry["bytes"]) for entry in entries]
        self.arrivals += [time.monotonic()] * len(entries)


def body_of(prompt: str, tokens: int, **fields: Any) -> dict[str, Any]:
    """A greedy chat of exactly `tokens` tokens."""
    return {
        "model": "default",
        "messages": [{"role": "user", "content": prompt}],
        "temperature": 0,
        "max_tokens": tokens,
        "ignore_eos": True,
        **fields,
    }


async def streamed(
    url: str, prompt: str, tokens: int, *, seen: Callable[[int], None] = lambda count: None
) -> Told:
    """Stream one greedy chat; `seen` is told of every token, by its number from 1.

    While it is told of one in the first half of 240 or more, the chat is under way.
    """
    told = Told()
    body = body_of(prompt, tokens, stream=True, stream_options={"include_usage": True}, **WIDE)
    narrow = httpx2.AsyncHTTPTransport(socket_options=NARROW)
    async with (
        httpx2.AsyncClient(timeout=ANSWER_DEADLINE_S, transport=narrow) as client,
        client.stream("POST", f"{url}/v1/chat/completions", json=body) as response,
    ):
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            before = len(told.tokens)
            told.take(line)
            for count in range(before, len(told.tokens)):
                seen(count + 1)
    return told


async def answered(url: str, prompt: str, tokens: int) -> str:
    """The text of one greedy chat, not streamed."""
    async with httpx2.AsyncClient(timeout=ANSWER_DEADLINE_S) as client:
        response = await client.post(f"{url}/v1/chat/completions", json=body_of(prompt, tokens))
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["message"]["content"])


@lru_cache(maxsize=64)
def expected_text(model: Path, prompt: str, tokens: int) -> str:
    """What transformers' own `generate` says, unsplit; `ignore_eos` bans the stop ids."""
    ids = unsplit_greedy(model, prompt_ids(model, prompt), tokens, banned=stop_ids(model))
    return str(AutoTokenizer.from_pretrained(model).decode(ids, skip_special_tokens=True))


def get(url: str) -> Any:
    """The JSON at `url`."""
    response = httpx2.get(url, timeout=30)
    assert response.status_code == 200, response.text
    return response.json()


def counted(url: str, name: str, *labels: str) -> Counter[tuple[str, ...]]:
    """Samples of one counter of a process's `/metrics`, by the values of `labels`."""
    return samples(httpx2.get(f"{url}/metrics", timeout=30).text, name, *labels)


def samples(exposition: str, name: str, *labels: str) -> Counter[tuple[str, ...]]:
    """Samples of one counter in what `/metrics` told, by the values of `labels`."""
    found: Counter[tuple[str, ...]] = Counter()
    for family in text_string_to_metric_families(exposition):
        for sample in family.samples:
            if sample.name == name:
                found[tuple(sample.labels[label] for label in labels)] += int(sample.value)
    return found


async def until(condition: Callable[[], bool], what: str, *, deadline_s: float = 60.0) -> None:
    """Return once `condition` holds; fail at the deadline. It is asked off the event loop."""
    try:
        async with asyncio.timeout(deadline_s):
            while not await asyncio.to_thread(condition):  # noqa: ASYNC110  # another process
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise AssertionError(f"not within {deadline_s:g} s: {what}") from None
