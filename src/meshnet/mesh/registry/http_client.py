"""The registry of another gateway, over HTTP.

Invariants
    * every call ends within its deadline, a watch that hears nothing within its own: RegistryLost;
    * an answer is bounded before it is read; no redirect is followed, no proxy used.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar
from urllib.parse import quote

import aiohttp
from yarl import URL

from meshnet.core.vocabulary import BadField, Buffer, Member, NodeId
from meshnet.mesh.registry import messages
from meshnet.mesh.registry.http_server import PREFIX
from meshnet.mesh.registry.http_session import OverHttp, registry_session
from meshnet.mesh.registry.messages import Announcement, Write
from meshnet.mesh.registry.ports import (
    CALL_S,
    POLL_S,
    Change,
    RegistryLost,
    RegistryRefused,
    Resync,
    Revision,
    Snapshot,
    Versioned,
)

T = TypeVar("T")
_REFUSALS = (400, 401, 403, 404, 405, 413)

Exchange = Callable[[str, str, bytes, float], Awaitable[tuple[int, bytes]]]
"""(method, path, body, seconds) -> (status, body). Raises RegistryLost."""


class HttpRegistry:
    """Stateless: whatever carries its calls may come and go."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    async def announce(self, member: Member, ttl_s: float) -> None:
        body = messages.encode_announcement(Announcement(member, ttl_s))
        await self._call("PUT", "/members", _nothing, body=body)

    async def leave(self, node: NodeId) -> None:
        await self._call("DELETE", f"/members?node={quote(node, safe='')}", _nothing)

    async def snapshot(self) -> Snapshot:
        return await self._call("GET", "", messages.decode_snapshot)

    async def watch(self, since: Revision) -> AsyncIterator[Change | Resync]:
        while True:
            path = f"/changes?since={since}&wait_ms={POLL_S * 1000:.0f}"
            changes = await self._call(
                "GET", path, messages.decode_changes, timeout_s=POLL_S + CALL_S
            )
            if changes is None:
                yield Resync()
                return
            for change in changes:
                since = change.revision
                yield change

    async def get(self, key: str) -> Versioned | None:
        return await self._call("GET", _value_path(key), messages.decode_value)

    async def compare_and_set(
        self, key: str, expected: Revision | None, value: bytes | None
    ) -> bool:
        body = messages.encode_write(Write(expected, value))
        return await self._call("PUT", _value_path(key), messages.decode_written, body=body)

    async def _call(
        self,
        method: str,
        path: str,
        decode: Callable[[Buffer], T],
        *,
        body: bytes = b"",
        timeout_s: float = CALL_S,
    ) -> T:
        try:
            async with asyncio.timeout(timeout_s):
                status, answer = await self._exchange(method, PREFIX + path, body, timeout_s)
        except TimeoutError:
            raise RegistryLost(f"no answer within {timeout_s:g} s") from None
        if status in _REFUSALS:
            raise RegistryRefused(_message(status, answer))
        if status != 200:
            raise RegistryLost(_message(status, answer))
        try:
            return decode(answer)
        except BadField as error:
            raise RegistryLost(f"unreadable answer: {error}") from None


def _value_path(key: str) -> str:
    return f"/values?key={quote(key, safe='')}"


def _nothing(_: Buffer) -> None:
    """Any answer will do."""


def _message(status: int, body: bytes) -> str:
    try:
        message = json.loads(body[:4096])["message"]
    except (ValueError, KeyError, TypeError):
        return f"HTTP {status}: is that a gateway of meshnet?"
    return f"HTTP {status}: {str(message)[:500]}"


class HttpExchange(OverHttp):
    """Carries calls to the gateway at a URL; an async context manager."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None,
        dialled_with: Callable[[str], ssl.SSLContext | bool] = lambda url: True,
        told: Callable[[Exception], str] = lambda error: f"{type(error).__name__}: {error}",
    ) -> None:
        """`dialled_with`: aiohttp's `ssl` for a URL, it may raise ValueError; `told`: words."""
        self._url, self._dialled_with, self._told = url.rstrip("/"), dialled_with, told
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    def _opened(self) -> aiohttp.ClientSession:
        return registry_session(self._headers)

    async def __call__(
        self, method: str, path: str, body: bytes, timeout_s: float
    ) -> tuple[int, bytes]:
        """Raises RegistryLost."""
        url, limit = self._url + path, messages.ANSWER_LIMITS.json_bytes
        headers = {"Content-Type": "application/json"} if body else {}
        try:
            async with asyncio.timeout(timeout_s):
                async with self._session.request(
                    method,
                    URL(url, encoded=True),
                    data=body or None,
                    headers=headers,
                    allow_redirects=False,
                    ssl=self._dialled_with(self._url),
                ) as response:
                    answer = await response.content.read(limit + 1)
                    while len(answer) <= limit and not response.content.at_eof():
                        answer += await response.content.read(limit + 1 - len(answer))
        except TimeoutError:
            raise RegistryLost(f"{self._url}: no answer within {timeout_s:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise RegistryLost(f"{self._url}: {self._told(error)}") from None
        if len(answer) > limit:
            raise RegistryLost(f"{self._url}: an answer over {limit} bytes")
        return response.status, answer
