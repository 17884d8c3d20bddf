"""`meshnet certs`: what it writes, renews and revokes."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from cryptography import x509
from tests.certificates import DAY, NOW, authority, issued
from typer.testing import CliRunner

from meshnet.cli.certs.authority import CertificateError
from meshnet.cli.certs.commands import certs_app


def serial(own: Path) -> int:
    return x509.load_pem_x509_certificate((own / "node.pem").read_bytes()).serial_number


def states(folder: object) -> dict[str, str]:
    return {each.name: each.state(NOW) for each in folder.issued()}  # type: ignore[attr-defined]


def test_only_their_owner_can_read_what_is_written(tmp_path: Path):
    issued(authority(tmp_path / "mesh"), "node")

    found = {path: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "mesh").rglob("*")}

    assert {mode for path, mode in found.items() if path.is_file()} == {0o600}
    assert {mode for path, mode in found.items() if path.is_dir()} == {0o700}


def test_nothing_but_its_files_is_left_in_a_directory(tmp_path: Path):
    own = issued(authority(tmp_path / "mesh"), "node")

    assert {path.name for path in own.iterdir()} == {
        "ca.pem",
        "node.pem",
        "node.key",
        "revoked.pem",
    }


def test_renew_issues_again_what_ends_soon_and_nothing_else(tmp_path: Path):
    folder = authority(tmp_path / "mesh")
    ends, lasts = issued(folder, "ends", ago=25), issued(folder, "lasts", ago=5)
    before = serial(ends), serial(lasts)

    assert folder.renew(NOW, 30) == ["ends"]

    assert serial(ends) != before[0]
    assert serial(lasts) == before[1]
    assert states(folder) == {"ends": "good", "lasts": "good"}
    renewed = folder.issued()[-1]
    assert renewed.hosts == ("10.0.0.2", "ends.example")
    assert renewed.ends == (NOW + 30 * DAY).replace(microsecond=0)


def test_every_certificate_of_a_name_is_revoked_and_none_renewed(tmp_path: Path):
    folder = authority(tmp_path / "mesh")
    issued(folder, "node", ago=2)
    issued(folder, "node", ago=1)
    other = issued(folder, "other")

    folder.revoke("node", NOW)

    assert [each.state(NOW) for each in folder.issued()] == ["revoked", "revoked", "good"]
    assert folder.renew(NOW, 30, everything=True) == ["other"]
    told = x509.load_pem_x509_crl((other / "revoked.pem").read_bytes())
    assert len(list(told)) == 2


def test_a_name_is_issued_anew_after_it_was_revoked(tmp_path: Path):
    folder = authority(tmp_path / "mesh")
    issued(folder, "node")
    folder.revoke("node", NOW)

    issued(folder, "node")

    assert [each.state(NOW) for each in folder.issued()] == ["revoked", "good"]


def test_what_has_ended_is_forgotten_at_the_next_issue(tmp_path: Path):
    folder = authority(tmp_path / "mesh")
    issued(folder, "old", ago=50)

    issued(folder, "new")

    assert states(folder) == {"new": "good"}


@pytest.mark.parametrize("name", ["", "..", "a/b", "-x", "ca.key", "x" * 64])
def test_a_name_that_is_none_is_refused(name: str, tmp_path: Path):
    with pytest.raises(CertificateError, match="NAME: "):
        issued(authority(tmp_path / "mesh"), name)


@pytest.mark.parametrize("host", ["http://10.0.0.2", "10.0.0.2:9001", "", "a b"])
def test_a_host_that_is_none_is_refused(host: str, tmp_path: Path):
    with pytest.raises(CertificateError, match="--host: expected"):
        authority(tmp_path / "mesh").issue("node", (host,), NOW, 30)


def test_an_authority_is_never_overwritten(tmp_path: Path):
    folder = authority(tmp_path / "mesh")

    with pytest.raises(CertificateError, match="already"):
        folder.begin(NOW)


def test_the_commands_do_what_they_say(tmp_path: Path):
    at = ["--dir", str(tmp_path / "mesh")]

    def told(*arguments: str) -> str:
        result = CliRunner().invoke(certs_app(), [*arguments, *at])
        assert result.exit_code == 0, result.output
        return result.output

    told("init")
    assert "MESHNET_TLS_DIR" in told("issue", "node-1", "--host", "10.0.0.2")
    assert '"state": "good"' in told("show", "--json")
    assert told("renew") == ""
    assert "node-1" in told("renew", "--all")
    told("revoke", "node-1")
    assert "revoked" in told("show")
