"""Keys that are stored: what they open, what their limits refuse, and when not any more."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import httpx2
from tests.gateway.api import Gateway

from meshnet.gateway.allowance import Allowance, ApiKey, digest_of
from meshnet.gateway.errors import ApiError
from meshnet.gateway.settings import GatewaySettings


def stored(*keys: ApiKey) -> Gateway:
    return Gateway([1, 2, 0], settings=GatewaySettings(stored_keys=lambda: keys))


def key(name: str, **limits: Any) -> ApiKey:
    return ApiKey(name, digest_of(name), **limits)


async def ask(gateway: Gateway, who: str, path: str = "/v1/chat/completions") -> httpx2.Response:
    body = {"model": "default", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    headers = {"authorization": f"Bearer {who}"}
    return await gateway.send("POST", path, json=body, headers=headers)


async def test_a_stored_key_opens_the_api_and_another_does_not():
    gateway = stored(key("alice"))

    assert (await ask(gateway, "alice")).status_code == 200
    assert (await ask(gateway, "bob")).status_code == 401


async def test_with_no_key_stored_nobody_may_use_the_api():
    assert (await ask(stored(), "alice")).status_code == 401


async def test_a_key_that_was_revoked_opens_nothing():
    keys = [key("alice")]
    gateway = Gateway(settings=GatewaySettings(stored_keys=lambda: keys))
    assert (await ask(gateway, "alice")).status_code == 200

    keys.clear()

    assert (await ask(gateway, "alice")).status_code == 401


async def test_requests_over_a_keys_limit_are_told_when_to_come_again():
    gateway = stored(key("alice", requests_per_minute=2), key("bob"))

    statuses = [(await ask(gateway, "alice")).status_code for _ in range(2)]
    refused = await ask(gateway, "alice")

    assert statuses == [200, 200]
    assert refused.status_code == 429
    assert refused.headers["retry-after"] == "30"
    error = refused.json()["error"]
    assert (error["type"], error["code"]) == ("requests", "rate_limit_exceeded")
    assert (await ask(gateway, "bob")).status_code == 200


async def test_what_computes_nothing_is_not_counted():
    gateway = stored(key("alice", requests_per_minute=1))
    headers = {"authorization": "Bearer alice"}

    statuses = [
        (await gateway.send("GET", "/v1/models", headers=headers)).status_code for _ in range(3)
    ]

    assert statuses == [200, 200, 200]


async def test_tokens_of_prompt_and_answer_are_paid():
    gateway = stored(key("alice", tokens_per_minute=4))

    first = await ask(gateway, "alice")
    refused = await ask(gateway, "alice")

    used = first.json()["usage"]["total_tokens"]
    assert used >= 4
    assert refused.status_code == 429
    assert refused.json()["error"]["type"] == "tokens"
    assert int(refused.headers["retry-after"]) == (used + 1 - 4) * 15


async def test_answers_at_once_are_bounded_and_a_place_is_free_again_after_one():
    gateway = stored(key("alice", concurrent=1))

    both = await asyncio.gather(ask(gateway, "alice"), ask(gateway, "alice"))

    assert sorted(each.status_code for each in both) == [200, 429]
    assert (await ask(gateway, "alice")).status_code == 200


async def test_anthropics_clients_are_refused_in_their_own_words():
    gateway = stored(key("alice", requests_per_minute=1))
    await ask(gateway, "alice")

    refused = await ask(gateway, "alice", "/v1/messages")

    assert refused.status_code == 429
    assert refused.json()["error"]["type"] == "rate_limit_error"


def test_a_minute_gives_back_a_minutes_limit_and_no_more():
    now = [0.0]
    allowance, limited = Allowance(lambda: now[0]), key("alice", requests_per_minute=60)

    def granted() -> int:
        count = 0
        with suppress(ApiError):
            for count in range(1000):  # noqa: B007
                allowance.begin(limited)
        return count

    assert granted() == 60
    now[0] = 1.0
    assert granted() == 1
    now[0] = 1000.0
    assert granted() == 60
