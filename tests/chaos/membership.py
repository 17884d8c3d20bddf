"""How soon a node that died without a word is on no route of any gateway any more.

It is watched by what gateways log: asking them would make them ask the node, and find it dead
before its lease is over.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.lab import CONTINUE, KILL, STOP, Lab, Mesh

GRACE_S = 60.0
"""Beyond a lease, to find out by how much it was missed."""
WAYS = {"killed": KILL, "stopped": STOP}


@dataclass(frozen=True, slots=True)
class Ghost:
    """One node that was gone, and how long it was believed in."""

    way: str
    node: str
    left_s: float
    """Until every gateway had forgotten it as a member."""
    routed: tuple[str, ...]
    """Gateways that would still route over it then."""


def joined(model: Path, weights: str, nodes: Mapping[str, str]) -> Mesh:
    """A mesh whose nodes join, and in which no step is given up because the machine is busy."""
    return Mesh(model, weights, nodes, joins=True, hop_timeout_s=15.0)


async def ghost(lab: Lab, way: str, node: str) -> Ghost:
    """Kill or stop `node` of a mesh whose nodes join; it is a member again afterwards."""
    url = lab.network.place(node).url
    heads = lab.mesh.heads

    def left() -> int:
        return sum(
            (each["node"], each["state"]) == (url, "left") for each in lab.told("member_seen")
        )

    before = left()

    async def forgotten() -> bool:
        return left() >= before + len(heads)

    began = time.monotonic()
    if WAYS[way] == KILL:
        await lab.end(node, KILL)
    else:
        lab.send(node, STOP)
    deadline_s = float(lab.mesh.environment()["MESHNET_LEASE_SECONDS"]) + GRACE_S
    await lab.until(forgotten, f"every gateway has forgotten {node}", deadline_s)
    left_s = time.monotonic() - began
    routed = tuple([head for head in heads if await _knows(lab, head, url)])
    await _bring_back(lab, way, node)
    return Ghost(way, node, round(left_s, 3), routed)


async def _bring_back(lab: Lab, way: str, node: str) -> None:
    if WAYS[way] == KILL:
        await lab.start(node)
    else:
        lab.send(node, CONTINUE)
    url = lab.network.place(node).url

    async def is_back() -> bool:
        return all([await _knows(lab, head, url) for head in lab.mesh.heads])

    await lab.until(is_back, f"every gateway knows {node} again", GRACE_S)


async def _knows(lab: Lab, head: str, url: str) -> bool:
    """Whether the gateway has the node's description, over which alone it routes."""
    nodes = (await lab.client.get(f"{lab.front(head)}/mesh", timeout=GRACE_S)).json()["nodes"]
    return url in [each["url"] for each in nodes]
