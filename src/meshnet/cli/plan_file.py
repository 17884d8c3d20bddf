"""What nodes measured, from a file or from a gateway: `{"nodes": [...], "head": {...}}`.

    nodes   each as `GET /node` tells it; `node` and `capacity` are read, the rest is not
    head    the gateway: `machine`, `token_s`, `links`; may be absent

`GET /mesh` has the same under `measured`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from meshnet.core.planning import Mesh
from meshnet.core.protocol.capacities import (
    capacity_values,
    link_values,
    read_capacity,
    read_links,
)
from meshnet.core.protocol.fields import Fields, read_object
from meshnet.core.protocol.limits import Limits
from meshnet.core.vocabulary import BadField, Capacity, NodeId

NODES_MAX = 4096
FILE_BYTES_MAX = 1 << 26
LIMITS = Limits(json_containers=1 << 20)
"""A user's own file may be larger than what strangers send."""


def read_file(path: Path) -> Mesh:
    """Read the file of `--nodes`. Raises BadField, OSError."""
    with path.open("rb") as file:
        data = file.read(FILE_BYTES_MAX + 1)
    if len(data) > FILE_BYTES_MAX:
        raise BadField(str(path), f"at most {FILE_BYTES_MAX} bytes", "more")
    return mesh_of(read_object(data, str(path), LIMITS))


def mesh_of(fields: Fields) -> Mesh:
    """Raise BadField: what is there is none, or says nothing of any node."""
    nodes: dict[NodeId, Capacity] = {}
    for each in fields.objects("nodes", count_max=NODES_MAX):
        node = NodeId(each.text("node", chars_max=512))
        if not node or node in nodes:
            raise each.refuse("node", "a name that no other node has")
        if each.has("capacity"):
            nodes[node] = read_capacity(each)
    if not nodes:
        raise fields.refuse("nodes", "at least one node with a capacity")
    if not fields.has("head"):
        return Mesh(nodes)
    head = fields.object("head")
    return Mesh(
        nodes,
        head=read_links(head, count_max=NODES_MAX) if head.has("links") else (),
        head_machine=head.text("machine") if head.has("machine") else "",
        head_s=_seconds(head, "token_s"),
    )


def _seconds(fields: Fields, name: str) -> float:
    seconds = fields.number(name) if fields.has(name) else 0.0
    if seconds < 0:
        raise fields.refuse(name, "at least 0 seconds")
    return seconds


def mesh_values(mesh: Mesh) -> dict[str, Any]:
    """Return what `mesh_of` reads."""
    return {
        "nodes": [
            {"node": node, "capacity": capacity_values(capacity)}
            for node, capacity in mesh.nodes.items()
        ],
        "head": {
            "machine": mesh.head_machine,
            "token_s": mesh.head_s,
            "links": [link_values(link) for link in mesh.head],
        },
    }
