"""Node processes of this machine: started, watched, started again, and never left behind.

    starting --ready line--> ready --dies--> waiting --back-off--> starting
        |                                                             |
        +--dies k times in a row without having been ready--> ChildFailed

Invariants
    * a child keeps its port over restarts, so its URL is a stable node id;
    * leaving `running()` ends every child within `stop_timeout_s`: asked first, then killed;
    * children end with this process even when it is killed (mesh/parent.py);
    * a child's output goes to one file of bounded size, whose path every failure names.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from meshnet.core.vocabulary import MeshnetError
from meshnet.mesh.childlog import ChildLog
from meshnet.mesh.grouped import unwrapped
from meshnet.mesh.restart import RestartBook, RestartPolicy
from meshnet.telemetry.events import ChildDied, ChildStarted, Record

READY_LINE_BYTES_MAX = 4096
NOT_STARTED = 127
"""The exit code of a child that never was, as shells have it."""


class ChildFailed(MeshnetError):
    """A node process does not get ready, however often it is started."""


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """One child: `command(port)` is its argv; port 0 lets it choose, and it keeps the choice."""

    name: str
    command: Callable[[int], Sequence[str]]
    environment: Mapping[str, str]
    port: int = 0


class Child:
    """One supervised process; `url` and `pid` are those of its latest life."""

    def __init__(self, spec: ChildSpec, log: ChildLog) -> None:
        self.name = spec.name
        self.spec = spec
        self.log = log
        self.url = ""
        self.pid = 0
        self.was_ready = asyncio.Event()

    @property
    def port(self) -> int:
        return (urlsplit(self.url).port or 0) if self.url else self.spec.port


class LocalLauncher:
    """Keeps the children of `specs` running for as long as `running()` is entered."""

    def __init__(
        self,
        specs: Sequence[ChildSpec],
        *,
        log_dir: Path,
        record: Record,
        policy: RestartPolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._policy = policy or RestartPolicy()
        self._record = record
        self._clock = clock
        self.log_dir = log_dir
        self.children = tuple(Child(s, ChildLog(log_dir / f"{s.name}.log")) for s in specs)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Start all children; end them when the block is left.

        Raises:
            ChildFailed: inside the block, by cancelling it, once a child was given up.
        """
        try:
            with unwrapped():
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(self._supervise(child)) for child in self.children]
                    try:
                        yield
                    finally:
                        for task in tasks:
                            task.cancel()
        finally:
            for child in self.children:
                child.log.close()

    async def ready(self) -> None:
        """Wait until every child has been ready once."""
        for child in self.children:
            await child.was_ready.wait()

    async def _supervise(self, child: Child) -> None:
        book = RestartBook(self._policy)
        while True:
            started = self._clock()
            code, was_ready = await self._live(child, started)
            lived_s = self._clock() - started
            delay_s = book.died(was_ready=was_ready, lived_s=lived_s, code=code)
            if delay_s is None:
                starts = "1 start" if book.failures == 1 else f"{book.failures} starts"
                raise ChildFailed(
                    f"{child.name} did not get ready in {starts} (exit code {code}).\n"
                    f"{child.log.tail()}\nWhole log: {child.log.path}"
                )
            self._record(ChildDied(child.name, child.pid, code, delay_s))
            await asyncio.sleep(delay_s)

    async def _live(self, child: Child, started: float) -> tuple[int, bool]:
        """Run one life of the child; return its exit code and whether it got ready."""
        try:
            process = await asyncio.create_subprocess_exec(
                *child.spec.command(child.port),
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                env=dict(child.spec.environment),
                start_new_session=True,
            )
        except OSError as error:  # no memory for one more process: there may be some later
            child.log.write(f"{error}\n".encode())
            return NOT_STARTED, False
        child.pid = process.pid
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_pump(process.stderr, child.log))
                was_ready = await self._until_ready(child, process, started)
                if was_ready:
                    group.create_task(_pump(process.stdout, child.log))
                else:
                    await _stop(process, self._policy.stop_timeout_s)
                code = await process.wait()
            return code, was_ready
        finally:
            await _stop(process, self._policy.stop_timeout_s)

    async def _until_ready(self, child: Child, process: Process, started: float) -> bool:
        assert process.stdout is not None
        try:
            async with asyncio.timeout(self._policy.ready_timeout_s):
                url = await _ready_url(process.stdout, child.log)
        except TimeoutError:
            child.log.write(f"not ready within {self._policy.ready_timeout_s} s\n".encode())
            return False
        if url is None:
            return False
        child.url = url
        child.was_ready.set()
        self._record(ChildStarted(child.name, process.pid, url, self._clock() - started))
        return True


async def _ready_url(stdout: asyncio.StreamReader, log: ChildLog) -> str | None:
    """Return the URL of the child's ready line; None when its stdout ends without one."""
    while True:
        try:
            line = await stdout.readline()
        except ValueError:
            # A line beyond the reader's limit: not ours.
            continue
        if not line:
            return None
        if (url := _url_of(line)) is not None:
            return url
        log.write(line)


def _url_of(line: bytes) -> str | None:
    if len(line) > READY_LINE_BYTES_MAX or not line.startswith(b"{"):
        return None
    try:
        fields = json.loads(line)
    except ValueError:
        return None
    url = fields.get("url")
    return url if fields.get("event") == "ready" and isinstance(url, str) else None


async def _pump(stream: asyncio.StreamReader | None, log: ChildLog) -> None:
    assert stream is not None
    while chunk := await stream.read(65536):
        log.write(chunk)


async def _stop(process: Process, timeout_s: float) -> None:
    """End the process: close its stdin and ask, then kill."""
    if process.returncode is not None:
        return
    assert process.stdin is not None
    _signal(process, signal.SIGTERM)
    process.stdin.close()
    try:
        async with asyncio.timeout(timeout_s):
            await process.wait()
    except TimeoutError:
        _signal(process, signal.SIGKILL)
        await process.wait()


def _signal(process: Process, number: signal.Signals) -> None:
    """Signal a process whose end we were not told of.

    Not by `Process.terminate`: it polls first, which takes the exit code of a process that has
    just ended away from the watcher, who then reports 255.
    """
    with suppress(ProcessLookupError):
        os.kill(process.pid, number)
