"""When Ctrl-C ends the process at once, and when it is raised as KeyboardInterrupt.

    start, imports ──▶ ended by the signal      nothing exists yet that must be tidied up
    the command's work ──▶ KeyboardInterrupt    temporary files go, children are stopped

Raised inside an import, KeyboardInterrupt would be a traceback, or be swallowed by importlib.
A parent that had SIGINT ignored (`nohup`, `&` in a script) keeps it so.
"""

from __future__ import annotations

import signal


def end_at_once() -> None:
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def raise_interrupts() -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
