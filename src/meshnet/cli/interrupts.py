"""When Ctrl-C ends the process at once, and when it is raised as KeyboardInterrupt.

    start, imports ──▶ ended by the signal      nothing exists yet that must be tidied up
    the command's work ──▶ KeyboardInterrupt    temporary files go, children are stopped
    a conversation ──▶ KeyboardInterrupt        where it says so, and else nothing

Raised inside an import, KeyboardInterrupt would be a traceback, or be swallowed by importlib.
A parent that had SIGINT ignored (`nohup`, `&` in a script) keeps it so.
"""

from __future__ import annotations

import signal
from types import FrameType


def end_at_once() -> None:
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def raise_interrupts() -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


class Interruptible:
    """`with` it Ctrl-C is KeyboardInterrupt, once; elsewhere, from now on, it does nothing.

    A whole `try` around the `with` catches each one, for there is none before or after.
    """

    def __init__(self) -> None:
        self._open = False
        if signal.getsignal(signal.SIGINT) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(signal.SIGINT, self._interrupt)

    def __enter__(self) -> None:
        self._open = True

    def __exit__(self, *_: object) -> None:
        self._open = False

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._open:
            self._open = False
            raise KeyboardInterrupt
