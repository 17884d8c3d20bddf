"""The members of one etcd, as one that is there as long as one of them answers.

    call ──▶ member ──refused, silent, no leader──▶ next member ──…──▶ RegistryLost
               └──token unknown──▶ a new one ──▶ the same member

Invariants
    * a call that changes something once only is not said twice: whoever does not hear the answer
      is told that it is lost;
    * an answer, and a line of a stream, is bounded before it is read; no redirect, no proxy;
    * the password goes to `/v3/auth/authenticate` alone, and into no message.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, field

import aiohttp

from meshnet.core.vocabulary import BadField, Buffer
from meshnet.mesh.registry import etcd_messages
from meshnet.mesh.registry.http_session import OverHttp, registry_session
from meshnet.mesh.registry.messages import ANSWER_LIMITS
from meshnet.mesh.registry.ports import CALL_S, RegistryLost, RegistryRefused

TRY_MIN_S = 1.5
"""Of one member: an election takes as long."""
CONNECT_S = 1.0
LINE_S = 20.0
"""A stream that says nothing for so long is ended, and asked for again."""
_HEADERS = {"Content-Type": "application/json", "Grpc-Metadata-hasleader": "true"}
"""A stream from a member without a leader shall end: it would be silent."""
_NOT_FOUND = 5
_REFUSALS = {
    3: "", 7: " Its role needs readwrite on the prefix of this mesh.", 9: "", 12: "", 16: "",
}  # fmt: skip
_NO_TOKEN = ("user name is empty", "revision of auth store is old", "invalid auth token")


class NotFound(RegistryRefused):
    """There is no such lease."""


class _Unheard(RegistryLost):
    """The call reached nobody: it can be said to another."""


@dataclass(frozen=True, slots=True)
class EtcdAccess:
    """Who asks; `tls` None: in the clear."""

    tls: ssl.SSLContext | None = None
    user: str | None = None
    password: str = field(default="", repr=False)


class EtcdGateway(OverHttp):
    """An async context manager. Raises RegistryLost and RegistryRefused."""

    def __init__(self, endpoints: tuple[str, ...], access: EtcdAccess) -> None:
        """`endpoints` are the URLs of the members for clients."""
        self._endpoints, self._access = endpoints, access
        self._at = 0
        self._token: str | None = None

    def _opened(self) -> aiohttp.ClientSession:
        tls = self._access.tls
        connector = aiohttp.TCPConnector(ssl=True if tls is None else tls)
        return registry_session({}, connect_s=CONNECT_S, connector=connector)

    async def call(self, path: str, body: bytes, *, once: bool = False) -> bytes:
        """Return the answer of a member; `once`: what it does must not be done twice."""
        tries = max(2, len(self._endpoints))
        within_s = CALL_S if once else max(TRY_MIN_S, CALL_S / tries)
        for left in reversed(range(tries)):
            member = self._member
            try:
                return await self._permitted(member, path, body, within_s)
            except RegistryLost as error:
                self._leave(member)
                if not left or (once and not isinstance(error, _Unheard)):
                    raise
        raise AssertionError("the last try returns or raises")

    async def stream(self, path: str, body: bytes) -> AsyncGenerator[bytes, None]:
        """Yield the lines of a member's answer until it has been silent for LINE_S."""
        member, begun = self._member, False
        try:
            if self._access.user is not None and self._token is None:
                await self._authenticate(member, CALL_S)
            async with aclosing(self._lines(member, path, body)) as lines:
                while True:
                    try:
                        async with asyncio.timeout(LINE_S if begun else CALL_S):
                            line = await anext(lines)
                    except TimeoutError:
                        if begun:
                            return
                        raise RegistryLost(f"{member}: no answer within {CALL_S:g} s") from None
                    begun = True
                    yield line
        except RegistryRefused:
            self._token = None  # it may be too old; whoever watches comes again with a new one
            raise
        except RegistryLost:
            self._leave(member)
            raise

    @property
    def _member(self) -> str:
        return self._endpoints[self._at]

    def _leave(self, member: str) -> None:
        """Ask another one from now on, unless somebody did already."""
        if member == self._member:
            self._at = (self._at + 1) % len(self._endpoints)

    async def _permitted(self, member: str, path: str, body: bytes, within_s: float) -> bytes:
        """Say it with a token, if there is a user; with a new one, if that one is too old."""
        if self._access.user is None:
            return await self._said(member, path, body, within_s)
        if self._token is not None:
            try:
                return await self._said(member, path, body, within_s)
            except RegistryRefused as error:
                if not any(words in str(error) for words in _NO_TOKEN):
                    raise
        await self._authenticate(member, within_s)
        return await self._said(member, path, body, within_s)

    async def _authenticate(self, member: str, within_s: float) -> None:
        assert self._access.user is not None
        self._token = None
        said = etcd_messages.authenticate(self._access.user, self._access.password)
        answer = await self._said(member, "/v3/auth/authenticate", said, within_s)
        try:
            self._token = etcd_messages.token(answer)
        except BadField as error:
            raise RegistryLost(f"{member}: unreadable answer: {error}") from None

    async def _said(self, member: str, path: str, body: bytes, within_s: float) -> bytes:
        try:
            async with asyncio.timeout(within_s), self._post(member + path, body) as response:
                answer = await _bounded(response)
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            raise _lost(member, error, within_s) from None
        if response.status != 200:
            raise _trouble(member, answer, response.status)
        return answer

    async def _lines(self, member: str, path: str, body: bytes) -> AsyncGenerator[bytes, None]:
        rest = bytearray()
        try:
            async with self._post(member + path, body) as response:
                if response.status != 200:
                    raise _trouble(member, await _bounded(response), response.status)
                async for part in response.content.iter_any():
                    rest += part
                    if len(rest) > ANSWER_LIMITS.json_bytes:
                        raise ValueError(f"a line over {ANSWER_LIMITS.json_bytes} bytes")
                    if b"\n" not in part:
                        continue
                    *lines, rest = rest.split(b"\n")
                    for line in lines:
                        if line.startswith(b'{"error"'):
                            raise _trouble(member, line, response.status)
                        yield bytes(line)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _lost(member, error, CONNECT_S) from None
        raise RegistryLost(f"{member}: the watch ended")

    def _post(self, url: str, body: bytes) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        headers = _HEADERS if self._token is None else {**_HEADERS, "Authorization": self._token}
        return self._session.post(url, data=body, headers=headers, allow_redirects=False)


def _lost(member: str, error: Exception, within_s: float) -> RegistryLost:
    if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
        return _Unheard(f"{member}: {type(error).__name__}: {error}")
    if isinstance(error, TimeoutError):
        return RegistryLost(f"{member}: no answer within {within_s:g} s")
    return RegistryLost(f"{member}: {type(error).__name__}: {error}")


def _trouble(member: str, answer: Buffer, status: int) -> RegistryLost | RegistryRefused:
    code, said = etcd_messages.trouble(answer)
    message = f"{member}: {said}"
    if code == _NOT_FOUND:
        return NotFound(message)
    if code in _REFUSALS:
        return RegistryRefused(message + _REFUSALS[code])
    return RegistryLost(f"{message} (HTTP {status}, code {code})")


async def _bounded(response: aiohttp.ClientResponse) -> bytes:
    limit = ANSWER_LIMITS.json_bytes
    answer = bytearray()
    async for part in response.content.iter_any():
        answer += part
        if len(answer) > limit:
            raise ValueError(f"an answer over {limit} bytes")
    return bytes(answer)
