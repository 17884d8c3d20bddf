"""Processes of the bench that are not nodes: a whole mesh, a lone engine, long wires.

    parent ──one JSON line──▶ worker ──one JSON line──▶ parent
    the first line of a worker: {"event": "ready", ...}

Invariant: a worker ends when its stdin does, so none survives the bench, however that ended.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from meshnet.core.vocabulary import MeshnetError

LINE_BYTES_MAX = 16 * 2**20
STOP_TIMEOUT_S = 15.0


class WorkerFailed(MeshnetError):
    """A worker did not start, or ended; the message has its last words."""


class Worker:
    """One child process that reads and writes JSON lines."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self._arguments, self._environment = arguments, environment
        self._process: Process | None = None
        self._turn = asyncio.Lock()
        self._log: Any = None

    @property
    def pid(self) -> int:
        return 0 if self._process is None else self._process.pid

    async def start(self) -> dict[str, Any]:
        """Start it and return its ready line. Raises WorkerFailed."""
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `stop`
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "meshnet.cli.bench.worker", *self._arguments),
            stdin=PIPE,
            stdout=PIPE,
            stderr=self._log,
            env=dict(self._environment),
            limit=LINE_BYTES_MAX,
            start_new_session=True,
        )
        while (told := await self._read()).get("event") != "ready":
            pass
        return told

    async def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Send one line and return the next; one question at a time. Raises WorkerFailed."""
        async with self._turn:
            assert self._process is not None
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            return await self._read()

    async def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            process.stdin.close()
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
        if self._log is not None:
            self._log.close()

    async def _read(self) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            if line.startswith(b"{"):
                told: dict[str, Any] = json.loads(line)
                return told
        self._log.seek(0)
        words = self._log.read()[-2000:].decode(errors="replace")
        raise WorkerFailed(f"bench worker {' '.join(self._arguments)} ended:\n{words}")
