"""llama.cpp as a side of a measurement: its processes, and one streamed generation.

Every process inherits the cores of this one, listens on loopback only, writes a log that is kept,
and is killed when the side stops or, on Linux, when this process dies.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import signal
import socket
import sys
import time
from asyncio.subprocess import DEVNULL, STDOUT, Process
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp

from meshnet.cli.bench.peers_build import PeerError, Programs
from meshnet.cli.bench.peers_setup import (
    HOST,
    PeerSetup,
    check_split,
    completion_body,
    rpc_server_command,
    server_command,
)
from meshnet.cli.bench.running import tell
from meshnet.cli.bench.side import Stream, unheard

START_S = 180.0
_POLL_S = 0.05
_ANSWER_S = 3600.0
_LOG_LINES = 8
_LINE_BYTES_MAX = 1 << 22
_PR_SET_PDEATHSIG = 1


class LlamaSide:
    """One llama-server, and its RPC servers if it is split."""

    def __init__(
        self, setup: PeerSetup, programs: Programs, log_dir: Path, *, start_s: float = START_S
    ) -> None:
        self._setup = setup
        self._programs = programs
        self._log_dir = log_dir
        self._start_s = start_s
        self._children: dict[str, Process] = {}
        self._client: aiohttp.ClientSession | None = None
        self._url = ""
        self._refused = False
        """A process ended at an instruction that the processor does not have."""
        self.split: dict[str, int] = {}
        """Layers by device, as the server's log tells; empty before `start`."""

    @property
    def name(self) -> str:
        return str(self._setup)

    def __str__(self) -> str:
        return self.name

    async def start(self) -> None:
        """Start the processes and wait until the model is served. Raises PeerError.

        Some virtual machines name instructions for tiles of matrices among their processor's and
        refuse them: then llama.cpp runs without the layout that they are for.
        """
        try:
            await self._start_in_time()
        except PeerError:
            if not (self._refused and self._setup.repack):
                raise
            self._setup = replace(self._setup, repack=False)
            tell(f"{self.name}: the processor refused an instruction that it names")
            await self._start_in_time()

    async def _start_in_time(self) -> None:
        try:
            async with asyncio.timeout(self._start_s):
                await self._start()
        except TimeoutError:
            await self.stop()
            raise PeerError(
                f"{self.name}: not ready after {self._start_s:.0f} s{self._said('server')}"
            ) from None
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        setup, programs = self._setup, self._programs
        split = setup.nodes if setup.nodes > 1 else 0
        port, *rpc_ports = free_ports(1 + split)
        for number, rpc_port in enumerate(rpc_ports, start=1):
            await self._spawn(f"rpc-{number}", rpc_server_command(setup, programs, rpc_port))
        for number, rpc_port in enumerate(rpc_ports, start=1):
            await self._listening(f"rpc-{number}", rpc_port)
        self._url = f"http://{HOST}:{port}"
        # llama-server closes a connection after a stream without saying so beforehand.
        self._client = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            timeout=aiohttp.ClientTimeout(total=_ANSWER_S),
            read_bufsize=_LINE_BYTES_MAX,
        )
        await self._spawn("server", server_command(setup, programs, port, rpc_ports))
        await self._healthy(self._client)
        self.split = check_split(self.log("server").read_text(errors="replace"), setup.nodes)

    async def stop(self) -> None:
        """Kill every process and wait for it."""
        for child in self._children.values():
            if child.returncode is None:
                child.kill()
        for child in self._children.values():
            await child.wait()
        self._children.clear()
        if self._client is not None:
            await self._client.close()
            self._client = None

    def pids(self) -> Sequence[int]:
        return [child.pid for child in self._children.values()]

    def log(self, role: str) -> Path:
        """Return the log of `server`, `rpc-1`, `rpc-2`, ..."""
        name = self.name.replace(",", "").replace(" ", "-")
        return self._log_dir / f"{name}-{role}.log"

    async def decode(
        self, prompt: Sequence[int], tokens: int, heard: Callable[[], None] = unheard
    ) -> Stream:
        """Generate exactly `tokens` greedy tokens after `prompt`. Raises PeerError."""
        if self._client is None:
            raise PeerError(f"{self.name}: not started")
        body = completion_body(prompt, tokens)
        reading = _Reading(len(prompt), tokens, heard)
        try:
            async with self._client.post(f"{self._url}/completion", json=body) as response:
                if response.status != 200:
                    said = (await response.text())[:300]
                    raise PeerError(f"{self.name}: HTTP {response.status}: {said}")
                async for line in response.content:
                    reading.line(line)
        except aiohttp.ClientError as error:
            raise PeerError(f"{self.name}: {error!r}{self._said('server')}") from error
        return reading.stream(self.name)

    async def _spawn(self, role: str, command: list[str]) -> None:
        self._log_dir.mkdir(parents=True, exist_ok=True)
        with self.log(role).open("wb") as log:
            self._children[role] = await asyncio.create_subprocess_exec(
                *command, stdin=DEVNULL, stdout=log, stderr=STDOUT, preexec_fn=_dying_with_parent()
            )

    async def _listening(self, role: str, port: int) -> None:
        while True:
            self._check_alive(role)
            try:
                _, writer = await asyncio.open_connection(HOST, port)
            except OSError:
                await asyncio.sleep(_POLL_S)
                continue
            writer.close()
            await writer.wait_closed()
            return

    async def _healthy(self, client: aiohttp.ClientSession) -> None:
        while True:
            for role in self._children:
                self._check_alive(role)
            try:
                async with client.get(f"{self._url}/health") as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(_POLL_S)

    def _check_alive(self, role: str) -> None:
        code = self._children[role].returncode
        if code is not None:
            self._refused = code == -signal.SIGILL
            raise PeerError(f"{self.name}: {role} ended with code {code}{self._said(role)}")

    def _said(self, role: str) -> str:
        path = self.log(role)
        if not path.is_file():
            return ""
        lines = path.read_text(errors="replace").splitlines()[-_LOG_LINES:]
        return "\n".join([f"; its log {path} ends:", *lines])


