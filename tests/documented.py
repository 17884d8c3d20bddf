"""The commands of the docs as they stand there, run by a `meshnet` that is this checkout's.

A section of a page is one run: what lasts (`up`, `serve`, `node`) stays until the section ends,
everything else has to end with 0. Machines become ports of this one: see `Places`.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx2
from tests.processes import unset

from meshnet.cli.local_nodes import free_ports

ROOT = Path(__file__).resolve().parents[1]
LASTING = re.compile(r"meshnet (?:up|serve|node)\b")
EVERYWHERE = re.compile(r"#.*\b(?:each machine|on A, B)")
"""What a comment says of a command for several machines: here it is run for two."""
HOSTS = ("10.0.0.1", "10.0.0.2", "10.0.0.3")
ALIASES = {"a": HOSTS[0], "b": HOSTS[1], "127.0.0.1": HOSTS[0]}
ADDRESS = re.compile(r"(?<![\w.])(a|b|10\.0\.0\.[123]|127\.0\.0\.1):(\d{4})\b")
GATEWAY_PORT = "8000"
READY_S = 240.0
COMMAND_S = 240.0


@dataclass(frozen=True, slots=True)
class Section:
    """The blocks of commands below one heading, each a language and its lines."""

    page: str
    title: str
    blocks: tuple[tuple[str, tuple[str, ...]], ...]

    def __str__(self) -> str:
        return f"{self.page}: {self.title}"

    @property
    def commands(self) -> tuple[str, ...]:
        return tuple(c for language, lines in self.blocks if language != "python" for c in lines)


def pages() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def sections(page: Path) -> Iterator[Section]:
    """Yield the sections of a page that hold commands or a program."""
    name = page.relative_to(ROOT).as_posix()
    for part in re.split(r"^(?=#+ )", page.read_text(encoding="utf-8"), flags=re.MULTILINE):
        found = re.findall(r"^```(sh|console|python)\n(.*?)^```", part, re.DOTALL | re.MULTILINE)
        if found:
            title = part.partition("\n")[0].strip("# ")
            blocks = tuple((language, tuple(_commands(language, text))) for language, text in found)
            yield Section(name, title, blocks)


def _commands(language: str, text: str) -> Iterator[str]:
    if language == "python":
        yield text
        return
    for line in text.splitlines():
        # In a `console` block what has no prompt was answered.
        if line and (language == "sh" or line.startswith("$ ")):
            yield line.removeprefix("$ ").removeprefix(".venv/bin/")


class Places:
    """Which port here stands for a port of a machine of the docs."""

    def __init__(self) -> None:
        self._ports: dict[tuple[str, str], str] = {}
        self.gateway = self._free()

    def changed(self, line: str) -> str:
        return ADDRESS.sub(lambda found: f"127.0.0.1:{self.port(*found.groups())}", line)

    def port(self, host: str, port: str) -> str:
        if port == GATEWAY_PORT:
            return self.gateway
        place = (ALIASES.get(host, host), port)
        if place not in self._ports:
            self._ports[place] = self._free()
        return self._ports[place]

    @staticmethod
    def _free() -> str:
        return str(free_ports(1)[0])


class Shell:
    """Runs commands with other words for what is not here."""

    def __init__(self, directory: Path, stack: ExitStack, changes: Mapping[str, str]) -> None:
        self._directory, self._stack, self._changes = directory, stack, changes
        program = directory / "bin" / "meshnet"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m meshnet "$@"\n')
        program.chmod(0o755)
        self.environment = {
            **unset(),
            "PATH": f"{program.parent}:{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(sys.path),
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "120",
        }

    def run(self, line: str) -> str:
        told = subprocess.run(
            ["bash", "-ec", self.changed(line)],
            env=self.environment, cwd=self._directory, capture_output=True, text=True,
            stdin=subprocess.DEVNULL, timeout=COMMAND_S, check=False,
        )  # fmt: skip
        assert told.returncode == 0, f"{line}\n{told.stdout}\n{told.stderr}"
        return told.stdout

    def start(self, line: str) -> subprocess.Popen[bytes]:
        """Start what lasts; it ends with the test."""
        words = self.changed(line.removesuffix(" &"))
        log = self._stack.enter_context((self._directory / "lasting.log").open("ab"))
        process = subprocess.Popen(
            ["bash", "-c", f"exec {words}"],
            env=self.environment, cwd=self._directory, stdout=log, stderr=log,
        )  # fmt: skip
        self._stack.callback(process.wait)
        self._stack.callback(process.terminate)
        return process

    def log(self) -> str:
        """What everything that lasts has said so far."""
        return (self._directory / "lasting.log").read_text(encoding="utf-8", errors="replace")

    def changed(self, line: str) -> str:
        for there, here in self._changes.items():
            line = line.replace(there, here)
        return line


class SectionRun:
    """One section, from its first command to its last."""

    def __init__(self, shell: Shell, places: Places) -> None:
        self._shell, self._places = shell, places
        self._lasting: list[subprocess.Popen[bytes]] = []
        self._nodes: Counter[str] = Counter()

    def run(self, section: Section) -> None:
        for language, commands in section.blocks:
            for command in commands:
                self._run(language, self._places.changed(command))
        self._until_ready()

    def _run(self, language: str, command: str) -> None:
        if language == "python":
            self._until_ready()
            self._shell.run(f"{shlex.quote(sys.executable)} -c {shlex.quote(command)}")
        elif command.startswith("export "):
            words = shlex.split(self._shell.changed(command), comments=True)[1:]
            self._shell.environment |= dict(word.split("=", 1) for word in words)
        elif LASTING.match(command):
            for _ in range(2 if EVERYWHERE.search(command) else 1):
                self._lasting.append(self._shell.start(self._with_port(command)))
        else:
            self._until_ready()
            self._shell.run(command)

    def _with_port(self, command: str) -> str:
        """The n-th node of a port is that of the n-th machine."""
        command = command.partition(" #")[0].strip()
        found = re.search(r"--port (\d+)", command)
        if found is None:
            return command
        host = HOSTS[self._nodes[found[1]]]
        self._nodes[found[1]] += found[1] != GATEWAY_PORT
        return command.replace(found[0], f"--port {self._places.port(host, found[1])}")

    def _until_ready(self) -> None:
        if not self._lasting:
            return
        deadline = time.monotonic() + READY_S
        while True:
            for scheme in ("http", "https"):
                url = f"{scheme}://127.0.0.1:{self._places.gateway}/ready"
                with suppress(httpx2.HTTPError):
                    if httpx2.get(url, verify=False).is_success:
                        return
            ended = [process.args for process in self._lasting if process.poll()]
            assert not ended, self._shell.log()
            assert time.monotonic() < deadline, self._shell.log()
            time.sleep(0.1)
