"""An etcd that knows its users, and one that is asked by TLS."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path

from tests.mesh.etcd import Etcd

ROOT, USER = ("root", "of all"), ("mesh", "of one prefix")


def know_users(cluster: Etcd, prefix: str = "mesh") -> None:
    """Let nobody in but root, and a user who may read and write below the prefix."""
    for user, password in (ROOT, USER):
        cluster.ask(0, "auth/user/add", name=user, password=password)
        cluster.ask(0, "auth/role/add", name=user)
        cluster.ask(0, "auth/user/grant", user=user, role=user)
    keys = {"key": f"{prefix}/", "range_end": f"{prefix}0"}
    coded = {name: base64.b64encode(key.encode()).decode() for name, key in keys.items()}
    cluster.ask(0, "auth/role/grant", name=USER[0], perm={"permType": "READWRITE", **coded})
    cluster.ask(0, "auth/enable")


def certificate(directory: Path) -> tuple[Path, Path]:
    """Make a certificate of 127.0.0.1 that signs itself; return it and its key."""
    certificate, key = directory / "etcd.pem", directory / "etcd.key"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-nodes", "-days", "2", "-subj", "/O=test"),
            *("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
        timeout=60,
    )
    return certificate, key


def tls_arguments(certificate: Path, key: Path) -> list[str]:
    return ["--cert-file", str(certificate), "--key-file", str(key)]
