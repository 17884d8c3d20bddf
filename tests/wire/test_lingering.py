"""An ended session may stay, whichever way its head says so, and goes on by either."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import httpx2
import pytest
from tests.wire.echoing import LIMITS, NODE, EchoService, decode, serving

from meshnet.core.protocol.messages import Reserved, ReserveRequest
from meshnet.core.vocabulary import ModelId, SessionId
from meshnet.wire.http_client import HttpHopClient

S, NEW = SessionId("s"), SessionId("new")
ADOPTING = replace(decode(), session=NEW, prefix="00112233445566ff", adopt=S)


@dataclass
class Keeping(EchoService):
    """Writes down how sessions ended, and what was reserved."""

    ended: list[tuple[SessionId, bool]] = field(default_factory=list)
    reserved: list[ReserveRequest] = field(default_factory=list)

    def release(
        self, session: SessionId, model: ModelId | None = None, *, linger: bool = False
    ) -> None:
        self.ended.append((session, linger))

    async def reserve(self, request: ReserveRequest) -> Reserved:
        self.reserved.append(request)
        return Reserved(request.session, request.tokens)


@asynccontextmanager
async def talking(service: Keeping, *, streams: bool) -> AsyncIterator[HttpHopClient]:
    async with serving(service) as url, HttpHopClient({NODE: url}, limits=LIMITS) as hops:
        if streams:
            await hops.describe(NODE, timeout_s=10)
        yield hops


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("linger", [False, True])
async def test_a_release_says_whether_the_session_may_stay(streams: bool, linger: bool):
    service = Keeping()
    async with talking(service, streams=streams) as hops:
        await hops.forward(NODE, decode(), timeout_s=10)
        await hops.release(NODE, S, timeout_s=10, linger=linger)

    assert service.ended == [(S, linger)]


@pytest.mark.parametrize("streams", [False, True])
async def test_a_step_that_adopts_arrives_as_it_was_asked(streams: bool):
    service = Keeping()
    async with talking(service, streams=streams) as hops:
        await hops.forward(NODE, ADOPTING, timeout_s=10)

    assert service.seen == [ADOPTING]


async def test_a_reservation_tells_which_session_it_is_for():
    service, asked = Keeping(), ReserveRequest(NEW, 700, adopt=S)
    async with talking(service, streams=False) as hops:
        await hops.reserve(NODE, asked, timeout_s=10)

    assert service.reserved == [asked]


async def test_a_wrong_word_for_lingering_ends_nothing():
    service = Keeping()
    async with serving(service) as url, httpx2.AsyncClient() as stranger:
        told = await stranger.delete(f"{url}/sessions/s", headers={"x-meshnet-linger": "yes"})

    assert told.status_code == 400
    assert service.ended == []
