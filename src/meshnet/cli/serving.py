"""Where a process listens, when it stops, and the event loop it runs on.

Invariants
    * the port is bound before anything is loaded, so a taken port is told at once;
    * the first SIGINT or SIGTERM asks to stop, a second one ends the process as usual.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

from meshnet.cli.interrupts import raise_interrupts
from meshnet.cli.machine import url_here

T = TypeVar("T")


def url_of(listener: socket.socket, *, tls: bool = False) -> str:
    """Return the URL under which this machine reaches the listener."""
    host, port = listener.getsockname()[:2]
    return url_here(host, port, tls=tls)


@contextlib.contextmanager
def stop_on_signals() -> Iterator[asyncio.Event]:
    """Yield an event that SIGINT and SIGTERM set; must run inside an event loop."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    numbers = (signal.SIGINT, signal.SIGTERM)

    def ask() -> None:
        stop.set()
        for number in numbers:
            loop.remove_signal_handler(number)

    for number in numbers:
        loop.add_signal_handler(number, ask)
    try:
        yield stop
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def run_loop(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run `main` on the fastest event loop this platform has."""
    raise_interrupts()
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())
