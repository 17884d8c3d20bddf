"""Commands on pseudo-terminals."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Terminal:
    """A command on a pseudo-terminal; every wait is for text, and the suite's limit bounds it."""

    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self.process, self._master = process, master
        self._seen = ""

    async def shows(self, wanted: str) -> None:
        """Wait until this was seen since something was typed last."""
        while wanted not in self._seen:
            read = await asyncio.to_thread(os.read, self._master, 4096)
            self._seen += read.decode(errors="replace")

    def type(self, keys: str) -> None:
        self._seen = ""
        os.write(self._master, keys.encode())


def in_the_foreground() -> None:
    """The terminal turns Ctrl-C into SIGINT for its foreground process group only.

    A suite that runs in the background has it ignored, and so would its children.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@contextmanager
def terminal(*arguments: str, cwd: Path) -> Iterator[Terminal]:
    """Run `meshnet ARGUMENTS` on a pseudo-terminal of its own."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "meshnet", *arguments],
        stdin=slave, stdout=slave, stderr=slave, cwd=cwd, start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        preexec_fn=in_the_foreground,
    )  # fmt: skip
    os.close(slave)
    try:
        yield Terminal(process, master)
    finally:
        process.kill()
        process.wait(timeout=60)
        os.close(master)
