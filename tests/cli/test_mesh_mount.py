"""Who gets to a registry: bearers of the mesh token, else this machine by its own name."""

from __future__ import annotations

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send
from tests.mesh.members import asgi_call

from meshnet.cli.mesh_mount import MeshMount


def answering(status: int) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    return app


API, REGISTRY = 299, 298


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/registry", REGISTRY),
        ("/registry/members", REGISTRY),
        ("/registryx", API),
        ("/v1/registry", API),
        ("/", API),
    ],
)
async def test_the_registry_has_its_own_path_and_no_other(path: str, status: int):
    app = MeshMount(answering(API), answering(REGISTRY), locked=True)

    assert (await asgi_call(app, "GET", path))[0] == status


@pytest.mark.parametrize(
    ("host", "status"),
    [
        (b"127.0.0.1:8000", REGISTRY),
        (b"localhost:8000", REGISTRY),
        (b"[::1]:8000", REGISTRY),
        (b"evil.example:8000", 403),
        (b"", 403),
    ],
)
async def test_without_a_token_a_request_must_name_this_machine(host: bytes, status: int):
    """A web page can reach loopback by a name of its own."""
    app = MeshMount(answering(API), answering(REGISTRY), locked=False)

    answered, _ = await asgi_call(app, "GET", "/registry", headers=[(b"host", host)])

    assert answered == status
