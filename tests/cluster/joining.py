"""Meshes whose nodes join by themselves, as real processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
from tests.cluster.api import body_of
from tests.processes import MeshnetProcess

from meshnet.cli.local_nodes import free_ports
from meshnet.wire.tls import MeshTls

MESH_TOKEN = "between us"


class JoiningMesh:
    """One gateway at a fixed address and whoever joins it; all end with the block."""

    def __init__(
        self,
        model: Path,
        directory: Path,
        nodes_min: int,
        lease_s: int,
        tls_dir: Path | None = None,
    ) -> None:
        """With `tls_dir` all of them show its certificate."""
        self._model, self._directory = model, directory
        self._nodes_min, self._lease_s = nodes_min, lease_s
        self._processes: list[MeshnetProcess] = []
        self._tls_dir = tls_dir
        self.url = f"http://127.0.0.1:{free_port()}"
        verify: Any = True
        if tls_dir is not None:
            self.url = self.url.replace("http", "https")
            verify = MeshTls(tls_dir).towards(self.url)
        self.http = httpx2.Client(timeout=120, verify=verify, trust_env=False)
        """As a member: its certificate is shown."""

    @property
    def joins(self) -> str:
        """Where nodes join."""
        return self.url

    def serve(self) -> MeshnetProcess:
        """Start the gateway, or start it again on what it left behind."""
        port = self.url.rpartition(":")[2]
        return self._started("serve", "--port", port)

    def serve_beside(self) -> MeshnetProcess:
        """Start another gateway over the same nodes."""
        return self._started("serve", "--port", "0", "--registry", self.url)

    def node(self, port: int = 0, *more: str, token: str = MESH_TOKEN) -> MeshnetProcess:
        """Let a node join; it is not waited for."""
        process = MeshnetProcess(
            ["node", "--join", self.joins, "--port", str(port), "--json-ready", *more],
            self._environment() | {"MESHNET_MESH_TOKEN": token},
        )
        self._processes.append(process)
        return process

    def seen(self, url: str | None = None) -> dict[str, Any]:
        response = self.http.get(f"{url or self.url}/mesh")
        assert response.status_code == 200, response.text
        mesh: dict[str, Any] = response.json()
        return mesh

    def ready(self, url: str | None = None) -> bool:
        try:
            return self.http.get(f"{url or self.url}/ready").status_code == 200
        except httpx2.HTTPError:
            return False

    def answer(self, prompt: str, tokens: int, url: str | None = None) -> str:
        response = self.http.post(
            f"{url or self.url}/v1/chat/completions", json=body_of(prompt, tokens)
        )
        assert response.status_code == 200, response.text
        return str(response.json()["choices"][0]["message"]["content"])

    def members(self, url: str | None = None) -> dict[str, dict[str, Any]]:
        """The members by their URLs."""
        return {member["node"]: member for member in self.seen(url)["members"]}

    def stop(self) -> None:
        self.http.close()
        for process in reversed(self._processes):
            process.stop()

    def _started(self, *arguments: str) -> MeshnetProcess:
        process = MeshnetProcess(
            [*arguments, "--model", str(self._model), "--json-ready"], self._environment()
        )
        self._processes.append(process)
        return process.wait_ready()

    def _environment(self) -> dict[str, str]:
        return {
            "MESHNET_WEIGHTS": "fp32",
            "MESHNET_MEASURE": "false",
            "MESHNET_LEASE_SECONDS": str(self._lease_s),
            "MESHNET_SETTLE_SECONDS": "1",
            "MESHNET_NODES_MIN": str(self._nodes_min),
            "MESHNET_STATE_DIR": str(self._directory / "state"),
            "MESHNET_CACHE_DIR": str(self._directory / "cache"),
            "MESHNET_MESH_TOKEN": MESH_TOKEN,
            **({} if self._tls_dir is None else {"MESHNET_TLS_DIR": str(self._tls_dir)}),
        }


def free_port() -> int:
    return free_ports(1)[0]


@contextmanager
def joining_mesh(
    model: Path,
    directory: Path,
    *,
    nodes_min: int = 2,
    lease_s: int = 60,
    tls_dir: Path | None = None,
) -> Iterator[JoiningMesh]:
    mesh = JoiningMesh(model, directory, nodes_min, lease_s, tls_dir)
    try:
        yield mesh
    finally:
        mesh.stop()
