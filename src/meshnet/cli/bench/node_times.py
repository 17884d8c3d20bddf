"""What a node's own counters say of its decodes: seconds in all, read from its `/metrics`."""

from __future__ import annotations

from dataclasses import dataclass

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from meshnet.core.vocabulary import NodeId

DECODE = "decode"
COUNTED = {
    "meshnet_step_seconds_sum": "step_s",
    "meshnet_compute_seconds_sum": "compute_s",
    "meshnet_queue_seconds_sum": "queue_s",
}


@dataclass(frozen=True, slots=True)
class NodeTimes:
    """Since the node started."""

    step_s: float = 0.0
    compute_s: float = 0.0
    queue_s: float = 0.0

    def since(self, earlier: NodeTimes) -> NodeTimes:
        return NodeTimes(
            self.step_s - earlier.step_s,
            self.compute_s - earlier.compute_s,
            self.queue_s - earlier.queue_s,
        )


async def node_times(node: NodeId, token: str | None) -> NodeTimes:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with (
        aiohttp.ClientSession(trust_env=False, raise_for_status=True) as http,
        http.get(f"{node}/metrics", headers=headers) as response,
    ):
        return times_of(await response.text())


def times_of(exposition: str) -> NodeTimes:
    """Read what Prometheus would."""
    found = {
        COUNTED[sample.name]: sample.value
        for family in text_string_to_metric_families(exposition)
        for sample in family.samples
        if sample.name in COUNTED and sample.labels.get("mode") == DECODE
    }
    return NodeTimes(**found)
