"""What a gateway's process tells: to its log, its metrics, whoever watches, and a collector."""

from __future__ import annotations

import sys

from meshnet.cli.live.endpoint import Live
from meshnet.cli.settings import Settings
from meshnet.cli.tracing import TracedClient, spans_of
from meshnet.head import HopClient
from meshnet.telemetry.sink import Telemetry


class Telling:
    """Close it when nothing more will be told. Raises SettingsError."""

    def __init__(self, settings: Settings) -> None:
        self.live = Live()
        self._spans = spans = spans_of(settings, role="gateway")
        self.telemetry = Telemetry(
            stream=sys.stderr,
            log_format=settings.log_format,
            level=settings.log_level,
            role="gateway",
            also=(self.live.record, *([] if spans is None else [spans.observe])),
        )

    def watching(self, client: HopClient) -> HopClient:
        """Return a client that does what `client` does, and tells of steps."""
        watched = self.live.watching(client)
        if self._spans is None:
            return watched
        return TracedClient(watched, self.telemetry.record, self.live.clock)

    def close(self) -> None:
        if self._spans is not None:
            self._spans.close()
