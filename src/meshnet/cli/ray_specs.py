"""What the nodes of a mesh that Ray launches are told, and what each reserves.

Invariants
    * nodes listen beyond loopback exactly if the gateway does, and then both have the mesh token;
    * what is the gateway's alone (its keys, its address, where it keeps files) is not sent.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from meshnet.cli.local_nodes import settings_environment
from meshnet.cli.machine import is_loopback, url_here
from meshnet.cli.settings import ENVIRONMENT_PREFIX, Settings, SettingsError
from meshnet.core.routing.placement import ModelSize
from meshnet.mesh.ray_spec import RayShardSpec

GATEWAYS_OWN = {
    "host", "port", "api_keys", "api_keys_file", "peers", "state_dir", "nodes_min",
    "etcd_user", "etcd_password", "etcd_ca_file", "etcd_cert_file", "etcd_key_file",
}  # fmt: skip


def refuse_unreachable(settings: Settings, here: str, machines: Collection[str]) -> None:
    """Raise SettingsError if nodes would be started where the gateway cannot be reached."""
    others = sorted(set(machines) - {here})
    if is_loopback(settings.host) and others:
        raise SettingsError(
            f"--host {settings.host}: nodes on {', '.join(others[:3])} cannot reach it; expected "
            "an address that they reach, MESHNET_MESH_TOKEN and MESHNET_API_KEYS"
        )


def gateway_url(settings: Settings, url: str, here: str) -> str:
    """Return where nodes reach the gateway; `here` is what Ray calls this machine."""
    if settings.host not in ("0.0.0.0", "::"):
        return url
    return url_here(here, int(url.rpartition(":")[2]), tls=settings.tls_dir is not None)


def shard_specs(settings: Settings, size: ModelSize, join: str) -> tuple[RayShardSpec, ...]:
    """Return one shard per node to wait for: what it runs, and its even share of the model."""
    nodes = settings.nodes_min
    host = settings.host if is_loopback(settings.host) else "0.0.0.0"
    share = math.ceil(size.layers_total / nodes) * size.layer_bytes + (settings.kv_max_bytes or 0)
    resources = {"CPU": float(settings.threads or 1), "memory": float(share)}
    if settings.device.startswith("cuda"):
        resources["GPU"] = 1.0
    return tuple(
        RayShardSpec(
            f"node-{place}",
            ("node", "--join", join, "--host", host),
            nodes_environment(settings),
            resources,
        )
        for place in range(1, nodes + 1)
    )


def nodes_environment(settings: Settings) -> dict[str, str]:
    """Return what the user set, but for what is the gateway's own; the rest is each machine's."""
    own = {
        f"{ENVIRONMENT_PREFIX}{name.upper()}" for name in settings.model_fields_set - GATEWAYS_OWN
    }
    return {name: value for name, value in settings_environment(settings).items() if name in own}
