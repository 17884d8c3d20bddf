"""The feed: everybody gets the latest, and nobody is waited for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest
from tests.gateway.api import Gateway, error
from tests.page.meshes import with_feed

from meshnet.cli.live.feed import FOLLOWERS_MAX, STEPS_MAX, Crowded, Feed, Happening, Values
from meshnet.gateway.settings import GatewaySettings

DIED = Happening("died", "bad", "node-2 died", "node-2")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def batch(followed: AsyncGenerator[Values, None]) -> Values:
    async with asyncio.timeout(30):
        return await anext(followed)


async def test_who_comes_later_hears_what_happened_before_and_when():
    clock = Clock()
    feed = Feed(clock)
    feed.happened(DIED)
    clock.now = 2.5

    async with aclosing(feed.follow()) as followed:
        first = await batch(followed)

    (told,) = first["happenings"]
    assert (told["text"], told["ago_s"], told["level"]) == ("node-2 died", 2.5, "bad")
    assert first["mesh"] is None


async def test_steps_are_told_to_those_who_follow_and_to_nobody_later():
    feed = Feed(Clock())
    feed.step({"ms": 1})

    async with aclosing(feed.follow()) as followed:
        assert (await batch(followed))["steps"] == []
        feed.step({"ms": 2})
        feed.mesh({"ready": True})
        second = await batch(followed)
        assert (second["steps"], second["mesh"]) == ([{"ms": 2}], {"ready": True})

    assert not feed.followed


async def test_a_slow_follower_gets_the_latest_and_how_many_it_missed():
    feed = Feed(Clock())
    async with aclosing(feed.follow()) as followed:
        await batch(followed)
        for number in range(STEPS_MAX + 3):
            feed.step({"ms": number})
        told = await batch(followed)

    assert told["missed"] == 3
    assert [told["steps"][0]["ms"], told["steps"][-1]["ms"]] == [3, STEPS_MAX + 2]


async def test_only_so_many_follow_and_a_place_is_free_again():
    feed = Feed(Clock())
    following = [feed.follow() for _ in range(FOLLOWERS_MAX)]
    for each in following:
        await batch(each)

    with pytest.raises(Crowded):
        feed.follow()
    await following.pop().aclose()
    following.append(feed.follow())
    await batch(following[-1])
    for each in following:
        await each.aclose()


async def test_closing_ends_what_everybody_follows():
    feed = Feed(Clock())
    followed = feed.follow()
    await batch(followed)

    feed.close()

    assert [each async for each in followed] == []
    with pytest.raises(Crowded):
        feed.follow()


async def test_the_feed_is_opened_by_a_key_of_the_api_and_refused_when_crowded():
    gateway = Gateway(settings=GatewaySettings(api_keys=("key",)))
    feed = with_feed(gateway)
    feed.close()
    key = {"authorization": "Bearer key"}

    assert (await gateway.send("GET", "/mesh/live")).status_code == 401
    crowded = await gateway.send("GET", "/mesh/live", headers=key)
    assert crowded.status_code == 503
    assert error(crowded)["code"] == "overloaded"
