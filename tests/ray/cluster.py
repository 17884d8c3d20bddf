"""A Ray cluster of several logical machines on this one, and meshes over it as a user starts them.

Ray's machines here are raylets, each with workers of its own. What runs on a machine that dies dies
with it: the raylet, its workers, their nodes, all by SIGKILL, as when somebody pulls the plug.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from tests.cluster.joining import JoiningMesh
from tests.processes import MeshnetProcess

TUNED = {
    "RAY_health_check_initial_delay_ms": "500",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "500",
    "RAY_health_check_failure_threshold": "3",
}
"""As docs/ray.md tells."""
SECURE = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "of-this-test-cluster-and-of-no-other-one"}
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": os.pathsep.join(sys.path)}


class RayMachines:
    """The head of the cluster, without room for shards, and machines with room for one each."""

    def __init__(self, count: int) -> None:
        from ray.cluster_utils import Cluster  # it reads the environment when it is imported

        self._cluster = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
        )
        self.machines: list[Any] = []
        for _ in range(count):
            self.add()

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def add(self) -> Any:
        machine = self._cluster.add_node(num_cpus=1)
        self.machines.append(machine)
        return machine

    def holding(self, pid: int) -> Any:
        """Return the machine on which that process runs."""
        above = {parent.pid for parent in psutil.Process(pid).parents()}
        return next(each for each in self.machines if _raylet(each) in above)

    def unplug(self, machine: Any) -> None:
        """Kill everything on it at once."""
        raylet = psutil.Process(_raylet(machine))
        for process in (raylet, *raylet.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.machines.remove(machine)
        self._cluster.remove_node(machine, allow_graceful=False)

    def stop(self) -> None:
        self._cluster.shutdown()


def _raylet(machine: Any) -> int:
    return int(machine.all_processes["raylet"][0].process.pid)


@contextmanager
def ray_machines(
    count: int, *, health: Mapping[str, str] = TUNED, **environment: str
) -> Iterator[RayMachines]:
    before = dict(os.environ)
    os.environ.update({**health, **SECURE, **QUIET, **environment})
    try:
        machines = RayMachines(count)
        try:
            yield machines
        finally:
            machines.stop()
    finally:
        os.environ.clear()
        os.environ.update(before)


class RayMesh(JoiningMesh):
    """`up` is `meshnet up --ray`, at one address over its lives."""

    def __init__(
        self, model: Path, directory: Path, ray: RayMachines, *, nodes: int, lease_s: int
    ) -> None:
        super().__init__(model, directory, nodes, lease_s)
        self._ray, self._nodes = ray, nodes
        self.model = model

    @property
    def latest(self) -> MeshnetProcess:
        return self._processes[-1]

    def up(self, **settings: str) -> MeshnetProcess:
        port = self.url.rpartition(":")[2]
        process = MeshnetProcess(
            ["up", "--ray", self._ray.address, "--nodes", str(self._nodes), "--port", port,
             "--model", str(self._model), "--json-ready"],
            {**self._environment(), "MESHNET_DRAIN_SECONDS": "3", **settings},
        )  # fmt: skip
        self._processes.append(process)
        return process

    def pids(self) -> dict[str, int]:
        """The process of each node, by its URL."""
        return {node["url"]: node["pid"] for node in self.seen()["nodes"]}


@contextmanager
def ray_mesh(
    model: Path, directory: Path, ray: RayMachines, *, nodes: int = 2, lease_s: int = 6
) -> Iterator[RayMesh]:
    mesh = RayMesh(model, directory, ray, nodes=nodes, lease_s=lease_s)
    try:
        yield mesh
    finally:
        mesh.stop()
