"""The sides by name, and those that are ours.

mesh:2x1            `meshnet up`, 2 nodes of 1 thread, through its API
engine:1            the unsplit engine in one process with 1 thread
generate:2          transformers' `generate` with 2 threads
llama:2             llama.cpp in one process
llama-rpc:2x1       llama.cpp split over 2 RPC servers of 1 thread each

@FORMAT             of the weights: mesh:2x1@int8-fast, llama-rpc:2x1@q8_0
+KEY=VALUE          any setting of meshnet: mesh:2x1@int8+prefill_chunk=128
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from meshnet.cli.bench.completions import completion_body, streamed_completion
from meshnet.cli.bench.side import Side, Stream, unheard
from meshnet.cli.bench.workers import Worker
from meshnet.cli.local_nodes import settings_environment
from meshnet.cli.machine import cores
from meshnet.cli.settings import Settings, SettingsError, load_settings
from meshnet.mesh.threads import thread_environment

KINDS = ("mesh", "engine", "generate", "llama", "llama-rpc")
SPLIT = ("mesh", "llama-rpc")
ONE_SESSION = ("engine", "generate")
"""These serve one generation at a time."""
SESSIONS_MAX = 16
"""What a side must serve at once."""


@dataclass(frozen=True, slots=True)
class SideSpec:
    """A side as the user names it."""

    kind: str
    nodes: int = 1
    threads: int = 1
    weights: str | None = None
    assigned: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        shape = f"{self.nodes}x{self.threads}" if self.split else str(self.threads)
        weights = "" if self.weights is None else f"@{self.weights}"
        return f"{self.kind}:{shape}{weights}" + "".join(f"+{k}={v}" for k, v in self.assigned)

    @property
    def split(self) -> bool:
        return self.kind in SPLIT

    @classmethod
    def parse(cls, text: str) -> SideSpec:
        """Read one of the forms above. Raises SettingsError."""
        match = re.fullmatch(
            r"([a-z-]+)(?::(?:([1-9]\d?)x)?([1-9]\d{0,2}))?(?:@([\w-]+))?((?:\+\w+=[^+]+)*)", text
        )
        if match is None or match[1] not in KINDS:
            raise SettingsError(f"--side: expected {', '.join(KINDS)} [:NxT], got {text!r}")
        kind, nodes, threads, weights, tail = match.groups()
        if nodes is not None and kind not in SPLIT:
            raise SettingsError(f"--side {text}: {kind} runs in one process: expected {kind}:T")
        pairs = (part.partition("=") for part in tail.split("+")[1:])
        return cls(
            kind,
            int(nodes or (2 if kind in SPLIT else 1)),
            int(threads or 1),
            weights,
            tuple((key, value) for key, _, value in pairs),
        )


def side_of(
    spec: SideSpec, settings: Settings, *, sessions: int = 1, positions: int = 2048
) -> Side:
    """Return the side `spec` names, not yet started.

    Args:
        sessions: how many generations it must run at once.
        positions: the longest of them.

    Raises:
        SettingsError: it cannot run so many; MeshnetError where a peer is not built.
    """
    if sessions > 1 and spec.kind in ONE_SESSION:
        raise SettingsError(f"--side {spec}: it runs one session at a time, {sessions} are asked")
    if spec.kind in ("llama", "llama-rpc"):
        return _llama(spec, settings, sessions, positions)
    own = own_settings(spec, settings)
    return MeshSide(spec, own) if spec.kind == "mesh" else LoneSide(spec, own)


def _llama(spec: SideSpec, settings: Settings, sessions: int, positions: int) -> Side:
    from meshnet.cli.bench.peers import LlamaSide
    from meshnet.cli.bench.peers_build import programs
    from meshnet.cli.bench.peers_setup import PeerSetup
    from meshnet.cli.models import Bars, resolve_model
    from meshnet.engine.models.gguf_export import exported

    given = dict(spec.assigned)
    if unknown := set(given) - {"flash_attention", "micro_batch"}:
        raise SettingsError(f"--side {spec}: llama.cpp has no {', '.join(sorted(unknown))} here")
    built = programs(settings.cache_dir)
    source = resolve_model(settings.model, settings)
    kind = spec.weights or "q8_0"
    setup = PeerSetup(
        exported(source.path, source.name, kind, settings.cache_dir, Bars()),
        nodes=spec.nodes,
        threads=spec.threads,
        sessions=sessions,
        context_length=-(-positions // 256) * 256,
        flash_attention=given.get("flash_attention", "on") != "off",
        micro_batch=int(given.get("micro_batch", 512)),
        weights=kind,
    )
    logs = Path(tempfile.mkdtemp(prefix="meshnet-bench-"))
    return LlamaSide(setup, built, logs)


def own_settings(spec: SideSpec, settings: Settings) -> Settings:
    """Return `settings` as this side has them. Raises SettingsError."""
    values = {name: value for name, value in settings if name in settings.model_fields_set}
    given = {
        **values,
        "threads": spec.threads,
        "kv_max_sessions": max(settings.kv_max_sessions, SESSIONS_MAX),
        "port": 0,
        "host": "127.0.0.1",
    }
    if spec.weights is not None:
        given["weights"] = spec.weights
    return load_settings(given, assigned=dict(spec.assigned))


def environment_of(settings: Settings, *, nodes: int, threads: int) -> dict[str, str]:
    """Return the environment of a process that is to have these settings."""
    return {
        **os.environ,
        **settings_environment(settings),
        **thread_environment(cores=cores(), nodes=nodes, threads=threads),
    }


class MeshSide:
    """Node processes, head and API, started by `meshnet up`, as a client sees them."""

    def __init__(self, spec: SideSpec, settings: Settings) -> None:
        self.name = str(spec)
        self._model = settings.model
        self._worker = Worker(
            ["up", str(spec.nodes)],
            environment_of(settings, nodes=spec.nodes, threads=spec.threads),
        )
        self._http: aiohttp.ClientSession | None = None
        self._url = ""

    def __str__(self) -> str:
        return self.name

    async def start(self) -> None:
        self._url = str((await self._worker.start())["url"])
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None),
            trust_env=False,
        )
        async with self._http.get(f"{self._url}/v1/models") as response:
            self._model = (await response.json())["data"][0]["id"]

    async def stop(self) -> None:
        if self._http is not None:
            await self._http.close()
        await self._worker.stop()

    def pids(self) -> Sequence[int]:
        return (self._worker.pid,)

    async def decode(
        self, prompt: Sequence[int], tokens: int, heard: Callable[[], None] = unheard
    ) -> Stream:
        assert self._http is not None
        body = completion_body(self._model, prompt, tokens)
        return await streamed_completion(self._http, self._url, body, heard)


class LoneSide:
    """The engine, or transformers, in one process; sessions wait for each other."""

    def __init__(self, spec: SideSpec, settings: Settings) -> None:
        self.name = str(spec)
        self._worker = Worker([spec.kind], environment_of(settings, nodes=1, threads=spec.threads))

    def __str__(self) -> str:
        return self.name

    async def start(self) -> None:
        await self._worker.start()

    async def stop(self) -> None:
        await self._worker.stop()

    def pids(self) -> Sequence[int]:
        return (self._worker.pid,)

    async def decode(
        self, prompt: Sequence[int], tokens: int, heard: Callable[[], None] = unheard
    ) -> Stream:
        told = await self._worker.ask({"prompt": list(prompt), "tokens": tokens})
        for _ in told["at_s"]:
            heard()
        return Stream(tokens, tuple(told["at_s"]), token_ids=tuple(told["ids"]))
