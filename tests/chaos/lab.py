"""Node and head processes of one mesh, each in a place of a network that can be broken.

Every process is started by the command that a user types, and can be killed, stopped, asked to
end and started again at the same address. What it wrote to its log in all its lives is kept.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

import httpx2
import psutil
from tests.chaos.network import Network, network_of
from tests.cluster.api import POLL_S, samples
from tests.processes import MeshnetProcess, command

TOKEN = "chaos-mesh-token"
KEY = "chaos-api-key"
KILL, ASK, STOP, CONTINUE = signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP, signal.SIGCONT
START_DEADLINE_S = 300.0
"""Many processes start at once here, and some compile first."""
READY_DEADLINE_S = 120.0
LOOK_DEADLINE_S = 30.0


@dataclass(frozen=True, slots=True)
class Mesh:
    """What a lab runs. `nodes` and `heads` are names; a node's value is its layers, `0-2`."""

    model: Path
    weights: str
    nodes: Mapping[str, str]
    heads: Sequence[str] = ("head-1", "head-2")
    settings: Mapping[str, str] = field(default_factory=dict)
    """More settings of all processes, by their environment variables."""
    request_deadline_s: float = 60.0
    session_ttl_s: float = 30.0
    hop_timeout_s: float = 2.0
    joins: bool = False
    """Nodes join the first head, which keeps the registry; else all are told of all."""

    def environment(self) -> dict[str, str]:
        return {
            "MESHNET_MESH_TOKEN": TOKEN,
            "MESHNET_API_KEYS": KEY,
            "MESHNET_WEIGHTS": self.weights,
            "MESHNET_LOG_FORMAT": "json",
            "MESHNET_PREFIX_SESSIONS": "0",  # so that nothing stays of a chat that ended
            "MESHNET_REQUEST_TIMEOUT_SECONDS": str(self.request_deadline_s),
            "MESHNET_KV_TTL_SECONDS": str(self.session_ttl_s),
            "MESHNET_HOP_TIMEOUT_SECONDS": str(self.hop_timeout_s),
            "MESHNET_PREFILL_CHUNK": "64",
            "MESHNET_MEASURE": "false",
            "MESHNET_DRAIN_SECONDS": "10",
            "MESHNET_LEASE_SECONDS": "5",
            "MESHNET_NODES_MIN": str(len(self.nodes)),
            **self.settings,
        }


