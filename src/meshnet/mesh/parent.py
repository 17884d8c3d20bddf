"""A child ends with its parent, however that ended.

The parent holds the write end of the child's stdin. When the parent is gone, even by SIGKILL,
the kernel closes it and the child reads end-of-file: no polling, no Linux-only call.
"""

from __future__ import annotations

import os
import signal
import threading
import time

GRACE_S = 5.0


def end_with_parent(*, stdin: int = 0, grace_s: float = GRACE_S) -> threading.Thread:
    """Stop this process when `stdin` reaches its end: SIGTERM first, hard exit after `grace_s`."""

    def watch() -> None:
        # os.read, not sys.stdin: a buffered reader held by a daemon thread can abort the exit.
        while _read(stdin):
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(grace_s)
        os._exit(1)

    thread = threading.Thread(target=watch, name="end-with-parent", daemon=True)
    thread.start()
    return thread


def _read(stdin: int) -> bytes:
    try:
        return os.read(stdin, 4096)
    except OSError:
        return b""