class _Reading:
    """The events of one answer as they arrive.

    A token that ends within a character is told together with the next: then its id and the
    moment of its arrival are unknown.
    """

    def __init__(self, prompt_length: int, tokens: int, heard: Callable[[], None]) -> None:
        self._prompt_length = prompt_length
        self._tokens = tokens
        self._heard = heard
        self._began = time.perf_counter()
        self._at_s: list[float] = []
        self._ids: list[int] = []
        self._text: list[str] = []
        self._last: dict[str, Any] | None = None

    def line(self, line: bytes) -> None:
        if not line.startswith(b"data: "):
            return
        at_s = time.perf_counter() - self._began
        event = json.loads(line[6:])
        if event.get("stop"):
            self._last = event
        if event.get("tokens") or (self._last is event and len(self._at_s) < self._tokens):
            self._at_s.append(at_s)
            self._heard()
        self._ids += event.get("tokens", [])
        self._text.append(event.get("content", ""))

    def stream(self, name: str) -> Stream:
        """Return what arrived. Raises PeerError unless it is exactly what was asked for."""
        if self._last is None:
            raise PeerError(f"{name}: its answer ended early")
        told = (self._last.get("tokens_evaluated"), self._last.get("tokens_predicted"))
        if told != (self._prompt_length, self._tokens):
            asked = (self._prompt_length, self._tokens)
            raise PeerError(f"{name}: prompt and answer have {told} tokens, expected {asked}")
        whole = len(self._ids) == self._tokens
        ids = tuple(self._ids) if whole else ()
        return Stream(self._tokens, tuple(self._at_s), "".join(self._text), ids)


def free_ports(count: int) -> list[int]:
    """Return ports of loopback that nobody listens on at this moment."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind((HOST, 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _dying_with_parent() -> Callable[[], None] | None:
    """What a child does before it becomes another program; None where the system cannot.

    The kernel counts the end of the thread that started the child as its parent's.
    """
    if sys.platform != "linux":
        return None
    # Loaded before the fork: nothing but the call happens after it.
    libc = ctypes.CDLL(None)

    def ask() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    return ask
