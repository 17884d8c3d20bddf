"""The OpenAI-compatible API of this process, over nodes that run already or beside it.

Beside what the gateway itself serves, `GET /mesh` tells what the head knows of its nodes; the
same keys open it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from urllib.parse import urlsplit

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from meshnet.cli.composition import Composition, composed
from meshnet.cli.machine import is_loopback
from meshnet.cli.models import load_text, resolve_model
from meshnet.cli.options import print_ready
from meshnet.cli.plan_file import mesh_values
from meshnet.cli.report import NodeReport, as_json, report_of
from meshnet.cli.serving import run_loop, stop_on_signals
from meshnet.cli.settings import Settings, SettingsError
from meshnet.core.vocabulary import LayerRange, ModelId, NodeId
from meshnet.gateway.app import gateway_app
from meshnet.gateway.ports import Metrics
from meshnet.gateway.server import serve_gateway
from meshnet.gateway.settings import GatewaySettings
from meshnet.mesh.grouped import unwrapped
from meshnet.telemetry.events import ProcessReady
from meshnet.telemetry.metrics import CONTENT_TYPE
from meshnet.telemetry.sink import LogLevel, Telemetry
from meshnet.wire.serving import bind


def run_gateway(settings: Settings, urls: Sequence[str], *, as_json: bool) -> None:
    """Serve over the nodes at `urls` until asked to stop. Raises MeshnetError."""
    given = [_node(text) for text in urls]
    nodes = {f"node-{place}": url for place, (url, _) in enumerate(given, start=1)}
    if len(set(nodes.values())) < len(nodes):
        raise SettingsError(f"--node: expected different URLs, got {', '.join(urls)}")
    declared = {NodeId(url): layers for url, layers in given if layers is not None}
    refuse_exposed(settings)
    refuse_taken_port(settings)
    run_loop(lambda: _serve(settings, nodes, declared, as_json))


def _node(text: str) -> tuple[str, LayerRange | None]:
    """Read `URL`, or `URL=A-B` for a node that knows no `GET /node`. Raises SettingsError."""
    url, equals, layers = text.partition("=")
    try:
        return _node_url(url), LayerRange.parse(layers) if equals else None
    except ValueError as error:
        raise SettingsError(f"--node {text}: {error}") from None


def refuse_exposed(settings: Settings) -> None:
    """Raise SettingsError if others could use the API without a key."""
    if not is_loopback(settings.host) and not settings.api_keys:
        raise SettingsError(
            f"--host {settings.host}: an API beyond loopback needs MESHNET_API_KEYS, "
            "the keys its clients will send"
        )


def refuse_taken_port(settings: Settings) -> None:
    """Raise AddressInUse now, not after a model was fetched and nodes have loaded."""
    if settings.port:
        bind(settings.host, settings.port).close()


def _node_url(url: str) -> str:
    """Return the base URL without a trailing slash. Raises SettingsError."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise SettingsError(f"--node: expected a URL such as http://10.0.0.1:9001, got {url!r}")
    return url.rstrip("/")


async def _serve(
    settings: Settings,
    nodes: Mapping[str, str],
    declared: Mapping[NodeId, LayerRange],
    as_json: bool,
) -> None:
    telemetry = gateway_telemetry(settings)
    with stop_on_signals() as stop:
        source = await asyncio.to_thread(resolve_model, settings.model, settings)
        text = await asyncio.to_thread(load_text, source)
        async with composed(
            settings, ModelId(source.name), text, nodes, telemetry.record, declared=declared
        ) as composition:
            if not (state := composition.readiness()).ready:
                print(f"waiting: {state.detail}", file=sys.stderr)
            await serve_api(
                settings,
                composition,
                telemetry,
                stop,
                lambda url: print_ready("gateway", url, os.getpid(), as_json=as_json),
            )


def gateway_telemetry(settings: Settings) -> Telemetry:
    return Telemetry(
        stream=sys.stderr,
        log_format=settings.log_format,
        level=settings.log_level,
        role="gateway",
    )


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
    stop: asyncio.Event,
    started: Callable[[str], None],
) -> None:
    """Answer the API until `stop` is set; running answers get a moment to end."""
    gateway_settings = GatewaySettings(
        api_keys=tuple(key.get_secret_value() for key in settings.api_keys),
        deadline_s=settings.request_timeout_seconds,
    )
    app = api_app(composition, gateway_settings, telemetry)

    def tell(url: str) -> None:
        telemetry.record(ProcessReady("gateway", url, os.getpid()))
        started(url)

    with unwrapped():
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(
                serve_gateway(
                    app, gateway_settings, host=settings.host, port=settings.port, started=tell
                )
            )
            await stop.wait()
            serving.cancel()


def api_app(composition: Composition, settings: GatewaySettings, telemetry: Telemetry) -> FastAPI:
    """Return the gateway's application, with `/mesh` beside it."""
    app = gateway_app(
        composition.head,
        composition.text,
        composition.readiness,
        settings,
        fingerprint=composition.fingerprint,
        record=telemetry.record,
        metrics=Metrics(CONTENT_TYPE, telemetry.metrics.exposition),
    )

    async def mesh(request: Request) -> Response:
        await composition.directory.refresh()
        state, told = composition.readiness(), telemetry.pace.told
        return JSONResponse(
            {
                "model": composition.model,
                "ready": state.ready,
                "detail": state.detail,
                "nodes": as_json(reports(composition)),
                "answers": None if told is None else asdict(told),
                "measured": mesh_values(composition.measured()),
            }
        )

    app.add_api_route("/mesh", mesh, methods=["GET"], include_in_schema=False)
    return app


def reports(composition: Composition) -> list[NodeReport]:
    """Return what the directory knows now, in the order the nodes were given."""
    return [
        report_of(composition.names[node.node], str(node.node), node, composition.model)
        for node in composition.directory.snapshot()
    ]
