"""Join tokens: what they get, from whom, and until when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.certificates import authority, issued
from tests.cli.test_mesh_mount import API, answering
from typer.testing import CliRunner

from meshnet.cli.certs.authority import CertificateError
from meshnet.cli.certs.commands import token_app
from meshnet.cli.certs.enrolling import EnrolMount, enrol
from meshnet.cli.certs.folder import AuthorityFolder
from meshnet.cli.certs.tokens import Invitation, mesh_id, mesh_of
from meshnet.gateway.server import serve_gateway
from meshnet.gateway.settings import GatewaySettings
from meshnet.wire.tls import MeshTls

HOUR = timedelta(hours=1)
NODE = Invitation("node-7", ("10.0.0.7",))


def now() -> datetime:
    return datetime.now(UTC)


@asynccontextmanager
async def gateway(folder: AuthorityFolder, tls: MeshTls | None) -> AsyncIterator[str]:
    url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    app = EnrolMount(answering(API), folder, now)
    settings = GatewaySettings()
    async with asyncio.TaskGroup() as tasks:
        server = tasks.create_task(
            serve_gateway(app, settings, host="127.0.0.1", port=0, started=url.set_result, tls=tls)
        )
        try:
            yield await url
        finally:
            server.cancel()


async def test_a_token_gets_the_certificate_that_it_names(tmp_path: Path):
    folder = authority(tmp_path / "mesh")
    token = folder.invite(NODE, now(), HOUR)

    async with gateway(folder, MeshTls(issued(folder, "gateway"))) as url:
        await asyncio.to_thread(enrol, url, token, tmp_path / "tls")

    MeshTls(tmp_path / "tls")
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "tls").iterdir()} == {0o600}
    made = folder.issued()[-1]
    assert (made.name, made.hosts) == ("node-7", ("10.0.0.7",))
    folder.revoke("node-7", now())


@pytest.mark.parametrize("why", ["expired", "forged"])
async def test_a_token_that_is_not_good_gets_nothing(why: str, tmp_path: Path):
    folder = authority(tmp_path / "mesh")
    token = folder.invite(NODE, now() - (2 * HOUR if why == "expired" else 0 * HOUR), HOUR)
    if why == "forged":
        head, claims, signature = token.split(".")
        token = ".".join((head, claims, ("B" if signature[0] == "A" else "A") + signature[1:]))

    async with gateway(folder, MeshTls(issued(folder, "gateway"))) as url:
        with pytest.raises(CertificateError, match=r"401.*join token is refused"):
            await asyncio.to_thread(enrol, url, token, tmp_path / "tls")

    assert [each.name for each in folder.issued()] == ["gateway"]
    assert not (tmp_path / "tls").exists()


async def test_a_token_is_not_shown_to_another_mesh(tmp_path: Path):
    token = authority(tmp_path / "mesh").invite(NODE, now(), HOUR)
    other = authority(tmp_path / "other")

    async with gateway(other, MeshTls(issued(other, "gateway"))) as url:
        with pytest.raises(CertificateError, match="another one's authority"):
            await asyncio.to_thread(enrol, url, token, tmp_path / "tls")


async def test_a_token_is_not_shown_to_who_only_repeats_the_authority(tmp_path: Path):
    """Whoever stands between has the mesh's certificate, as everybody may, and no key of it."""
    folder, other = authority(tmp_path / "mesh"), authority(tmp_path / "other")
    token = folder.invite(NODE, now(), HOUR)

    async with gateway(folder, MeshTls(issued(other, "between"))) as url:
        with pytest.raises(CertificateError, match="certificate verify failed"):
            await asyncio.to_thread(enrol, url, token, tmp_path / "tls")

    assert folder.issued() == []


@pytest.mark.parametrize("token", ["", "x", "a.b.c"])
def test_what_is_no_token_is_told_before_anybody_is_asked(token: str, tmp_path: Path):
    with pytest.raises(CertificateError, match="TOKEN: expected"):
        enrol("https://127.0.0.1:1", token, tmp_path / "tls")


def test_the_command_tells_a_token_of_its_mesh(tmp_path: Path):
    authority(tmp_path / "mesh")

    told = CliRunner().invoke(
        token_app(), ["create", "node-7", "--ttl", "5", "--dir", str(tmp_path / "mesh")]
    )

    assert told.exit_code == 0, told.output
    assert mesh_of(told.output.strip()) == mesh_id((tmp_path / "mesh" / "ca.pem").read_bytes())
