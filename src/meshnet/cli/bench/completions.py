"""A streamed `/v1/completions`, timed: how a client sees meshnet, and every server that speaks it.

Invariant: the clock starts before the request is written and each arrival is taken when its
piece of text is read, so that all servers are measured from the same side of the same socket.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from meshnet.cli.bench.side import Stream, unheard
from meshnet.core.vocabulary import MeshnetError

LINE_BYTES_MAX = 4 * 2**20


class CompletionFailed(MeshnetError):
    """A server refused, broke off, or generated another number of tokens than it was asked for."""


def completion_body(model: str, prompt: Sequence[int], tokens: int) -> dict[str, Any]:
    """Return a greedy request that no stop id of the model ends early."""
    return {
        "model": model,
        "prompt": list(prompt),
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def streamed_completion(
    http: aiohttp.ClientSession,
    url: str,
    body: Mapping[str, Any],
    heard: Callable[[], None] = unheard,
) -> Stream:
    """Post `body` and read its stream to the end. Raises CompletionFailed."""
    reading = Reading(time.perf_counter)
    try:
        async with http.post(f"{url}/v1/completions", json=body) as response:
            if response.status != 200:
                raise CompletionFailed(f"{url}: HTTP {response.status}: {await response.text()}")
            async for line in _lines(response):
                if reading.line(line):
                    heard()
    except aiohttp.ClientError as error:
        raise CompletionFailed(f"{url}: {type(error).__name__}: {error}") from error
    return reading.stream(int(body["max_tokens"]))


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    pending = b""
    async for chunk in response.content.iter_any():
        *whole, pending = (pending + chunk).split(b"\n")
        if len(pending) > LINE_BYTES_MAX:
            raise CompletionFailed(f"a line of more than {LINE_BYTES_MAX} bytes")
        for line in whole:
            yield line


@dataclass(slots=True)
class Reading:
    """What the lines of a stream have told so far."""

    clock: Callable[[], float]
    at_s: list[float] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    tokens: int | None = None

    def __post_init__(self) -> None:
        self._began = self.clock()

    _began: float = 0.0

    def line(self, line: bytes) -> bool:
        """Take one line; return whether it carried text. Raises CompletionFailed."""
        data = line.strip().removeprefix(b"data: ")
        if data == line.strip() or data == b"[DONE]":
            return False
        event = json.loads(data)
        if "error" in event:
            raise CompletionFailed(f"the stream ended with {event['error']}")
        if usage := event.get("usage"):
            self.tokens = int(usage["completion_tokens"])
        text = "".join(choice.get("text") or "" for choice in event.get("choices", ()))
        if text:
            self.at_s.append(self.clock() - self._began)
            self.text.append(text)
        return bool(text)

    def stream(self, asked: int) -> Stream:
        """Return what was read. Raises CompletionFailed unless it is `asked` tokens."""
        if self.tokens != asked:
            raise CompletionFailed(f"asked for {asked} tokens, got {self.tokens}")
        # A token may have no text of its own: then the end of the answer is its arrival.
        at_s = self.at_s[:asked] or [self.clock() - self._began]
        return Stream(asked, tuple(at_s), "".join(self.text))
