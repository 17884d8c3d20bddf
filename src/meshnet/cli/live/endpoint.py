"""`GET /mesh/live`: the feed as server-sent events, opened by what opens `/mesh`."""

from __future__ import annotations

import time
from collections.abc import Callable

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from meshnet.cli.live.feed import Crowded, Feed
from meshnet.cli.live.steps import SessionNumbers, WatchedClient
from meshnet.cli.live.wording import happening_of
from meshnet.gateway.delivery import EventStream
from meshnet.gateway.errors import ApiError
from meshnet.gateway.settings import GatewaySettings
from meshnet.head import HopClient
from meshnet.telemetry.events import Event

PATH = "/mesh/live"


class Live:
    """The feed of one gateway, and what fills it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.feed, self.clock = Feed(clock), clock
        self._numbers = SessionNumbers()

    def record(self, event: Event) -> None:
        """Hear every event of the process."""
        happening = happening_of(event, self._numbers)
        if happening is not None:
            self.feed.happened(happening)

    def watching(self, client: HopClient) -> HopClient:
        """Return a client that does what `client` does, and tells the feed of steps."""
        return WatchedClient(client, self.feed, self._numbers, self.clock)


def add_live(app: FastAPI, feed: Feed, settings: GatewaySettings) -> None:
    async def live(request: Request) -> Response:
        try:
            batches = feed.follow()
        except Crowded:
            raise ApiError(
                503,
                "As many watch this mesh as may. Close a page, or try again later.",
                code="overloaded",
                headers={"retry-after": "10"},
            ) from None
        return EventStream(
            batches,
            keepalive_s=settings.keepalive_s,
            grace_s=settings.grace_s,
            stall_s=settings.stall_s,
            headers={},
        )

    app.add_api_route(PATH, live, methods=["GET"], include_in_schema=False)
