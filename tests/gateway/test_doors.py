"""Every route of every server is closed to who shows nothing, and to the wrong credential."""

from __future__ import annotations

import io
from typing import Any

import pytest
from tests.gateway.api import Gateway, ids_of
from tests.mesh.members import asgi_call
from tests.wire.echoing import LIMITS, EchoService

from meshnet.gateway.page import page_files
from meshnet.gateway.ports import Metrics
from meshnet.gateway.settings import GatewaySettings
from meshnet.mesh.registry.http_server import registry_app
from meshnet.mesh.registry.sqlite import SqliteRegistry
from meshnet.telemetry.metrics import CONTENT_TYPE
from meshnet.telemetry.sink import LogFormat, LogLevel, Telemetry
from meshnet.wire.http_server import METHODS, SESSION_METHODS, node_app

USER_KEY, MESH_TOKEN = "mn-a-user", "a-mesh-token"
PROBES = {"/health", "/ready"}
NODE_ROUTES = [(path, method) for path, methods in METHODS.items() for method in methods] + [
    *(("/sessions/s", method) for method in SESSION_METHODS),
    ("/sessions/s/take", "POST"),
    ("/sessions/s/layers/0", "GET"),
    ("/sessions/s/stream", "GET"),
    ("/no/such/path", "GET"),
]


def locked() -> Gateway:
    settings = GatewaySettings(api_keys=(USER_KEY,))
    return Gateway([0], settings=settings, metrics=Metrics(CONTENT_TYPE, lambda: b""))


def bearer(credential: str | None) -> list[tuple[bytes, bytes]]:
    shown = [] if credential is None else [(b"authorization", f"Bearer {credential}".encode())]
    return [(b"host", b"127.0.0.1"), *shown]


@pytest.mark.parametrize("credential", [None, MESH_TOKEN])
async def test_every_route_of_a_gateway_but_probes_and_page_asks_for_a_key(credential: str | None):
    gateway = locked()
    routes: list[Any] = [*gateway.app.routes]
    open_paths = PROBES | page_files().keys()
    headers = {} if credential is None else {"authorization": f"Bearer {credential}"}

    answered = {
        (route.path, method): (
            await gateway.send(method, route.path.replace("{model:path}", "m"), headers=headers)
        ).status_code
        for route in routes
        for method in route.methods
    }

    assert len(answered) > 20
    opened = {path for (path, _), status in answered.items() if status != 401}
    assert opened <= open_paths
    assert opened >= PROBES


@pytest.mark.parametrize("credential", [None, USER_KEY])
@pytest.mark.parametrize(("path", "method"), NODE_ROUTES)
async def test_every_route_of_a_node_but_health_asks_for_the_mesh_token(
    path: str, method: str, credential: str | None
):
    app = node_app(EchoService(), limits=LIMITS, token=MESH_TOKEN, metrics=lambda: b"")

    status, _ = await asgi_call(app, method, path, headers=bearer(credential))  # type: ignore[arg-type]

    assert status == (200 if path == "/health" else 401)


@pytest.mark.parametrize("credential", [None, USER_KEY])
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "POST"])
@pytest.mark.parametrize("path", ["", "/members", "/changes", "/values", "/other"])
async def test_every_route_of_a_registry_asks_for_the_mesh_token(
    path: str, method: str, credential: str | None
):
    registry = SqliteRegistry(None, clock=lambda: 0.0, born=1)
    app = registry_app(registry, token=MESH_TOKEN)

    status, _ = await asgi_call(app, method, f"/registry{path}", headers=bearer(credential))
    registry.close()

    assert status == 401


@pytest.mark.parametrize("method", ["GET", "OPTIONS"])
async def test_no_other_site_is_told_that_it_may_read_answers(method: str):
    headers = {"origin": "https://evil.example", "access-control-request-method": "POST"}

    answered = await locked().send(method, "/v1/models", headers=headers)

    assert not [name for name in answered.headers if name.startswith("access-control-")]


@pytest.mark.parametrize("stream", [False, True])
async def test_neither_prompt_nor_answer_is_in_logs_or_metrics(stream: bool):
    log = io.StringIO()
    telemetry = Telemetry(stream=log, log_format=LogFormat.JSON, level=LogLevel.DEBUG)
    gateway = Gateway([*ids_of("zebra"), 0])

    answered = await gateway.chat(
        messages=[{"role": "user", "content": "quagga"}], user="okapi", stream=stream
    )
    refused = await gateway.chat(messages=[{"role": "quagga", "content": "quagga"}])
    for event in gateway.events:
        telemetry.record(event)

    told = log.getvalue() + telemetry.metrics.exposition().decode() + repr(gateway.events)
    assert (answered.status_code, refused.status_code) == (200, 400)
    assert len(log.getvalue().splitlines()) >= 2
    assert not [word for word in ("quagga", "zebra", "okapi") if word in told]
