"""Real node and gateway processes for tests, started and stopped by the commands a user types.

Every wait here watches for an event (a line, an exit, an answer) and has a deadline that fails the
test with the process's own last words.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

START_DEADLINE_S = 240.0
COMMAND_DEADLINE_S = 600.0


def unset() -> dict[str, str]:
    """This environment without a user setting of the developer's machine: none may leak in."""
    return {k: v for k, v in os.environ.items() if not k.startswith("MESHNET_")}


def command(
    *arguments: str, cwd: Path, stdin: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run `meshnet ...` to its end, with a cache of its own below `cwd`."""
    return subprocess.run(
        [sys.executable, "-m", "meshnet", *arguments],
        capture_output=True,
        text=True,
        input=stdin,
        cwd=cwd,
        env={
            **unset(),
            "PYTHONPATH": os.pathsep.join(sys.path),
            "COLUMNS": "120",
            "MESHNET_CACHE_DIR": str(cwd / "cache"),
            **environment,
        },
        timeout=COMMAND_DEADLINE_S,
        check=False,
    )


class MeshnetProcess:
    """One `meshnet ...` child with a machine-readable ready line."""

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        program: Sequence[str] = ("-m", "meshnet"),
        wrapper: Sequence[str] = (),
    ) -> None:
        """`wrapper` goes before the command and becomes it, keeping its pid."""
        self.arguments = list(arguments)
        cache = {k: v for k, v in os.environ.items() if k == "MESHNET_CACHE_DIR"}
        self._child = subprocess.Popen(
            [*wrapper, sys.executable, *program, *self.arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**unset(), **cache, "OMP_NUM_THREADS": "1", "MESHNET_THREADS": "1", **environment},
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._errors: list[str] = []
        assert self._child.stdout is not None
        assert self._child.stderr is not None
        self._readers = [
            threading.Thread(target=self._read_lines, args=(self._child.stdout,), daemon=True),
            threading.Thread(target=self._read_errors, args=(self._child.stderr,), daemon=True),
        ]
        for reader in self._readers:
            reader.start()
        self.ready: dict[str, Any] = {}

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def is_running(self) -> bool:
        return self._child.poll() is None

    @property
    def url(self) -> str:
        return str(self.ready["url"])

    def wait_ready(self, deadline_s: float = START_DEADLINE_S) -> MeshnetProcess:
        while True:
            try:
                line = self._lines.get(timeout=deadline_s)
            except queue.Empty:
                raise AssertionError(f"{self.arguments}: not ready\n{self.last_words()}") from None
            if line is None:
                self._readers[1].join(timeout=5)
                raise AssertionError(f"{self.arguments}: ended early\n{self.last_words()}")
            if line.startswith("{"):
                self.ready = json.loads(line)
                return self

    def kill(self) -> None:
        self._child.send_signal(signal.SIGKILL)
        self._child.wait(timeout=30)

    def send(self, number: int) -> None:
        self._child.send_signal(number)

    def stop(self) -> int:
        if self._child.poll() is None:
            self._child.send_signal(signal.SIGCONT)
            self._child.terminate()
            try:
                self._child.wait(timeout=60)
            except subprocess.TimeoutExpired:
                self._child.kill()
        code = self._child.wait(timeout=30)
        for reader in self._readers:
            reader.join(timeout=10)
        for pipe in (self._child.stdin, self._child.stdout, self._child.stderr):
            assert pipe is not None
            pipe.close()
        return code

    def ended(self) -> int:
        """Wait until it ends by itself, and return how."""
        return self._child.wait(timeout=120)

    def told(self) -> list[str]:
        """Every line of its log so far; whole lines only."""
        return self._errors[:]

    def last_words(self) -> str:
        return "".join(self._errors[-60:])

    def _read_lines(self, pipe: IO[str]) -> None:
        for line in pipe:
            self._lines.put(line)
        self._lines.put(None)

    def _read_errors(self, pipe: IO[str]) -> None:
        for line in pipe:
            self._errors.append(line)


@contextmanager
def meshnet(*arguments: str, **environment: str) -> Iterator[MeshnetProcess]:
    """Run `meshnet ARGUMENTS` until its ready line, and stop it at the end."""
    process = MeshnetProcess(arguments, environment)
    try:
        yield process.wait_ready()
    finally:
        process.stop()


@contextmanager
def nodes(model: Path, ranges: Sequence[str], **environment: str) -> Iterator[list[MeshnetProcess]]:
    """Start one node process per layer range, all at once, and wait until each is ready."""
    with ExitStack() as stack:
        started = []
        for layers in ranges:
            process = MeshnetProcess(
                ["node", "--model", str(model), "--layers", layers, "--port", "0", "--json-ready"],
                environment,
            )
            stack.callback(process.stop)
            started.append(process)
        for process in started:
            process.wait_ready()
        yield started


@contextmanager
def gateway(model: Path, urls: Sequence[str], **environment: str) -> Iterator[MeshnetProcess]:
    """Start `meshnet serve` over running nodes."""
    hops = [part for url in urls for part in ("--node", url)]
    with meshnet(
        "serve", "--model", str(model), *hops, "--port", "0", "--json-ready", **environment
    ) as process:
        yield process
