"""Which streams a head has open, to whom it opens one, and when it goes on without.

A node that says `stream` in its description gets one stream per session, opened before the first
step that a stream can carry. Where none can be opened the step is a request, as for an old node,
and the node is left in peace for RETRY_S. A stream that broke is gone from here at once, so
the next step opens another.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import replace

from websockets.exceptions import InvalidURI
from yarl import URL

from meshnet.core.protocol.frames import Ending, fits
from meshnet.core.protocol.limits import Limits
from meshnet.core.protocol.messages import ForwardRequest
from meshnet.core.protocol.opening import Opening
from meshnet.core.vocabulary import HopLost, NodeDescription, NodeId, SessionId
from meshnet.wire.stream_client import SessionStream, StreamRefused
from meshnet.wire.tls import MeshTls

STREAMS_MAX = 1024
RETRY_S = 5.0

Key = tuple[NodeId, SessionId]


class StreamPool:
    """One head's streams, by node and session."""

    def __init__(
        self,
        urls: Mapping[NodeId, str],
        authorization: dict[str, str],
        limits: Limits,
        *,
        onward: bool = False,
        tls: MeshTls | None = None,
    ) -> None:
        """With `onward` the streams are those of a node, which hands steps on."""
        self._onward, self._tls = onward, tls
        self._urls, self._authorization, self._limits = urls, authorization, limits
        self._streams: dict[Key, SessionStream] = {}
        self._opening: dict[Key, asyncio.Future[None]] = {}
        self._offered: set[NodeId] = set()
        self._refused_until: dict[NodeId, float] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._streams)

    def learn(self, node: NodeId, description: NodeDescription) -> None:
        """Note whether the node has streams."""
        if description.stream:
            self._offered.add(node)
        else:
            self._offered.discard(node)

    def trust(self, node: NodeId) -> None:
        """Take for granted that the node has streams."""
        self._offered.add(node)

    def held(self, node: NodeId, request: ForwardRequest) -> SessionStream | None:
        """Return the open stream that can carry this step. One look-up: a token passes here."""
        if request.session is None or not fits(request):
            return None
        stream = self._streams.get((node, request.session))
        if stream is None or stream.opening.covers(request):
            return stream
        stream.lose("the next step is for other weights")
        return None

    def wanted(self, node: NodeId, request: ForwardRequest) -> bool:
        """Whether a stream is to be opened for this step, if there is none."""
        if node not in self._offered or self._closed or not fits(request):
            return False
        if len(self._streams) + len(self._opening) >= STREAMS_MAX:
            return False
        return asyncio.get_running_loop().time() >= self._refused_until.get(node, 0.0)

    async def opened(self, node: NodeId, request: ForwardRequest) -> SessionStream | None:
        """Open a stream for this step, if the node has one for it."""
        if not self.wanted(node, request):
            return None
        assert request.session is not None
        key = (node, request.session)
        if (other := self._opening.get(key)) is not None:
            await asyncio.shield(other)
            return self.held(node, request)
        self._opening[key] = done = asyncio.get_running_loop().create_future()
        try:
            return await self._open(key, replace(Opening.of(request), onward=self._onward))
        except StreamRefused:
            self._refused_until[node] = asyncio.get_running_loop().time() + RETRY_S
            return None
        except (OSError, HopLost, InvalidURI, ValueError):
            return None  # a request will tell what is wrong with the node
        finally:
            del self._opening[key]
            done.set_result(None)

    async def release(self, node: NodeId, session: SessionId, ending: Ending) -> bool:
        """End the session by its stream; False if there is none. Raises HopLost."""
        stream = self._streams.get((node, session))
        if stream is None:
            return False
        await stream.release(ending)
        return True

    def drop(self, session: SessionId) -> None:
        """Close the session's streams: its nodes may give its places away."""
        for key, stream in list(self._streams.items()):
            if key[1] == session:
                stream.lose("the session waits for room")

    def close(self) -> None:
        """Close every stream, and open no more."""
        self._closed = True
        for stream in list(self._streams.values()):
            stream.lose("this client is closed")

    async def _open(self, key: Key, opening: Opening) -> SessionStream | None:
        base = self._urls.get(key[0], "").rstrip("/")
        url = URL(base)
        if url.host is None or url.port is None:
            raise HopLost(f"{key[0]}: no address known")
        secured = None if self._tls is None else self._tls.towards(url)
        address = f"ws{base.removeprefix('http')}/sessions/{opening.session}/stream"

        def ended(stream: SessionStream) -> None:
            if self._streams.get(key) is stream:
                del self._streams[key]

        stream = SessionStream(address, opening, self._authorization, self._limits, ended)
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: stream,
                url.host,
                url.port,
                ssl=(secured or ssl.create_default_context()) if url.scheme == "https" else None,
            )
            await stream.ready
        except BaseException:  # cancelled, most of all: the socket must not stay
            stream.lose("not opened")
            raise
        if self._closed or not stream.alive:
            stream.lose("this client is closed")
            return None
        self._streams[key] = stream
        return stream
