"""What a child process wrote: a file of bounded size, and its last lines in memory.

Invariant: the file and its predecessor together never exceed `bytes_max` by more than one chunk.
"""

from __future__ import annotations

import contextlib
import io
from collections import deque
from pathlib import Path

LOG_BYTES_MAX = 8 * 2**20
TAIL_BYTES_MAX = 4096


class ChildLog:
    """Append-only log of one child over all its lives."""

    def __init__(self, path: Path, bytes_max: int = LOG_BYTES_MAX) -> None:
        self.path = path
        self._bytes_max = bytes_max
        self._tail: deque[int] = deque(maxlen=TAIL_BYTES_MAX)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._opened()

    def write(self, chunk: bytes) -> None:
        """Keep `chunk`; where the disk refuses it, in memory only: a log stops no node."""
        self._tail.extend(chunk)
        with contextlib.suppress(OSError, ValueError):
            if self._file.tell() + len(chunk) > self._bytes_max // 2:
                self._turn()
            self._file.write(chunk)

    def _turn(self) -> None:
        self.path.replace(self.path.with_suffix(self.path.suffix + ".1"))
        self._file.close()
        self._file = self._opened()

    def _opened(self) -> io.FileIO:
        # Unbuffered: what a child said last is on disk before anybody asks.
        return io.FileIO(self.path, "ab")

    def tail(self, lines: int = 12) -> str:
        text = bytes(self._tail).decode(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def close(self) -> None:
        self._file.close()
