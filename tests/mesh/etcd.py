"""Real etcds for tests: one member or three, killed and started again on what they left behind."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.cluster.joining import free_port

START_DEADLINE_S = 60.0
POLL_S = 0.02


def needs_etcd() -> None:
    """Skip where there is no etcd; where the suite must prove everything that is a failure."""
    if shutil.which("etcd") is None:
        missing = "there is no etcd here: install Debian's etcd-server"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)


class Etcd:
    """One cluster whose members listen on loopback; `close` ends and forgets it."""

    def __init__(
        self, members: int = 1, *, election_ms: int = 500, tls: Sequence[str] = ()
    ) -> None:
        """`tls` are further arguments, with which clients come by HTTPS."""
        needs_etcd()
        self._directory = Path(tempfile.mkdtemp(prefix="etcd-"))
        self._election_ms, self._tls = election_ms, list(tls)
        self._ports = [(free_port(), free_port()) for _ in range(members)]
        self._http = httpx2.Client(verify=False, timeout=5, trust_env=False)
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def endpoints(self) -> tuple[str, ...]:
        scheme = "https" if self._tls else "http"
        return tuple(f"{scheme}://127.0.0.1:{port}" for port, _ in self._ports)

    @property
    def url(self) -> str:
        """What `--registry` takes."""
        scheme = "etcds" if self._tls else "etcd"
        return f"{scheme}://" + ",".join(f"127.0.0.1:{port}" for port, _ in self._ports)

    def start(self) -> None:
        """Start who does not run, and return when each says that there is a leader."""
        for number in range(len(self._ports)):
            if number not in self._running:
                self._running[number] = subprocess.Popen(
                    self._command(number), stderr=subprocess.DEVNULL
                )
        for number in range(len(self._ports)):
            self.wait_for_a_leader(number)

    def kill(self, number: int | None = None) -> None:
        """Kill one member; None: all."""
        for each in [*self._running] if number is None else [number]:
            process = self._running.pop(each)
            process.kill()
            process.wait(timeout=30)

    def leader(self) -> int:
        """Return which of those that run leads."""
        for number in [*self._running]:
            status = self.ask(number, "maintenance/status")
            if status.get("leader") == status["header"]["member_id"]:
                return number
        raise AssertionError("nobody leads")

    def wait_for_a_leader(self, number: int) -> None:
        """Return when the member is healthy: a leader has confirmed a read."""
        until = time.monotonic() + START_DEADLINE_S
        while time.monotonic() < until:
            with suppress(httpx2.HTTPError):
                if self._http.get(f"{self.endpoints[number]}/health").status_code == 200:
                    return
            time.sleep(POLL_S)
        raise AssertionError(f"member {number} of etcd has no leader after {START_DEADLINE_S:g} s")

    def ask(self, number: int, call: str, **said: Any) -> dict[str, Any]:
        """Make one call of its JSON gateway. Raises httpx2.HTTPError."""
        response = self._http.post(f"{self.endpoints[number]}/v3/{call}", content=json.dumps(said))
        response.raise_for_status()
        told: dict[str, Any] = response.json()
        return told

    def version(self) -> str:
        return str(self._http.get(f"{self.endpoints[0]}/version").json()["etcdserver"])

    def close(self) -> None:
        self.kill()
        self._http.close()
        shutil.rmtree(self._directory)

    def _command(self, number: int) -> list[str]:
        _, peer = self._ports[number]
        listens = self.endpoints[number]
        cluster = ",".join(
            f"m{each}=http://127.0.0.1:{port}" for each, (_, port) in enumerate(self._ports)
        )
        return [
            "etcd",
            *("--name", f"m{number}"),
            *("--data-dir", str(self._directory / f"m{number}")),
            *("--listen-client-urls", listens),
            *("--advertise-client-urls", listens),
            *("--listen-peer-urls", f"http://127.0.0.1:{peer}"),
            *("--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}"),
            *("--initial-cluster", cluster),
            *("--heartbeat-interval", str(self._election_ms // 10)),
            *("--election-timeout", str(self._election_ms)),
            *("--logger", "zap", "--log-level", "error"),
            *self._tls,
        ]


@contextmanager
def etcd(members: int = 1, **options: Any) -> Iterator[Etcd]:
    cluster = Etcd(members, **options)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()
