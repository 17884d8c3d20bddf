"""One node in this process: it listens at once, loads, tests itself, then says that it is ready.

    listening ──▶ loading (health 200, ready 503) ──▶ ready ──SIGTERM, SIGINT──▶ stopped
                     └── ModelError: told, exit 1       └─told to drain, nobody has a chat─┘

A node that joined a mesh without layers of its own loads what it is told there, and again when it
is told otherwise (obeying.py).

Invariants
    * a shard is announced only once it is loaded and has tested itself;
    * beyond loopback there is no node without a mesh token or mutual TLS;
    * a node leaves its mesh before it stops to serve.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from meshnet.cli.credentials import refuse_open_mesh, tls_of, token_of
from meshnet.cli.joining import Joining, MeshPlace, advertised, joined
from meshnet.cli.leaving import Leaving
from meshnet.cli.machine import cores, free_device_bytes
from meshnet.cli.obeying import Obedience
from meshnet.cli.options import print_ready
from meshnet.cli.serving import run_loop, stop_on_signals, url_of
from meshnet.cli.settings import Settings, SettingsError
from meshnet.cli.shard_loading import ShardChoice, ShardLoader, Through
from meshnet.cli.tracing import spans_of
from meshnet.core.protocol.limits import Limits
from meshnet.core.vocabulary import LayerRange, MemberState, ModelId, NodeId
from meshnet.engine.heap import give_back
from meshnet.mesh.grouped import unwrapped
from meshnet.mesh.parent import end_with_parent
from meshnet.node.compute import ComputeThread
from meshnet.node.service import NodeService
from meshnet.node.shards import NodeLimits
from meshnet.telemetry.events import ProcessReady
from meshnet.telemetry.sink import Telemetry
from meshnet.wire.http_client import HttpHopClient
from meshnet.wire.http_server import node_app
from meshnet.wire.serving import bind, serve_socket
from meshnet.wire.stream_peers import Peers

__all__ = ["Joining", "ShardChoice", "run_node"]

STOP_DEADLINE_S = 3.0


def run_node(
    settings: Settings,
    shards: Sequence[ShardChoice],
    *,
    port: int,
    as_json: bool,
    end_with_stdin: bool,
    joining: Joining | None = None,
    through: Through = lambda shard: shard,
) -> None:
    """Serve until asked to stop. Raises MeshnetError for what cannot be served.

    `through` may slow its shards, to stand for another machine.
    """
    refuse_open_mesh(settings, "a node")
    if len(shards) > settings.max_loaded_shards:
        raise SettingsError(
            f"max_loaded_shards: expected at most {settings.max_loaded_shards} shards, "
            f"got {len(shards)}"
        )
    if end_with_stdin:
        end_with_parent()
    run_loop(lambda: _Node(settings, shards, port, as_json, joining, through).run())


class _Node:
    """The parts of one node process, put together."""

    def __init__(
        self,
        settings: Settings,
        shards: Sequence[ShardChoice],
        port: int,
        as_json: bool,
        joining: Joining | None,
        through: Through,
    ) -> None:
        self._settings, self._shards = settings, shards
        self._as_json, self._joining, self._through = as_json, joining, through
        wanted = settings.measure
        self._measures = joining is not None if wanted is None else wanted
        self._token, self._tls = token_of(settings), tls_of(settings)
        self._listener = bind(settings.host, port)
        self._url = url_of(self._listener, tls=self._tls is not None)
        self._spans = spans_of(settings, role="node", instance=self._url)
        self._telemetry = Telemetry(
            stream=sys.stderr,
            log_format=settings.log_format,
            level=settings.log_level,
            role="node",
            also=() if self._spans is None else (self._spans.observe,),
        )
        self._peers = {NodeId(url): url for url in settings.peers}
        self._known = dict(self._peers)
        """Whom it may take sessions over from: its peers, and all members of its mesh."""
        self._givers = HttpHopClient(self._known, limits=Limits(), token=self._token, tls=self._tls)
        self._compute = ComputeThread(name="compute", on_rest=give_back)
        self._service = self._new_service()
        self._service.ready = False
        self._loader = ShardLoader(
            settings, self._service, self._compute, self._telemetry.record, through
        )

    def _new_service(self) -> NodeService[Any]:
        settings = self._settings
        return NodeService(
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
                move_bytes_per_s=settings.move_bytes_per_second,
                keep_activations=settings.keep_activations,
            ),
            clock=time.monotonic,
            record=self._telemetry.record,
            device=settings.device,
            givers=self._givers,
        )

    async def run(self) -> None:
        app = node_app(
            self._service,
            limits=Limits(),
            token=self._token,
            metrics=self._telemetry.metrics.exposition,
            peers=Peers(self._peers, self._token, self._tls),
            mover=self._service.moves,
        )
        try:
            with unwrapped(), stop_on_signals() as stop:
                async with self._givers, asyncio.TaskGroup() as serving:
                    server = serving.create_task(
                        serve_socket(app, self._listener, token=self._token, tls=self._tls)
                    )
                    await self._work(stop)
                    server.cancel()
        finally:
            self._compute.close(STOP_DEADLINE_S)
            if self._spans is not None:
                self._spans.close()

    async def _work(self, stop: asyncio.Event) -> None:
        """Load and take part in the mesh until `stop`, and leave it."""
        async with self._placed() as place, asyncio.TaskGroup() as group:
            leaving = Leaving(self._service, place, deadline_s=self._settings.drain_seconds)
            tasks = [
                group.create_task(self._load(place)),
                group.create_task(leaving.run(stop)),
            ]
            if place is not None:
                tasks.append(group.create_task(place.run()))
            await stop.wait()
            await leaving.last()
            self._service.ready = False
            for task in tasks:
                task.cancel()

    @asynccontextmanager
    async def _placed(self) -> AsyncIterator[MeshPlace | None]:
        if self._joining is None:
            yield None
            return
        node = advertised(self._joining, self._settings, self._listener)
        async with joined(
            self._settings,
            self._joining,
            node,
            self._peers,
            self._known,
            self._telemetry.record,
        ) as place:
            yield place

    async def _load(self, place: MeshPlace | None) -> None:
        await self._loader.prepare()
        if self._measures:
            await self._measure()
        if place is not None:
            place.enter(self._service.capacity, assigned=not self._shards)
            if not self._shards:
                await self._obey(place)
                return
        models = [await self._loader.load(choice) for choice in self._shards]
        self._service.ready = True
        if place is not None:
            place.announce(MemberState.READY, self._service.describe(), self._first(models))
        self._tell()
        await self._keep_links()

    async def _obey(self, place: MeshPlace) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_links())
            obedience = Obedience(self._settings, place, self._service, self._loader)
            group.create_task(obedience.run(self._tell))

    async def _measure(self) -> None:
        from meshnet.cli.measured import measured_capacity  # a client of nodes: few need one

        self._service.capacity = await measured_capacity(
            self._settings,
            self._compute,
            threads=self._settings.threads or cores(),
            model=self._likely_model(),
            through=self._through,
        )

    def _likely_model(self) -> str | None:
        """Return what this node will serve; None: its mesh has not said so yet."""
        if self._shards:
            return self._shards[0].model
        return self._settings.model if self._joining is None else None

    async def _keep_links(self) -> None:
        """Measure the ways to this node's peers until cancelled, if it measured itself."""
        if not self._measures:
            return
        from meshnet.cli.measured import keep_links

        def others() -> dict[NodeId, str]:
            return {node: url for node, url in self._peers.items() if url != self._url}

        await keep_links(self._service, others, self._token, self._tls)

    def _first(self, models: Sequence[ModelId]) -> tuple[ModelId, LayerRange] | None:
        """Return what a mesh of one model counts with; gateways ask a node for all it holds."""
        return (models[0], self._shards[0].layers) if models else None

    def _tell(self) -> None:
        self._telemetry.record(ProcessReady("node", self._url, os.getpid()))
        print_ready("node", self._url, os.getpid(), as_json=self._as_json)
