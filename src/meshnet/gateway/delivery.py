"""How an answer reaches a client that may leave at any moment.

    frames --pump--> queue of one --> start | data | comment every keepalive_s
    receive --watch--> http.disconnect --> everything above is cancelled, the generation closed

A stream's status waits `grace_s` for the first event: a refusal in that time is answered
with its own status. After the headers, a failure is an error frame and never a normal end.

Invariants
    * whatever ends the response closes the generation before the response is over;
    * one event at most is made ahead of a slow client, and one that reads nothing for
      `stall_s` counts as gone.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from meshnet.gateway import sse
from meshnet.gateway.dialects import OPENAI, Dialect
from meshnet.gateway.errors import ApiError, of_failure
from meshnet.head import GenerationFailed

T = TypeVar("T")


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T | None:
    """Run `work` to its end, or cancel it when the client goes; None says it is gone."""
    async with asyncio.TaskGroup() as tasks:
        working = tasks.create_task(work)
        watching = tasks.create_task(_cancel_when_gone(receive, working))
        working.add_done_callback(lambda _: watching.cancel())
    return None if working.cancelled() else working.result()


async def _cancel_when_gone(receive: Receive, working: asyncio.Task[Any]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    working.cancel()


class _End:
    pass


class _Stalled(Exception):
    """The client reads nothing any more."""


_Item = bytes | ApiError | _End


class EventStream(Response):
    """Send frames as server-sent events until they end, fail, or nobody listens."""

    def __init__(
        self,
        frames: AsyncGenerator[Mapping[str, Any], None],
        *,
        keepalive_s: float,
        grace_s: float,
        stall_s: float,
        headers: Mapping[str, str],
        dialect: Dialect = OPENAI,
    ) -> None:
        super().__init__(status_code=200, headers=dict(headers) | sse.HEADERS)
        del self.headers["content-length"]
        self._frames = frames
        self._keepalive_s = keepalive_s
        self._grace_s = grace_s
        self._stall_s = stall_s
        self._dialect = dialect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await unless_gone(receive, self._serve(scope, receive, send))

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        queue: asyncio.Queue[_Item] = asyncio.Queue(maxsize=1)
        async with asyncio.TaskGroup() as tasks:
            pumping = tasks.create_task(self._pump(queue))
            item = await _next(queue, self._grace_s)
            if isinstance(item, ApiError):
                await self._dialect.refusal(item)(scope, receive, send)
                return
            with contextlib.suppress(_Stalled):
                await self._tell(item, queue, send)
            pumping.cancel()

    async def _tell(self, item: _Item | None, queue: asyncio.Queue[_Item], send: Send) -> None:
        """Send everything from the first item on; None is a silence. Raises _Stalled."""
        await send(
            {
                "type": "http.response.start",
                "status": self.status_code,
                "headers": self.raw_headers,
            }
        )
        while not isinstance(item, _End):
            await self._send(send, self._bytes_of(item))
            failed = isinstance(item, ApiError)
            item = _End() if failed else await _next(queue, self._keepalive_s)
        await self._send(send, self._dialect.done, more=False)

    def _bytes_of(self, item: bytes | ApiError | None) -> bytes:
        match item:
            case None:
                return self._dialect.keep_alive
            case ApiError():
                return self._dialect.frame(self._dialect.error(item))
            case _:
                return item

    async def _send(self, send: Send, data: bytes, *, more: bool = True) -> None:
        try:
            async with asyncio.timeout(self._stall_s):
                await send({"type": "http.response.body", "body": data, "more_body": more})
        except TimeoutError:
            raise _Stalled from None

    async def _pump(self, queue: asyncio.Queue[_Item]) -> None:
        try:
            async with aclosing(self._frames) as frames:
                async for body in frames:
                    await queue.put(self._dialect.frame(body))
        except GenerationFailed as failure:
            await queue.put(of_failure(failure))
        else:
            await queue.put(_End())


async def _next(queue: asyncio.Queue[_Item], timeout_s: float) -> _Item | None:
    """The next item, or None if there is none for so long."""
    try:
        async with asyncio.timeout(timeout_s):
            return await queue.get()
    except TimeoutError:
        return None
