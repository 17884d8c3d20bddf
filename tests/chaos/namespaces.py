"""Network namespaces of Linux that live as long as the process that made them, and no longer.

A namespace is held by a descriptor and has no name: whatever ends this process ends it too, so
nothing has to be swept up. What runs in it is started by `nsenter`, which becomes that program.

Invariant: the calling thread is back in its own namespace when `inside` is left.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

CLONE_NEWNET = 0x40000000
TOOLS = ("ip", "nsenter")
COMMAND_DEADLINE_S = 30.0


class NamespacesImpossible(Exception):
    """This machine, or whoever runs this, cannot make network namespaces; the message says why."""


def why_impossible() -> str | None:
    """Make a namespace and throw it away; None if that works, else what stood in the way."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"{' and '.join(missing)} not installed (Debian: iproute2, util-linux)"
    try:
        with Namespace() as tried:
            tried.configure(["link set lo up"])
    except NamespacesImpossible as error:
        return str(error)
    return None


class Namespace:
    """One network namespace; use it as a context manager. Raises NamespacesImpossible."""

    def __init__(self) -> None:
        made: list[int | OSError] = []
        # Only the thread that asks is moved, so one that ends right away is asked.
        maker = threading.Thread(target=_make, args=(made,))
        maker.start()
        maker.join()
        (found,) = made
        if isinstance(found, OSError):
            raise NamespacesImpossible(f"no network namespace: {found.strerror}")
        self._descriptor = found

    @property
    def path(self) -> str:
        """How other processes name it while this one lives."""
        return f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def wrapper(self) -> tuple[str, ...]:
        """What to put before a command so that it runs inside, under the pid it would have."""
        return ("nsenter", f"--net={self.path}", "--")

    def configure(self, lines: Sequence[str]) -> None:
        """Run lines of `ip` inside. Raises NamespacesImpossible with what `ip` said."""
        done = subprocess.run(
            [*self.wrapper(), "ip", "-batch", "-"],
            input="\n".join(lines) + "\n",
            text=True,
            capture_output=True,
            timeout=COMMAND_DEADLINE_S,
            check=False,
        )
        if done.returncode:
            raise NamespacesImpossible(f"ip: {done.stderr.strip()}")

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Make sockets of this thread belong to the namespace; no `await` may happen within."""
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        try:
            _enter(self._descriptor)
            try:
                yield
            finally:
                _enter(home)
        finally:
            os.close(home)

    def __enter__(self) -> Namespace:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def _make(made: list[int | OSError]) -> None:
    try:
        _call("unshare", CLONE_NEWNET)
        made.append(os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        made.append(error)


def _enter(descriptor: int) -> None:
    _call("setns", descriptor, CLONE_NEWNET)


def _call(name: str, *arguments: int) -> None:
    """Call a function of libc; `os` has these from Python 3.12 on. Raises OSError."""
    function = getattr(ctypes.CDLL(None, use_errno=True), name, None)
    if function is None:
        raise OSError(0, f"this system has no {name}")
    if function(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
