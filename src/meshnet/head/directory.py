"""Which nodes there are and what each serves, as this head learnt it.

The nodes of a static list and those that joined the mesh, described again and again. A node that
was lost in a call is a suspect: it leaves the inventory at its next failed description, while a
node in good standing may miss `strikes_max - 1` of them. Any description clears it. Snapshots are
values.

A node from before `GET /node` cannot be asked: its layers are what the operator declared, its
model that of the other nodes, and it is taken to be there until a call to it fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType

from meshnet.core.routing import Inventory, NoRoute, find_route
from meshnet.core.routing.moving import Taking, find_move
from meshnet.core.vocabulary import (
    Capabilities,
    Hop,
    HopLost,
    LayerRange,
    ModelId,
    NodeDescription,
    NodeId,
    Route,
    SamplingParams,
    ShardDescription,
)
from meshnet.head.client import HopClient

PLAIN = SamplingParams()
"""What every tail can do."""


@dataclass(frozen=True, slots=True)
class DirectoryLimits:
    describe_timeout_s: float = 2.0
    refresh_s: float = 5.0
    strikes_max: int = 3


class Directory:
    """Use it as an async context manager to keep it fresh in the background.

    Without that, it learns only when `refresh` is called.
    """

    def __init__(
        self,
        client: HopClient,
        nodes: Sequence[NodeId],
        *,
        clock: Callable[[], float],
        limits: DirectoryLimits | None = None,
        declared: Mapping[NodeId, LayerRange] | None = None,
        kv_cache: bool = True,
        chained: bool = False,
    ) -> None:
        """Know `nodes`, of which `declared` are of old and cannot be asked.

        `kv_cache` False makes every route stateless, as if a node of it could not cache;
        `chained`: only routes whose nodes hand steps on all the way.
        """
        self._client, self._nodes, self._clock = client, tuple(nodes), clock
        self._declared = dict(declared or {})
        self._kv_cache, self._chained = kv_cache, chained
        self._limits = limits or DirectoryLimits()
        self._joined: Mapping[NodeId, str] = {}
        self._changed: set[NodeId] = set()
        self._news = asyncio.Event()
        self._known: dict[NodeId, NodeDescription] = {}
        self._strikes: dict[NodeId, int] = {}
        self._round = asyncio.Lock()
        self._round_began_at: float | None = None
        self._tasks = asyncio.TaskGroup()
        self._refreshing: asyncio.Task[None] | None = None

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        """The static list, then those that joined."""
        return (*self._nodes, *(node for node in self._joined if node not in self._nodes))

    def joined(self, members: Mapping[NodeId, str]) -> None:
        """Know these nodes besides the static list, and forget who is not among them any more.

        With each goes any text that is another one when the node has something new to say.
        """
        left = self._joined.keys() - members.keys() - set(self._nodes)
        for node in left:
            self._known.pop(node, None)
            self._strikes.pop(node, None)
        self._changed -= left
        self._changed |= {node for node, text in members.items() if self._joined.get(node) != text}
        self._joined = dict(members)
        if self._changed:
            self._news.set()

    def snapshot(self) -> tuple[NodeDescription, ...]:
        """The descriptions held now, in the order of `nodes`."""
        known = self._known | {
            node: _of_old(node, layers, self._known.values())
            for node, layers in self._declared.items()
        }
        return tuple(known[node] for node in self.nodes if node in known)

    def inventory(self, sampling: SamplingParams = PLAIN) -> Inventory:
        """What is served now, without last layers that cannot draw by `sampling`."""
        nodes = {each.node: _able(each, sampling) for each in self.snapshot()}
        return Inventory(nodes, self.suspects())

    def lack(self, model: ModelId, sampling: SamplingParams) -> str:
        """Say what of `sampling` no route can do, though there are routes; else nothing."""
        if not (sampling.forced or sampling.grammar):
            return ""
        if not self.ready(model) or isinstance(self.route(model, sampling=sampling), Route):
            return ""
        shards = (shard for each in self.snapshot() for shard in each.shards)
        tails = [shard.capabilities for shard in shards if shard.model == model and shard.is_tail]
        return next(filter(None, (tail.lack(sampling) for tail in tails)), "")

    def draws(self, route: Route, sampling: SamplingParams) -> bool:
        """Whether the last hop of `route` can draw by `sampling`."""
        shard = self._shard(route.hops[-1], route)
        return shard is not None and not shard.capabilities.lack(sampling)

    def route(
        self,
        model: ModelId,
        avoid: Collection[NodeId] = (),
        fingerprint: str | None = None,
        keep: Collection[Hop] = (),
        sampling: SamplingParams = PLAIN,
    ) -> Route | NoRoute:
        """Return the best route known now; one through `avoid` only where there is no other.

        `keep` are hops that hold something of the generation that asks, which draws by `sampling`.
        """
        known = self.inventory(sampling)
        find = partial(find_route, known, model, chained=self._chained, keep=keep)
        found = find(avoid, fingerprint)
        if isinstance(found, NoRoute) and avoid:
            found = find((), fingerprint)
        if isinstance(found, NoRoute) or self._kv_cache:
            return found
        return replace(found, kv_cache=False)

    def move(
        self, old: Route, length: int, sampling: SamplingParams = PLAIN
    ) -> tuple[Route, tuple[Taking, ...]] | None:
        """Return where a session of `length` positions can move from the hops that drain."""
        found = find_move(self.inventory(sampling), old, length)
        if found is None or (self._chained and not found[0].chain):
            return None
        return found

    def standing(self, route: Route) -> tuple[str, ...] | None:
        """Return the arithmetic of each hop; None if some hop is not served as it was."""
        arithmetic = []
        for hop in route.hops:
            shard = self._shard(hop, route)
            if shard is None:
                return None
            arithmetic.append(shard.arithmetic)
        return tuple(arithmetic)

    def _shard(self, hop: Hop, route: Route) -> ShardDescription | None:
        node = self._known.get(hop.node)
        if (
            node is None
            or not node.ready
            or node.draining
            or node.wire != hop.wire
            or hop.node in self._strikes
        ):
            return None
        kind = (route.model, route.fingerprint)
        fitting = (
            shard
            for shard in node.shards
            if (shard.model, shard.fingerprint) == kind and shard.layers.holds(hop.layers)
        )
        return next(fitting, None)

    def draining(self, node: NodeId) -> bool:
        """Whether `node` would like to be rid of its sessions."""
        known = self._known.get(node)
        return known is not None and known.draining

    def ready(self, model: ModelId) -> bool:
        return isinstance(self.route(model), Route)

    def suspect(self, node: NodeId) -> None:
        """A call to `node` was lost: believe its next description, or forget it."""
        self._strikes[node] = self._limits.strikes_max - 1

    def suspects(self) -> frozenset[NodeId]:
        return frozenset(node for node, strikes in self._strikes.items() if strikes)

    async def refresh(self) -> None:
        """Ask every node what it serves. Ends within the description timeout, or twice that.

        Callers share rounds: one that waited while a whole round ran has what it came for.
        """
        came_at = self._clock()
        async with self._round:
            if self._round_began_at is not None and self._round_began_at >= came_at:
                return
            began_at = self._clock()
            await self._describe_all(self.nodes)
            for node in self._declared:
                self._strikes.pop(node, None)
            self._round_began_at = began_at

    async def __aenter__(self) -> Directory:
        await self._tasks.__aenter__()
        self._refreshing = self._tasks.create_task(self._keep_fresh())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._refreshing is not None:
            self._refreshing.cancel()
        if isinstance(error, asyncio.CancelledError):
            await self._tasks.__aexit__(kind, error, trace)
        else:  # an error of the body stays what it is: a task group would wrap it
            await self._tasks.__aexit__(None, None, None)

    async def _keep_fresh(self) -> None:
        while True:
            await self.refresh()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._limits.refresh_s):
                    await self._hear_news()

    async def _hear_news(self) -> None:
        """Ask those that have something new to say, for as long as they do."""
        while True:
            await self._news.wait()
            self._news.clear()
            changed, self._changed = self._changed, set()
            await self._describe_all(sorted(changed))

    async def _describe_all(self, nodes: Collection[NodeId]) -> None:
        async with asyncio.TaskGroup() as asking:
            for node in nodes:
                if node not in self._declared:
                    asking.create_task(self._describe(node))

    async def _describe(self, node: NodeId) -> None:
        timeout_s = self._limits.describe_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                description = await self._client.describe(node, timeout_s)
        except (HopLost, TimeoutError):
            self._strike(node)
            return
        if node not in self.nodes:
            return  # it left while it was asked
        self._strikes.pop(node, None)
        # A node names itself; the head knows it by the name it dials.
        self._known[node] = replace(description, node=node)

    def _strike(self, node: NodeId) -> None:
        strikes = self._strikes.get(node, 0) + 1
        self._strikes[node] = min(strikes, self._limits.strikes_max)
        if strikes >= self._limits.strikes_max:
            self._known.pop(node, None)


def _of_old(
    node: NodeId, layers: LayerRange, others: Collection[NodeDescription]
) -> NodeDescription:
    """Describe an ADR-0022 node: any model that others serve, for it cannot say which."""
    models: dict[tuple[ModelId, str], ShardDescription] = {
        (shard.model, shard.fingerprint): shard for other in others for shard in other.shards
    }
    # It may cache or not; the first prefill that it does not confirm tells.
    capabilities = Capabilities(kv_cache=True, multi_token=False)
    shards = tuple(
        replace(shard, layers=layers, capabilities=capabilities)
        for shard in models.values()
        if layers.stop <= shard.layers_total
    )
    return undescribed(node, shards)


def _able(node: NodeDescription, sampling: SamplingParams) -> NodeDescription:
    """Leave out of a node's description what cannot draw by `sampling`."""
    able = tuple(
        shard for shard in node.shards if not (shard.is_tail and shard.capabilities.lack(sampling))
    )
    return node if len(able) == len(node.shards) else replace(node, shards=able)


def undescribed(node: NodeId, shards: tuple[ShardDescription, ...]) -> NodeDescription:
    """Describe a node that has no such answer, by what its operator says that it serves."""
    return NodeDescription(
        node=node,
        wire=0,
        pid=0,
        ready=True,
        shards=shards,
        sessions=0,
        sessions_max=1,
        kv_bytes=0,
        kv_bytes_max=1,
        compute_s=0.0,
        steps=0,
    )
