"""Meshes whose members and assignments an etcd keeps: gateways and nodes as real processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.joining import JoiningMesh
from tests.mesh.etcd import Etcd, etcd
from tests.processes import MeshnetProcess


class EtcdMesh(JoiningMesh):
    """`serve` is a gateway at the mesh's address, `serve_beside` another one; neither keeps it."""

    def __init__(self, model: Path, directory: Path, cluster: Etcd, *, lease_s: int) -> None:
        super().__init__(model, directory, 2, lease_s)
        self.etcd = cluster

    def serve(self) -> MeshnetProcess:
        port = self.url.rpartition(":")[2]
        return self._started("serve", "--port", port, "--registry", self.etcd.url)

    def serve_beside(self) -> MeshnetProcess:
        return self._started("serve", "--port", "0", "--registry", self.etcd.url)

    @property
    def joins(self) -> str:
        return self.etcd.url


@contextmanager
def etcd_mesh(
    model: Path, directory: Path, *, members: int = 3, lease_s: int = 10
) -> Iterator[EtcdMesh]:
    with etcd(members, election_ms=1000) as cluster:
        mesh = EtcdMesh(model, directory, cluster, lease_s=lease_s)
        try:
            yield mesh
        finally:
            mesh.stop()
