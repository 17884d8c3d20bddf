"""One node in this process: it listens at once, loads, tests itself, then says that it is ready.

    listening ──▶ loading (health 200, ready 503) ──▶ ready ──SIGTERM, SIGINT──▶ stopped
                     └── ModelError: told, exit 1

Invariants
    * a shard is announced only once it is loaded and has tested itself;
    * torch is imported, loads and computes on the one compute thread, whose first job is to set
      its own thread count (torch keeps that number per thread);
    * beyond loopback there is no node without a mesh token.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from meshnet.cli.machine import cores, free_device_bytes, is_loopback
from meshnet.cli.models import format_of, resolve_model
from meshnet.cli.options import print_ready
from meshnet.cli.serving import run_loop, stop_on_signals, url_of
from meshnet.cli.settings import Settings, SettingsError, told
from meshnet.core.protocol.limits import Limits
from meshnet.core.vocabulary import LayerRange, MeshnetError, ModelId, NodeId
from meshnet.mesh.grouped import unwrapped
from meshnet.mesh.parent import end_with_parent
from meshnet.node.compute import ComputeThread
from meshnet.node.service import NodeService
from meshnet.node.shards import NodeLimits
from meshnet.telemetry.events import ProcessReady, ShardDegraded, ShardFailed, ShardLoaded
from meshnet.telemetry.sink import Telemetry
from meshnet.wire.http_server import node_app
from meshnet.wire.serving import bind, serve_socket
from meshnet.wire.stream_peers import Peers

if TYPE_CHECKING:
    from meshnet.engine.shard import TorchModelShard

STOP_DEADLINE_S = 3.0
Through = Callable[[Any], Any]
"""Stands between a shard and those who run it."""


@dataclass(frozen=True, slots=True)
class ShardChoice:
    """Layers of a model that a node is to hold; `model` as the user wrote it."""

    model: str
    layers: LayerRange

    @classmethod
    def of(cls, model: str, layers: str) -> ShardChoice:
        try:
            return cls(model, LayerRange.parse(layers))
        except ValueError as error:
            raise SettingsError(f"--layers: {told(error)}") from None

    @classmethod
    def parse(cls, text: str) -> ShardChoice:
        """Read `MODEL:A-B`. Raises SettingsError."""
        model, colon, layers = text.rpartition(":")
        if not colon or not model:
            raise SettingsError(f"--shard: expected MODEL:A-B, got {text!r}")
        return cls.of(model, layers)


def run_node(
    settings: Settings,
    shards: Sequence[ShardChoice],
    *,
    port: int,
    as_json: bool,
    end_with_stdin: bool,
    through: Through = lambda shard: shard,
) -> None:
    """Serve until asked to stop. Raises MeshnetError for what cannot be served.

    `through` may slow its shards, to stand for another machine.
    """
    if not is_loopback(settings.host) and settings.mesh_token is None:
        raise SettingsError(
            f"--host {settings.host}: a node beyond loopback needs MESHNET_MESH_TOKEN, the same "
            "secret for all nodes and gateways"
        )
    if len(shards) > settings.max_loaded_shards:
        raise SettingsError(
            f"max_loaded_shards: expected at most {settings.max_loaded_shards} shards, "
            f"got {len(shards)}"
        )
    if end_with_stdin:
        end_with_parent()
    run_loop(lambda: _Node(settings, shards, port, as_json, through).run())


class _Node:
    """The parts of one node process, put together."""

    def __init__(
        self,
        settings: Settings,
        shards: Sequence[ShardChoice],
        port: int,
        as_json: bool,
        through: Through,
    ) -> None:
        self._settings, self._shards = settings, shards
        self._as_json, self._through = as_json, through
        self._listener = bind(settings.host, port)
        self._url = url_of(self._listener)
        secret = settings.mesh_token
        self._token = None if secret is None else secret.get_secret_value()
        self._telemetry = Telemetry(
            stream=sys.stderr,
            log_format=settings.log_format,
            level=settings.log_level,
            role="node",
        )
        self._compute = ComputeThread(name="compute", on_rest=_give_back)
        self._service: NodeService[Any] = NodeService(
            node=NodeId(self._url),
            pid=os.getpid(),
            shards=(),
            compute=self._compute,
            limits=NodeLimits(
                kv_bytes_max=settings.kv_max_bytes
                or max(1, free_device_bytes(settings.device) // 2),
                sessions_max=settings.kv_max_sessions,
                ttl_s=settings.kv_ttl_seconds,
                pin_s=min(5.0, settings.kv_ttl_seconds),
                shards_max=settings.max_loaded_shards,
            ),
            clock=time.monotonic,
            record=self._telemetry.record,
            device=settings.device,
        )
        self._service.ready = False
        self._loaded: set[ShardChoice] = set()

    async def run(self) -> None:
        app = node_app(
            self._service,
            limits=Limits(),
            token=self._token,
            metrics=self._telemetry.metrics.exposition,
            peers=Peers.of(self._settings.peers, self._token),
        )
        try:
            with unwrapped(), stop_on_signals() as stop:
                async with asyncio.TaskGroup() as group:
                    serving = group.create_task(
                        serve_socket(app, self._listener, token=self._token)
                    )
                    loading = group.create_task(self._load())
                    await stop.wait()
                    self._service.ready = False
                    serving.cancel()
                    loading.cancel()
        finally:
            self._compute.close(STOP_DEADLINE_S)

    async def _load(self) -> None:
        threads = self._settings.threads or cores()
        await self._compute.run(lambda: _set_threads(threads))
        if self._settings.measure:
            await self._measure(threads)
        for choice in self._shards:
            await self._load_one(choice)
        # Half a million objects of libraries stay for good: no collection may visit them again,
        # neither between two tokens nor, for seconds, at the end of the process.
        gc.freeze()
        _give_back()
        self._service.ready = True
        self._telemetry.record(ProcessReady("node", self._url, os.getpid()))
        print_ready("node", self._url, os.getpid(), as_json=self._as_json)
        if self._settings.measure:
            await self._keep_links()

    async def _measure(self, threads: int) -> None:
        from meshnet.cli.measured import measured_capacity  # a client of nodes: few need one

        model = self._shards[0].model if self._shards else self._settings.model
        self._service.capacity = await measured_capacity(
            self._settings, self._compute, threads=threads, model=model, through=self._through
        )

    async def _keep_links(self) -> None:
        from meshnet.cli.measured import keep_links

        others = {NodeId(url): url for url in self._settings.peers if url != self._url}
        await keep_links(self._service, lambda: others, self._token)

    async def _load_one(self, choice: ShardChoice) -> None:
        started = time.monotonic()
        try:
            shard = await self._compute.run(lambda: self._load_shard(choice))
        except MeshnetError as error:
            self._telemetry.record(ShardFailed(choice.model, str(choice.layers), str(error)))
            raise
        try:
            self._service.add(self._through(shard))
        except ValueError as error:
            raise SettingsError(f"--shard: {error}") from None
        shard.kv_sessions = self._service.kv_sessions(shard.description.model)
        self._loaded.add(choice)
        told = shard.description
        self._telemetry.record(
            ShardLoaded(
                model=told.model,
                layers=str(told.layers),
                kv_cache=told.capabilities.kv_cache,
                multi_token=told.capabilities.multi_token,
                weight_bytes=told.weight_bytes,
                bytes_read=told.bytes_read,
                load_s=time.monotonic() - started,
            )
        )

    def _load_shard(self, choice: ShardChoice) -> TorchModelShard:
        from meshnet.engine.loading import load_shard

        source = resolve_model(choice.model, self._settings)

        def report(note: str) -> None:
            # Before it is loaded a shard tells what its self-test found; later, only that a
            # prefill left its cache empty.
            later = choice in self._loaded
            self._telemetry.record(ShardDegraded(source.name, str(choice.layers), note, later))

        return load_shard(
            source.path,
            choice.layers,
            model=ModelId(source.name),
            weights=format_of(self._settings.weights),
            device=self._settings.device,
            fast_prefill=self._settings.fast_prefill,
            report=report,
        )


def _give_back() -> None:
    from meshnet.engine.heap import give_back

    give_back()


def _set_threads(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)
