"""Mutual TLS between processes of a mesh: who is let in, who is believed, and what changes when."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
from tests.certificates import NOW, Looking, authority, issued
from tests.wire.echoing import LIMITS, NODE, EchoService, decode, serving

from meshnet.cli.certs.folder import AuthorityFolder
from meshnet.core.protocol.messages import ActivationReply
from meshnet.core.vocabulary import HopLost
from meshnet.wire.http_client import HttpHopClient
from meshnet.wire.serving import bind, serve_socket
from meshnet.wire.tls import MeshTls, PlainRefused, TlsError

TIMEOUT_S = 60.0


def client(url: str, tls: MeshTls | None) -> HttpHopClient:
    return HttpHopClient({NODE: url}, limits=LIMITS, tls=tls)


async def refusal(url: str, tls: MeshTls | None) -> str:
    """Return how a question without a certificate that is believed ends."""
    async with client(url, tls) as hops:
        with pytest.raises(HopLost) as lost:
            await hops.describe(NODE, TIMEOUT_S)
    return str(lost.value)


async def test_members_speak_by_requests_and_by_streams(tmp_path: Path):
    folder = authority(tmp_path / "mesh")
    node, head = (MeshTls(issued(folder, name)) for name in ("node", "head"))
    service = EchoService()

    async with serving(service, tls=node) as url, client(url, head) as hops:
        described = await hops.describe(NODE, TIMEOUT_S)
        first = await hops.forward(NODE, decode(), TIMEOUT_S)
        second = await hops.forward(NODE, decode(), TIMEOUT_S)
        streams = len(hops._streams)

    assert described.stream
    assert streams == 1
    assert isinstance(first, ActivationReply)
    assert isinstance(second, ActivationReply)


async def test_who_shows_no_certificate_is_refused(tmp_path: Path):
    node = MeshTls(issued(authority(tmp_path / "mesh"), "node"))

    async with serving(EchoService(), tls=node) as url:
        told = await refusal(url, None)

    assert "certificate verify failed" in told


def doubted_by(mesh: AuthorityFolder, why: str, directory: Path) -> MeshTls:
    """Return what was good for its mesh once, and is for `mesh` no more or never was."""
    if why == "other mesh":
        own = issued(authority(directory), "doubted")
        tls = Looking(own)
        # It knows whom the mesh believes, as everybody may: only its own certificate is at fault.
        believed = issued(mesh, "somebody")
        for name in ("ca.pem", "revoked.pem"):
            shutil.copy(believed / name, own / name)
        return tls
    tls = Looking(issued(mesh, "doubted"))
    if why == "expired":
        issued(mesh, "doubted", ago=40)
    else:
        mesh.revoke("doubted", NOW)
    return tls


@pytest.mark.parametrize("why", ["other mesh", "expired", "revoked"])
async def test_a_stranger_reaches_nobody_and_nobody_a_stranger(why: str, tmp_path: Path):
    folder = authority(tmp_path / "mesh")
    believed = Looking(issued(folder, "believed"))
    doubted = doubted_by(folder, why, tmp_path / "other")

    async with serving(EchoService(), tls=believed) as url:
        inwards = await refusal(url, doubted)
    async with serving(EchoService(), tls=doubted) as url:
        outwards = await refusal(url, believed)

    assert "certificate" in inwards, inwards
    assert {"other mesh": "certificate verify failed"}.get(why, why) in outwards, outwards


@pytest.mark.parametrize("why", ["other mesh", "expired", "revoked"])
def test_a_process_does_not_start_with_what_nobody_believes(why: str, tmp_path: Path):
    folder = authority(tmp_path / "mesh")
    doubted_by(folder, why, tmp_path / "other")
    own = tmp_path / ("other" if why == "other mesh" else "mesh") / "doubted"

    with pytest.raises(TlsError, match=r"node\.pem: expected a certificate") as told:
        MeshTls(own)

    assert why == "other mesh" or why in str(told.value)


async def test_a_certificate_is_good_for_its_hosts_only(tmp_path: Path):
    folder = authority(tmp_path / "mesh")
    node, head = (MeshTls(issued(folder, name)) for name in ("node", "head"))

    async with serving(EchoService(), tls=node) as url:
        told = await refusal(url.replace("127.0.0.1", "127.0.0.2"), head)

    assert "127.0.0.2" in told


async def test_what_is_revoked_or_renewed_counts_without_a_restart(tmp_path: Path):
    folder = authority(tmp_path / "mesh")
    node, old = Looking(issued(folder, "node")), Looking(issued(folder, "head"))

    async with serving(EchoService(), tls=node) as url:
        async with client(url, old) as hops:
            await hops.describe(NODE, TIMEOUT_S)
        folder.revoke("head", NOW)
        told = await refusal(url, old)
        issued(folder, "head")
        async with client(url, old) as hops:
            await hops.describe(NODE, TIMEOUT_S)

    assert "certificate" in told, told


async def test_a_connection_that_is_open_ends_when_somebody_is_revoked(tmp_path: Path):
    """Its peer may be the one; who is still believed comes again."""
    folder = authority(tmp_path / "mesh")
    node, head = Looking(issued(folder, "node")), MeshTls(issued(folder, "head"))

    async with serving(EchoService(), tls=node) as url:
        port = int(url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=head.towards(url))
        writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        answered = await reader.readuntil(b"\r\n\r\n")
        folder.revoke("head", NOW)
        with suppress(ConnectionResetError):
            while await reader.read(1024):
                pass
        writer.close()
        told = await refusal(url, head)

    assert answered.startswith(b"HTTP/1.1")
    assert "certificate" in told


async def test_files_that_do_not_fit_together_leave_what_was(tmp_path: Path):
    folder = authority(tmp_path / "mesh")
    node, head = Looking(issued(folder, "node")), MeshTls(issued(folder, "head"))

    async with serving(EchoService(), tls=node) as url:
        (tmp_path / "mesh" / "node" / "node.pem").write_text("half a file")
        async with client(url, head) as hops:
            described = await hops.describe(NODE, TIMEOUT_S)

    assert described.node == NODE


def test_plain_http_goes_to_this_machine_only(tmp_path: Path):
    tls = MeshTls(issued(authority(tmp_path / "mesh"), "head"))

    tls.towards("http://127.0.0.1:9001")
    with pytest.raises(PlainRefused, match=r"http://10\.0\.0\.2:9001: expected https"):
        tls.towards("http://10.0.0.2:9001")


async def test_a_hop_without_tls_beyond_loopback_is_never_dialled(tmp_path: Path):
    tls = MeshTls(issued(authority(tmp_path / "mesh"), "head"))

    assert "expected https" in await refusal("http://10.0.0.2:9001", tls)


@pytest.mark.parametrize("missing", ["ca.pem", "node.pem", "node.key", "revoked.pem"])
def test_a_missing_file_is_named(missing: str, tmp_path: Path):
    own = issued(authority(tmp_path / "mesh"), "node")
    (own / missing).unlink()

    with pytest.raises(TlsError, match=rf"{missing}.*certs issue"):
        MeshTls(own)


def test_a_key_that_everybody_can_read_is_refused(tmp_path: Path):
    own = issued(authority(tmp_path / "mesh"), "node")
    (own / "node.key").chmod(0o644)

    with pytest.raises(TlsError, match="chmod 600"):
        MeshTls(own)


async def test_certificates_open_a_node_to_other_machines_without_a_token(tmp_path: Path):
    tls = MeshTls(issued(authority(tmp_path / "mesh"), "node"))
    listener = bind("0.0.0.0", 0)
    served = False

    class Stop(Exception):
        pass

    def ready(port: int) -> None:
        nonlocal served
        served = True
        raise Stop

    with pytest.raises(Stop):
        await serve_socket(lambda *_: None, listener, tls=tls, on_ready=ready)

    assert served
