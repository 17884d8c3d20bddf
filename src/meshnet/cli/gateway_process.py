"""The OpenAI-compatible API of this process, over nodes that run already or beside it.

Beside what the gateway itself serves, `GET /mesh` tells what the head knows of its nodes, and
`GET /mesh/live` what happens there; the same keys open both.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, closing, nullcontext
from dataclasses import asdict

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp

from meshnet.cli.composition import Composition, composed
from meshnet.cli.credentials import enrolling, is_closed, refuse_open_mesh, tls_of, token_of
from meshnet.cli.draining import DrainMount
from meshnet.cli.keys.file import KeyFile
from meshnet.cli.live.endpoint import Live, add_live
from meshnet.cli.live.mesh import MeshWatch
from meshnet.cli.machine import is_loopback
from meshnet.cli.mesh_gateway import MeshGateway, mesh_gateway
from meshnet.cli.models import load_text, resolve_model
from meshnet.cli.options import print_ready
from meshnet.cli.plan_file import mesh_values
from meshnet.cli.registries import EtcdPlace, check_registry, registry_place
from meshnet.cli.report import NodeReport, as_json, report_of
from meshnet.cli.serving import run_loop, stop_on_signals
from meshnet.cli.settings import Settings, SettingsError, base_url
from meshnet.cli.telling import Telling
from meshnet.core.vocabulary import LayerRange, ModelId, NodeId
from meshnet.engine.models.pull import LocalModel
from meshnet.gateway.app import gateway_app
from meshnet.gateway.ports import Metrics
from meshnet.gateway.server import serve_gateway
from meshnet.gateway.settings import GatewaySettings
from meshnet.mesh.grouped import unwrapped
from meshnet.telemetry.events import ProcessReady, Record
from meshnet.telemetry.metrics import CONTENT_TYPE
from meshnet.telemetry.sink import LogLevel, Telemetry
from meshnet.wire.serving import bind


def run_gateway(
    settings: Settings, urls: Sequence[str], *, registry_url: str | None, as_json: bool
) -> None:
    """Serve over the nodes at `urls` and those that join, until asked to stop.

    They join here, or at the registry of `registry_url`. Raises MeshnetError.
    """
    place = None if registry_url is None else registry_place(registry_url, "--registry")
    if place is not None:
        check_registry(settings, place)
    elif not urls:
        refuse_open_mesh(settings, "a gateway that nodes can join")
    given = [_node(text) for text in urls]
    nodes = {f"node-{place}": url for place, (url, _) in enumerate(given, start=1)}
    if len(set(nodes.values())) < len(nodes):
        raise SettingsError(f"--node: expected different URLs, got {', '.join(urls)}")
    declared = {NodeId(url): layers for url, layers in given if layers is not None}
    refuse_exposed(settings)
    refuse_taken_port(settings)
    run_loop(lambda: _serve(settings, nodes, declared, place, as_json))


def _node(text: str) -> tuple[str, LayerRange | None]:
    """Read `URL`, or `URL=A-B` for a node that knows no `GET /node`. Raises SettingsError."""
    url, equals, layers = text.partition("=")
    try:
        return base_url(url, "--node"), LayerRange.parse(layers) if equals else None
    except ValueError as error:
        raise SettingsError(f"--node {text}: {error}") from None


def refuse_exposed(settings: Settings) -> None:
    """Raise SettingsError if others could use the API without a key."""
    if not is_loopback(settings.host) and not (settings.api_keys or settings.api_keys_file):
        raise SettingsError(
            f"--host {settings.host}: an API beyond loopback needs MESHNET_API_KEYS, "
            "the keys its clients will send"
        )


def refuse_taken_port(settings: Settings) -> None:
    """Raise AddressInUse now, not after a model was fetched and nodes have loaded."""
    if settings.port:
        bind(settings.host, settings.port).close()


async def _serve(
    settings: Settings,
    nodes: Mapping[str, str],
    declared: Mapping[NodeId, LayerRange],
    place: str | EtcdPlace | None,
    as_json: bool,
) -> None:
    with closing(Telling(settings)) as telling, stop_on_signals() as stop:
        telemetry = telling.telemetry
        source = await asyncio.to_thread(resolve_model, settings.model, settings)
        text = await asyncio.to_thread(load_text, source)
        async with (
            composed(
                settings,
                ModelId(source.name),
                text,
                nodes,
                telemetry.record,
                declared=declared,
                through=telling.watching,
            ) as composition,
            _mesh(settings, composition, source, telemetry.record, place) as mesh,
        ):
            state = composition.readiness() if mesh is None else mesh.readiness()
            if not state.ready:
                print(f"waiting: {state.detail}", file=sys.stderr)
            await serve_api(
                settings,
                composition,
                telemetry,
                telling.live,
                stop,
                lambda url: print_ready("gateway", url, os.getpid(), as_json=as_json),
                mesh,
            )


def _mesh(
    settings: Settings,
    composition: Composition,
    source: LocalModel,
    record: Record,
    place: str | EtcdPlace | None,
) -> AbstractAsyncContextManager[MeshGateway | None]:
    """Return the part that the gateway takes in a mesh; None: it may keep no registry."""
    if place is None and not is_closed(settings):
        return nullcontext()
    return mesh_gateway(settings, composition, source, record, elsewhere=place)


def quiet_telemetry(settings: Settings) -> Telemetry:
    """Return the sink of a command whose output is an answer: the usual events are not told."""
    usual = settings.log_level is LogLevel.INFO
    return Telemetry(
        stream=sys.stderr,
        log_format=settings.log_format,
        level=LogLevel.WARNING if usual else settings.log_level,
        role="head",
    )


async def serve_api(
    settings: Settings,
    composition: Composition,
    telemetry: Telemetry,
    live: Live,
    stop: asyncio.Event,
    started: Callable[[str], None],
    mesh: MeshGateway | None = None,
) -> None:
    """Answer the API until `stop` is set; running answers get a moment to end."""
    gateway_settings = _gateway_settings(settings)
    api = enrolling(api_app(composition, gateway_settings, telemetry, live, mesh), settings)
    tls = tls_of(settings)
    app = DrainMount(api, composition, token=token_of(settings), certified=tls is not None)

    def tell(url: str) -> None:
        telemetry.record(ProcessReady("gateway", url, os.getpid()))
        started(url)

    with unwrapped():
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(
                serve_gateway(
                    app,
                    gateway_settings,
                    host=settings.host,
                    port=settings.port,
                    started=tell,
                    tls=tls,
                )
            )
            readiness = composition.readiness if mesh is None else mesh.readiness
            watch = MeshWatch(composition, readiness, telemetry.pace, live.feed, live.clock)
            watching = group.create_task(watch.run())
            await stop.wait()
            watching.cancel()
            live.feed.close()
            if mesh is not None:
                mesh.close()
            serving.cancel()


def _gateway_settings(settings: Settings) -> GatewaySettings:
    file = settings.api_keys_file
    return GatewaySettings(
        api_keys=tuple(key.get_secret_value() for key in settings.api_keys),
        stored_keys=None if file is None else KeyFile(file).known,
        deadline_s=settings.request_timeout_seconds,
        trace_ratio=None if settings.trace_endpoint is None else settings.trace_ratio,
    )


def api_app(
    composition: Composition,
    settings: GatewaySettings,
    telemetry: Telemetry,
    live: Live,
    mesh: MeshGateway | None,
) -> ASGIApp:
    """Return the gateway's application, with `/mesh` and the registry beside it."""
    readiness = composition.readiness if mesh is None else mesh.readiness
    app = gateway_app(
        composition.head,
        composition.text,
        readiness,
        settings,
        fingerprint=composition.fingerprint,
        record=telemetry.record,
        metrics=Metrics(CONTENT_TYPE, telemetry.metrics.exposition),
    )

    async def described(request: Request) -> Response:
        await composition.directory.refresh()
        state, told = readiness(), telemetry.pace.told
        return JSONResponse(
            {
                "model": composition.model,
                "ready": state.ready,
                "detail": state.detail,
                "nodes": as_json(reports(composition)),
                "answers": None if told is None else asdict(told),
                "measured": mesh_values(composition.measured()),
                **({} if mesh is None else await mesh.report()),
            }
        )

    app.add_api_route("/mesh", described, methods=["GET"], include_in_schema=False)
    add_live(app, live.feed, settings)
    return app if mesh is None else mesh.mounted(app)


def reports(composition: Composition) -> list[NodeReport]:
    """Return what the directory knows now, in the order the nodes were given."""
    return [
        report_of(composition.name_of(node.node), str(node.node), node, composition.model)
        for node in composition.directory.snapshot()
    ]