class Lab:
    """Use it as an async context manager: it is entered when every head is ready."""

    def __init__(self, mesh: Mesh, *, network: str = "auto") -> None:
        self.mesh = mesh
        self.network: Network = network_of([*mesh.nodes, *mesh.heads], network)
        self.client = httpx2.AsyncClient(
            headers={"Authorization": f"Bearer {KEY}"},
            timeout=LOOK_DEADLINE_S,
            trust_env=False,
            limits=httpx2.Limits(max_keepalive_connections=0),
        )
        self._processes: dict[str, MeshnetProcess] = {}
        self._lives: dict[str, int] = dict.fromkeys([*mesh.nodes, *mesh.heads], 0)
        self._logs: list[str] = []
        self._state = TemporaryDirectory(prefix="meshnet-lab-")

    async def __aenter__(self) -> Lab:
        await self.network.__aenter__()
        try:
            async with asyncio.TaskGroup() as group:
                for name in (*self.mesh.nodes, *self.mesh.heads):
                    group.create_task(self.start(name))
            async with asyncio.TaskGroup() as group:
                for head in self.mesh.heads:
                    group.create_task(self.until_ready(head))
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._end()

    def front(self, name: str) -> str:
        """The URL by which a test asks this process."""
        return self.network.place(name).front

    def life(self, name: str) -> int:
        """How often the process was started; another number means that it died in between."""
        return self._lives[name]

    def lives(self, name: str) -> bool:
        process = self._processes.get(name)
        return process is not None and process.is_running

    def pid(self, name: str) -> int:
        return self._processes[name].pid

    async def start(self, name: str, **settings: str) -> None:
        """Start a process that does not run, and wait until it says that it is ready."""
        assert not self.lives(name), f"{name} runs already"
        place = self.network.place(name)
        self._lives[name] += 1
        process = MeshnetProcess(
            self._arguments(name),
            {
                **self.mesh.environment(),
                "MESHNET_STATE_DIR": str(Path(self._state.name) / name),
                **settings,
            },
            wrapper=place.wrapper,
        )
        self._processes[name] = process
        await asyncio.to_thread(process.wait_ready, START_DEADLINE_S)

    async def end(self, name: str, number: int) -> None:
        """Kill the process, or ask it to end, and wait until it has."""
        process = self._processes[name]
        self._lives[name] += 1
        if number == KILL:
            process.kill()
        await asyncio.to_thread(process.stop)
        self._logs += process.told()

    async def drain(self, name: str, head: str) -> str | None:
        """Run `meshnet drain`; return what it said if it failed. The node has ended otherwise."""
        done = await asyncio.to_thread(
            command,
            *("drain", self.network.place(name).url, "--gateway", self.front(head)),
            cwd=Path(self._state.name),
            **self.mesh.environment(),
        )
        return done.stderr.strip() if done.returncode else None

    def send(self, name: str, number: int) -> None:
        self._processes[name].send(number)

    async def until_ready(self, name: str) -> None:
        """Wait until `/ready` says so. Raises AssertionError at the deadline."""
        await self.until(
            lambda: self._answers(f"{self.front(name)}/ready"), f"{name} is ready", READY_DEADLINE_S
        )

    async def until(
        self, holds: Callable[[], Awaitable[bool]], what: str, deadline_s: float
    ) -> None:
        """Ask again and again until it holds. Raises AssertionError at the deadline."""
        try:
            async with asyncio.timeout(deadline_s):
                while not await holds():  # noqa: ASYNC110  # another process
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise AssertionError(f"not within {deadline_s:g} s: {what}") from None

    async def node(self, name: str) -> dict[str, Any]:
        """What a node says of itself."""
        return dict((await self._asked(name, "/node")).json())

    async def counted(self, name: str, counter: str) -> int:
        """What a counter of a node stands at."""
        return samples((await self._asked(name, "/metrics")).text, counter).total()

    def files_open(self, name: str) -> int:
        return int(psutil.Process(self.pid(name)).num_fds())

    def told(self, name: str) -> list[dict[str, Any]]:
        """Every event of this name that a process logged, in all lives of all processes."""
        running = [line for process in self._processes.values() for line in process.told()]
        events = [json.loads(line) for line in (*self._logs, *running) if line.startswith("{")]
        return [event for event in events if event.get("event") == name]

    async def _asked(self, name: str, path: str) -> httpx2.Response:
        response = await self.client.get(
            f"{self.front(name)}{path}", headers={"Authorization": f"Bearer {TOKEN}"}
        )
        return response.raise_for_status()

    async def _answers(self, url: str) -> bool:
        try:
            return (await self.client.get(url)).status_code == 200
        except httpx2.HTTPError:
            return False

    def _arguments(self, name: str) -> list[str]:
        place = self.network.place(name)
        layers = self.mesh.nodes.get(name)
        return [
            *(["serve"] if layers is None else ["node", "--layers", layers]),
            *(self._joining(name) if self.mesh.joins else self._told_of(name)),
            *("--model", str(self.mesh.model), "--host", place.host, "--port", str(place.port)),
            "--json-ready",
        ]

    def _told_of(self, name: str) -> list[str]:
        flag = "--peer" if name in self.mesh.nodes else "--node"
        urls = [self.network.place(node).url for node in self.mesh.nodes]
        return [part for url in urls for part in (flag, url)]

    def _joining(self, name: str) -> list[str]:
        first = self.network.place(self.mesh.heads[0])
        if name in self.mesh.nodes:
            return ["--join", first.url, "--advertise", self.network.place(name).url]
        return [] if name == first.name else ["--registry", first.url]

    async def _end(self) -> None:
        await self.client.aclose()
        stopping = [asyncio.to_thread(process.stop) for process in self._processes.values()]
        try:
            await asyncio.gather(*stopping)
        finally:
            self._state.cleanup()
            await self.network.__aexit__(None, None, None)
