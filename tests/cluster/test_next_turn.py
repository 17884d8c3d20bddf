"""Two turns of a chat over the API, with processes of their own for nodes and gateway."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import httpx2
import pytest
from tests.processes import gateway, nodes

QUESTION = "The quick brown fox jumps over the lazy dog. Every machine holds a range of layers."
KEYS = ("first-key", "second-key", "third-key")
MODELS = [("tiny_model_dir", ("0-2", "2-4")), ("smollm2_dir", ("0-15", "15-30"))]


class Chat:
    """A conversation of one key with one gateway."""

    def __init__(self, url: str, key: str) -> None:
        self._url, self._key = url, key
        self.messages: list[dict[str, str]] = []

    async def say(self, content: str, **fields: Any) -> dict[str, Any]:
        self.messages.append({"role": "user", "content": content})
        body = {
            "model": "default",
            "messages": self.messages,
            "temperature": 0,
            "max_tokens": 24,
            "ignore_eos": True,
        }
        headers = {"authorization": f"Bearer {self._key}"}
        async with httpx2.AsyncClient(timeout=240) as client:
            url = f"{self._url}/v1/chat/completions"
            answer = (await client.post(url, json=body | fields, headers=headers)).json()
        self.messages.append(answer["choices"][0]["message"])
        told: dict[str, Any] = answer
        return told


def cached(answer: dict[str, Any]) -> int:
    count: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return count


@pytest.mark.parametrize(
    ("model", "ranges"),
    [MODELS[0], pytest.param(*MODELS[1], marks=pytest.mark.slow)],
    ids=["tiny", "smollm2"],
)
async def test_a_second_turn_is_cached_for_its_key_and_reads_as_if_it_were_not(
    request: pytest.FixtureRequest, model: str, ranges: tuple[str, ...]
):
    """Pit A65. A template writes each turn anew, and the ids go on all the same."""
    path = request.getfixturevalue(model)
    with ExitStack() as stack:
        serving = stack.enter_context(nodes(path, ranges))
        urls = [node.url for node in serving]
        head = stack.enter_context(gateway(path, urls, MESHNET_API_KEYS=",".join(KEYS)))
        mine, theirs, cold = (Chat(head.url, key) for key in KEYS)

        first, other = await mine.say(QUESTION), await theirs.say(QUESTION)
        assert (cached(first), cached(other)) == (0, 0)
        second = await mine.say("And why?")
        cold.messages = mine.messages[:2]
        again = await cold.say("And why?")

    assert second["choices"][0]["message"] == again["choices"][0]["message"]
    assert cached(again) == 0
    assert first["usage"]["prompt_tokens"] <= cached(second) < second["usage"]["prompt_tokens"]
