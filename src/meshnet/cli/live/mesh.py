"""The mesh as it is now, for whoever watches: asked of every node, once a second while one does.

The nodes are asked beside the head's directory: watching changes no route.

Invariant: a node that does not answer stays in the picture, with what it last said.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

from meshnet.cli.composition import Composition
from meshnet.cli.live.feed import Feed, Happening
from meshnet.cli.report import report_of
from meshnet.core.vocabulary import HopLost, NodeDescription, NodeId, Route
from meshnet.gateway.ports import Readiness
from meshnet.telemetry.pace import Pace

EVERY_S = 1.0
DESCRIBE_S = 1.0


class Lane:
    """One node from one second to the next."""

    def __init__(self, node: NodeId) -> None:
        self._node = node
        self._told: NodeDescription | None = None
        self._told_at = 0.0
        self.answers = True
        self._step_ms: float | None = None
        self._busy = 0.0

    @property
    def ever_answered(self) -> bool:
        return self._told is not None

    def told(self, description: NodeDescription | None, now: float) -> None:
        """Take what the node said of itself now; None: nothing."""
        self.answers = description is not None
        before, self._busy = self._told, 0.0
        if description is None:
            return
        if before is not None and before.pid == description.pid:
            steps = description.steps - before.steps
            compute_s = description.compute_s - before.compute_s
            if steps > 0:
                self._step_ms = round(1000 * compute_s / steps, 2)
            if now > self._told_at:
                self._busy = round(min(1.0, max(0.0, compute_s / (now - self._told_at))), 3)
        self._told, self._told_at = description, now

    def values(self, composition: Composition) -> dict[str, Any]:
        name, told = composition.name_of(self._node), self._told
        links = composition.links.links
        link = next((each for each in links if each.node == self._node), None)
        values: dict[str, Any] = {
            "node": self._node,
            "name": name,
            "state": self._state(),
            "layers": None,
            "step_ms": self._step_ms,
            "busy": self._busy,
            "way_ms": None if link is None else round(1000 * link.round_trip_s, 2),
        }
        if told is None:
            return values
        report = report_of(name, str(self._node), told, composition.model)
        start, stop = report.layers
        return values | {
            "pid": told.pid,
            "layers": [start, stop] if stop > start else None,
            "weights": report.weights,
            "weight_bytes": report.weight_bytes,
            "kv_bytes": told.kv_bytes,
            "kv_bytes_max": told.kv_bytes_max,
            "memory_bytes": None if told.capacity is None else told.capacity.memory_bytes,
            "sessions": told.sessions,
            "sessions_max": told.sessions_max,
            "steps": told.steps,
            "device": told.device,
        }

    def _state(self) -> str:
        if not self.answers or self._told is None:
            return "silent"
        if self._told.draining:
            return "draining"
        return "ready" if self._told.ready and self._told.shards else "loading"


class MeshWatch:
    """Keeps a feed's picture of the mesh fresh while somebody follows."""

    def __init__(
        self,
        composition: Composition,
        readiness: Callable[[], Readiness],
        pace: Pace,
        feed: Feed,
        clock: Callable[[], float],
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._composition, self._readiness, self._pace = composition, readiness, pace
        self._feed, self._clock, self._pause = feed, clock, pause
        self._lanes: dict[NodeId, Lane] = {}
        self._tokens: tuple[float, int] | None = None

    async def run(self) -> None:
        while True:
            if not self._feed.followed:
                self._tokens = None
                await self._feed.somebody()
            self._feed.mesh(await self.look())
            await self._pause(EVERY_S)

    async def look(self) -> dict[str, Any]:
        """Ask every node, and return the mesh as it is."""
        nodes = self._composition.directory.nodes
        self._lanes = {node: self._lanes.get(node) or Lane(node) for node in nodes}
        async with asyncio.TaskGroup() as asking:
            for node, lane in self._lanes.items():
                asking.create_task(self._ask(node, lane))
        lanes = [lane.values(self._composition) for lane in self._lanes.values()]
        return self._head() | {"nodes": lanes}

    async def _ask(self, node: NodeId, lane: Lane) -> None:
        before, known = lane.answers, lane.ever_answered
        lane.told(await self._described(node), self._clock())
        if lane.answers == before or not known:
            return
        name = self._composition.name_of(node)
        if lane.answers:
            self._feed.happened(Happening("back", "good", f"{name} answers again", name))
        else:
            self._feed.happened(Happening("silent", "bad", f"{name} does not answer", name))

    async def _described(self, node: NodeId) -> NodeDescription | None:
        try:
            async with asyncio.timeout(DESCRIBE_S):
                return await self._composition.client.describe(node, DESCRIBE_S)
        except (HopLost, TimeoutError):
            known = self._composition.directory.snapshot()
            # A node from before `GET /node` cannot be asked: it is what its operator declared.
            return next((each for each in known if each.node == node and each.wire == 0), None)

    def _head(self) -> dict[str, Any]:
        composition, state, told = self._composition, self._readiness(), self._pace.told
        counters = composition.head.counters
        route = composition.directory.route(composition.model)
        hops = route.hops if isinstance(route, Route) else ()
        running = counters.started - counters.finished - counters.failed - counters.cancelled
        return {
            "model": composition.model,
            "ready": state.ready,
            "detail": state.detail,
            "layers": self._layers(),
            "route": [
                {"node": hop.node, "layers": [hop.layers.start, hop.layers.stop]} for hop in hops
            ],
            "tokens": counters.tokens,
            "tokens_per_s": self._tokens_per_s(counters.tokens),
            "running": running,
            "waiting": composition.head.waiting,
            "refills": counters.refills.total(),
            "answers": None if told is None else asdict(told),
        }

    def _layers(self) -> int:
        model = self._composition.model
        known = self._composition.directory.snapshot()
        totals = (s.layers_total for node in known for s in node.shards if s.model == model)
        return max(totals, default=0)

    def _tokens_per_s(self, tokens: int) -> float:
        now, before = self._clock(), self._tokens
        self._tokens = (now, tokens)
        if before is None or now <= before[0]:
            return 0.0
        return round((tokens - before[1]) / (now - before[0]), 1)
