"""Meshes' certificates for tests, made as `meshnet certs` makes them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from meshnet.cli.certs.folder import AuthorityFolder
from meshnet.wire.tls import MeshTls

NOW = datetime.now(UTC)
DAY = timedelta(days=1)


def authority(directory: Path) -> AuthorityFolder:
    """Return a new authority."""
    folder = AuthorityFolder(directory)
    folder.begin(NOW - 100 * DAY)
    return folder


def issued(folder: AuthorityFolder, name: str, *, days: float = 30, ago: float = 0) -> Path:
    """Return the `tls_dir` of a process, made `ago` days before now."""
    return folder.issue(name, ("10.0.0.2", f"{name}.example"), NOW - ago * DAY, days)


class Looking(MeshTls):
    """Looks at its files at each use, as if a second had passed since the last."""

    def __init__(self, directory: Path) -> None:
        passed = iter(range(10**9))
        super().__init__(directory, clock=lambda: float(next(passed)))
