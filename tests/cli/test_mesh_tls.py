"""A gateway with certificates: everybody reaches the API, members alone the registry."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from tests.certificates import authority, issued
from tests.cli.test_mesh_mount import API, answering

from meshnet.cli.draining import DrainMount
from meshnet.cli.mesh_mount import MeshMount
from meshnet.gateway.server import serve_gateway
from meshnet.gateway.settings import GatewaySettings
from meshnet.mesh.registry.http_client import HttpExchange, HttpRegistry
from meshnet.mesh.registry.http_server import registry_app
from meshnet.mesh.registry.ports import RegistryLost, RegistryRefused
from meshnet.mesh.registry.sqlite import SqliteRegistry
from meshnet.wire.tls import MeshTls, dialled_with


@asynccontextmanager
async def gateway(tls: MeshTls) -> AsyncIterator[str]:
    """Serve an API with a registry and the way to drain beside it; yields the base URL."""
    registry = SqliteRegistry(None, clock=lambda: 0.0, born=1)
    mounted = MeshMount(
        answering(API), registry_app(registry, token=None), locked=False, certified=True
    )
    composition: object = None  # who may not ask gets as far as no node
    app = DrainMount(mounted, composition, token=None, certified=True)  # type: ignore[arg-type]
    url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    async with asyncio.TaskGroup() as tasks:
        server = tasks.create_task(
            serve_gateway(
                app,
                GatewaySettings(),
                host="127.0.0.1",
                port=0,
                started=url.set_result,
                drain_s=1.0,
                tls=tls,
            )
        )
        try:
            yield await url
        finally:
            registry.close()
            server.cancel()


async def test_a_certificate_of_the_mesh_opens_the_registry_and_nothing_else_does(tmp_path: Path):
    folder = authority(tmp_path / "mesh")
    member = MeshTls(issued(folder, "member"))
    other = MeshTls(issued(authority(tmp_path / "other"), "stranger"))

    async with gateway(MeshTls(issued(folder, "gateway"))) as url:
        user = partial(dialled_with, member)
        async with HttpExchange(url, token=None, dialled_with=user) as exchange:
            snapshot = await HttpRegistry(exchange).snapshot()
        # Who believes the mesh and has no certificate is a user of the API.
        stranger = ssl.create_default_context(cafile=tmp_path / "mesh" / "ca.pem")
        async with HttpExchange(url, token=None, dialled_with=lambda _: stranger) as exchange:
            api, _ = await exchange("GET", "/v1/models", b"", 30)
            drained, _ = await exchange("POST", "/mesh/drain", b"{}", 30)
            with pytest.raises(RegistryRefused, match="certificates of this mesh"):
                await HttpRegistry(exchange).snapshot()
        async with HttpExchange(url, token=None, dialled_with=partial(dialled_with, other)) as lost:
            with pytest.raises(RegistryLost, match="certificate"):
                await HttpRegistry(lost).snapshot()

    assert snapshot.members == {}
    assert api == API
    assert drained == 401
