"""Time that passes at once, when a test says so: nothing is waited for, no limit is too short."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


def skipping() -> Callable[[float], None]:
    """Return what lets seconds of the running loop pass; its timers that are due then run next."""
    loop = asyncio.get_running_loop()
    real, skipped = loop.time, 0.0

    def skip(seconds: float) -> None:
        nonlocal skipped
        skipped += seconds

    loop.time = lambda: real() + skipped  # type: ignore[method-assign]
    return skip
