"""Who asks a registry over HTTP, from the first call to the last: no cookies, no proxy of the
environment, nothing unpacked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import TracebackType
from typing import Self

import aiohttp


class OverHttp(ABC):
    """An async context manager with an HTTP session while it is entered."""

    _entered: aiohttp.ClientSession | None = None

    @abstractmethod
    def _opened(self) -> aiohttp.ClientSession:
        """Open the session: `registry_session` with what this registry needs."""

    @property
    def _session(self) -> aiohttp.ClientSession:
        assert self._entered is not None, "entered before"
        return self._entered

    async def __aenter__(self) -> Self:
        self._entered = self._opened()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._session.close()


def registry_session(
    headers: Mapping[str, str],
    *,
    connect_s: float | None = None,
    connector: aiohttp.BaseConnector | None = None,
) -> aiohttp.ClientSession:
    """Every call has a deadline of its own, so there is no other than `connect_s`."""
    return aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_s),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        trust_env=False,
        headers=headers,
        skip_auto_headers=("User-Agent", "Accept-Encoding"),
    )
