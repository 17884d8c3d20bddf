"""How far other nodes are: round trip and bandwidth, measured by questions without work.

    POST /link   a body of at most LINK_BYTES_MAX, dropped; 204

    n empty bodies          -> round trip: their lower quartile, less that of the same on loopback
    64 KiB, then 2 * 1 MiB  -> bandwidth, of the last; not the large ones where the small is slow

Both ends' Python takes longer than a near wire, so what a question takes within this process is
taken off: a link tells what the way adds, and a node tells the rest of a step by itself.

Invariants
    * one link is measured at a time, by at most 64 KiB + 2 MiB, within DEADLINE_S;
    * a node that cannot be asked, or is too old to know the question, has no link: unknown.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from meshnet.core.protocol.limits import LINK_BYTES_MAX
from meshnet.core.vocabulary import HopLost, Link, MeshnetError, NodeId
from meshnet.wire.serving import bind, serve_socket
from meshnet.wire.tls import MeshTls, dialled_with

SMALL_BYTES = 2**16
QUESTIONS = 15
DEADLINE_S = 10.0
LARGE_IN_S = 1.0
"""The large bodies are sent if by the small one's rate each takes less."""
REFRESH_S = 900.0
ROUND_S = 5.0
"""How soon a node that could not be asked is asked again."""
SHORTEST_S = 1e-6
FAILURES = (MeshnetError, aiohttp.ClientError, TimeoutError, OSError, ValueError)


class LinkBook:
    """The ways from this process to the nodes it knows; `links` may be read at any time."""

    def __init__(
        self, urls: Callable[[], Mapping[NodeId, str]], *, token: str | None,
        clock: Callable[[], float], timer: Callable[[], float] = time.perf_counter,
        tls: MeshTls | None = None,
    ) -> None:  # fmt: skip
        """`urls` tells whom to measure, at each round; `clock` how old a link is."""
        self._urls, self._clock, self._timer, self._tls = urls, clock, timer, tls
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._known: dict[NodeId, tuple[float, Link]] = {}
        self._own_s: float | None = None

    @property
    def links(self) -> tuple[Link, ...]:
        """The links to nodes that are known now, in the order in which they were told of."""
        return tuple(self._known[node][1] for node in self._urls() if node in self._known)

    async def keep(self, tell: Callable[[tuple[Link, ...]], None] = lambda links: None) -> None:
        """Measure what is new or old and tell all links, until cancelled."""
        while True:
            await self.round()
            tell(self.links)
            await asyncio.sleep(ROUND_S)

    async def round(self) -> None:
        """Measure each link that is not known or was measured long ago."""
        due = {node: url for node, url in self._urls().items() if self._is_due(node)}
        if not due:
            return
        async with _session(self._headers) as http:
            if self._own_s is None:
                self._own_s = await self._own(http)
            if self._own_s is None:
                return
            for node, url in due.items():
                try:
                    async with asyncio.timeout(DEADLINE_S):
                        link = await self._measured(http, node, url, self._own_s)
                except FAILURES:
                    continue
                self._known[node] = (self._clock(), link)

    async def _own(self, http: aiohttp.ClientSession) -> float | None:
        """Return the time of a question within this process; None: it could not be asked now."""
        try:
            async with asyncio.timeout(DEADLINE_S), _loopback() as url:
                return await self._question_s(http, url)
        except (*FAILURES, ExceptionGroup):
            return None

    def _is_due(self, node: NodeId) -> bool:
        known = self._known.get(node)
        return known is None or self._clock() - known[0] >= REFRESH_S

    async def _measured(
        self, http: aiohttp.ClientSession, node: NodeId, url: str, own_s: float
    ) -> Link:
        round_trip_s = await self._question_s(http, url)
        taken_s, size = await self._sent_s(http, url, SMALL_BYTES), SMALL_BYTES
        if (taken_s - round_trip_s) * (LINK_BYTES_MAX / SMALL_BYTES) < LARGE_IN_S:
            size = LINK_BYTES_MAX
            for _ in range(2):  # the first widens the connection's window for the second
                taken_s = await self._sent_s(http, url, size)
        return Link(
            node=node,
            round_trip_s=max(0.0, round_trip_s - own_s),
            bytes_per_s=size / max(SHORTEST_S, taken_s - round_trip_s),
        )

    async def _question_s(self, http: aiohttp.ClientSession, url: str) -> float:
        """Return the time of an empty question, over a connection that is open already.

        The lower quartile: both ends may be at work meanwhile.
        """
        await self._sent_s(http, url, 0)
        times = [await self._sent_s(http, url, 0) for _ in range(QUESTIONS)]
        return sorted(times)[QUESTIONS // 4]

    async def _sent_s(self, http: aiohttp.ClientSession, url: str, size: int) -> float:
        began = self._timer()
        address = f"{url.rstrip('/')}/link"
        secured = dialled_with(self._tls, address)
        async with http.post(
            address, data=bytes(size), allow_redirects=False, ssl=secured
        ) as response:
            if response.status != 204:
                raise HopLost(f"{url}: HTTP {response.status} for /link")
        return self._timer() - began


@asynccontextmanager
async def _session(headers: Mapping[str, str]) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=DEADLINE_S),
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,
        headers=headers,
        skip_auto_headers=("User-Agent", "Accept-Encoding"),
    ) as http:
        yield http


@asynccontextmanager
async def _loopback() -> AsyncIterator[str]:
    """Serve the same question in this process; yields its base URL."""
    listener = bind("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(serve_socket(_answer, listener))
        try:
            yield url
        finally:
            serving.cancel()


async def _answer(scope: Any, receive: Any, send: Any) -> None:
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})
