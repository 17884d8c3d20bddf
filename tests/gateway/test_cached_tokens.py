"""What an earlier session held of a prompt is told in `usage`, and whose sessions are looked at."""

from __future__ import annotations

import json

import pytest
from tests.gateway.api import USER, Gateway

from meshnet.gateway.settings import GatewaySettings


def gateway(*, settings: GatewaySettings | None = None, cached: int = 7) -> Gateway:
    made = Gateway((104, 105, 0), settings=settings)
    made.generator.cached_tokens = cached
    return made


async def test_usage_tells_what_was_cached():
    answer = (await gateway().chat(max_tokens=3)).json()

    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 7}


async def test_the_usage_of_a_stream_tells_what_was_cached():
    fields = {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": 3}
    answer = await gateway().chat(**fields)
    told = [
        line.removeprefix("data: ") for line in answer.text.splitlines() if line[:6] == "data: "
    ]

    last = json.loads(told[-2])
    assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": 7}


async def test_an_answer_ended_by_a_stop_string_tells_it_too():
    answer = (await gateway().chat(max_tokens=3, stop=["i"])).json()

    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 7}


async def test_completions_add_up_what_their_prompts_found():
    body = {"model": "default", "prompt": ["ab", "cd"], "max_tokens": 2}
    answer = (await gateway(cached=1).send("POST", "/v1/completions", json=body)).json()

    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}


@pytest.mark.parametrize("keys", [(), ("first-key", "second-key")])
async def test_sessions_go_on_within_one_key(keys):
    """Pit A65. Whose sessions a prompt is compared with is decided here, by no field of it."""
    made = gateway(settings=GatewaySettings(api_keys=keys))
    for key in ("first-key", "second-key", "first-key"):
        headers = {"authorization": f"Bearer {key}"}
        body = {"model": "default", "messages": USER, "max_tokens": 2}
        answer = await made.send("POST", "/v1/chat/completions", json=body, headers=headers)
        assert answer.status_code == 200

    first, second, again = (request.prefix_owner for request in made.generator.requests)
    assert first is not None
    assert first == again
    assert (first == second) == (not keys)
