"""`meshnet chat` on a terminal, with a gateway whose answer ends when the test says so."""

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

from tests.gateway.api import Gateway
from tests.gateway.scripted import Gate


class Terminal:
    """A command on a pseudo-terminal; every wait is for text, and the suite's limit bounds it."""

    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self.process, self._master = process, master
        self._seen = ""

    async def shows(self, wanted: str) -> None:
        """Wait until this was seen since something was typed last."""
        while wanted not in self._seen:
            self._seen += (await asyncio.to_thread(os.read, self._master, 4096)).decode()

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


async def test_ctrl_c_stops_the_answer_and_not_the_chat(tmp_path: Path):
    gate = Gate()
    gateway = Gateway([ord("a"), gate])

    async with gateway.served() as url:
        with terminal("chat", "--url", url, "--max-tokens", "8", cwd=tmp_path) as chat:
            await chat.shows("> ")
            chat.type("hello there\n")
            await gate.reached.wait()
            chat.type("\x03")
            await chat.shows("[stopped]")
            await gateway.generator.over.wait()
            await chat.shows("> ")
            chat.type("/quit\n")
            code = await asyncio.to_thread(chat.process.wait, 60)

    assert code == 0
    assert gateway.generator.closed_early == 1
