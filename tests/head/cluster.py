"""Real node services in one process under virtual time, called without a network."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass

from meshnet.core.protocol.messages import (
    ForwardRequest,
    Mode,
    Refusal,
    Reply,
    Reserved,
    ReserveRequest,
)
from meshnet.core.vocabulary import (
    Capabilities,
    HopLost,
    LayerRange,
    NodeDescription,
    NodeId,
    SamplingParams,
    SessionDescription,
    SessionId,
)
from meshnet.head import Directory, FinishEvent, GenerationRequest, Head, HeadLimits, TokenEvent
from meshnet.head.directory import DirectoryLimits
from meshnet.node.service import NodeService
from meshnet.node.shards import NodeLimits
from meshnet.simulation.machine import SimCompute
from meshnet.simulation.old_node import OldNode
from meshnet.simulation.toy_shard import TOY_MODEL, ToyShard, ToyState, oracle
from meshnet.telemetry.events import Record, record_nothing

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")
LAYERS = {A: LayerRange(0, 2), B: LayerRange(2, 4), C: LayerRange(4, 6)}
LAYERS_TOTAL = 6
PROMPT = (3, 1, 4, 1, 5)

Service = NodeService[ToyState] | OldNode
BeforeForward = Callable[[NodeId, ForwardRequest], Awaitable[None]]


async def nothing_happens(node: NodeId, request: ForwardRequest) -> None:
    """No fault."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A forward that reached a node's doorstep."""

    node: NodeId
    request: ForwardRequest


class Cluster:
    """A HopClient whose nodes are here. `before_forward` may wait or raise HopLost."""

    def __init__(
        self,
        layers: Mapping[NodeId, LayerRange] = LAYERS,
        *,
        sessions_max: int = 8,
        old: frozenset[NodeId] = frozenset(),
        cacheless: frozenset[NodeId] = frozenset(),
        pin_s: float = 5.0,
        step_max_s: float = 0.002,
        truncate: bool = False,
    ) -> None:
        self._truncate = truncate
        self._step_max_s = step_max_s
        self._layers, self._old, self._cacheless = dict(layers), old, cacheless
        self._limits = NodeLimits(kv_bytes_max=2**30, sessions_max=sessions_max, pin_s=pin_s)
        self._rng = random.Random(0)
        self.nodes: dict[NodeId, Service] = {}
        self.down: set[NodeId] = set()
        self.forwards: list[Asked] = []
        self.reserves: list[tuple[NodeId, SessionId]] = []
        self.releases: list[tuple[NodeId, SessionId]] = []
        self.in_flight = 0
        self.hints_are_lost = False
        self.hint_s = 0.0
        self.before_forward: BeforeForward = nothing_happens
        for node in layers:
            self.boot(node)

    def boot(self, node: NodeId, shard: ToyShard | None = None) -> None:
        """Start the node's process, or start it again with an empty store and perhaps a shard."""
        shard = shard or ToyShard(
            self._layers[node],
            layers_total=LAYERS_TOTAL,
            capabilities=Capabilities(
                kv_cache=node not in self._cacheless, multi_token=True, truncate=self._truncate
            ),
        )
        compute = SimCompute(self._rng, step_max_s=self._step_max_s)
        self.down.discard(node)
        if node in self._old:
            self.nodes[node] = OldNode(node, shard, compute)
            return
        self.nodes[node] = NodeService(
            node=NodeId(f"process of {node}"),
            pid=1,
            shards=[shard],
            compute=compute,
            limits=self._limits,
            clock=asyncio.get_running_loop().time,
        )

    def sessions(self) -> int:
        return sum(service.describe().sessions for service in self.nodes.values())

    def modes(self) -> list[Mode]:
        return [asked.request.mode for asked in self.forwards]

    # --- HopClient ----------------------------------------------------------------------------

    async def forward(self, node: NodeId, request: ForwardRequest, timeout_s: float) -> Reply:
        self.forwards.append(Asked(node, request))
        self.in_flight += 1
        try:
            await self.before_forward(node, request)
            return await self._up(node).forward(request)
        finally:
            self.in_flight -= 1

    async def reserve(
        self, node: NodeId, request: ReserveRequest, timeout_s: float
    ) -> Reserved | Refusal:
        self.reserves.append((node, request.session))
        await asyncio.sleep(0.001)
        return await self._up(node).reserve(request)

    async def session(
        self, node: NodeId, session: SessionId, timeout_s: float
    ) -> SessionDescription | None:
        await asyncio.sleep(0.001)
        service = self._up(node)
        return service.session(session) if isinstance(service, NodeService) else None

    async def release(
        self, node: NodeId, session: SessionId, timeout_s: float, *, linger: bool = False
    ) -> None:
        self.releases.append((node, session))
        await asyncio.sleep(self.hint_s)
        if self.hints_are_lost:
            raise HopLost("the hint was lost")
        self._up(node).release(session, linger=linger)

    async def describe(self, node: NodeId, timeout_s: float) -> NodeDescription:
        await asyncio.sleep(0.001)
        return self._up(node).describe()

    def _up(self, node: NodeId) -> Service:
        if node in self.down:
            raise HopLost(f"{node}: connection refused")
        return self.nodes[node]


@asynccontextmanager
async def running(
    cluster: Cluster,
    *,
    name: str = "h",
    limits: HeadLimits | None = None,
    record: Record = record_nothing,
) -> AsyncIterator[Head]:
    """A head that knows the cluster's nodes."""
    clock = asyncio.get_running_loop().time
    numbers = iter(range(10_000))
    directory = Directory(
        cluster, list(cluster.nodes), clock=clock, limits=DirectoryLimits(refresh_s=1e6)
    )
    await directory.refresh()
    async with Head(
        cluster,
        directory,
        model=TOY_MODEL,
        encode_text=lambda text: (int(text.strip("<>")),),
        new_session_id=lambda: SessionId(f"{name}-{next(numbers)}"),
        clock=clock,
        jitter=random.Random(name).random,
        limits=limits,
        record=record,
    ) as head:
        yield head


def request(
    prompt: tuple[int, ...] = PROMPT,
    *,
    tokens_max: int = 8,
    sampling: SamplingParams | None = None,
    stop_ids: tuple[int, ...] = (),
    deadline_s: float = 600.0,
    owner: str | None = None,
) -> GenerationRequest:
    return GenerationRequest(
        prompt,
        tokens_max,
        sampling or SamplingParams(),
        frozenset(stop_ids),
        deadline_s,
        prefix_owner=owner,
    )


async def collect(head: Head, asked: GenerationRequest) -> tuple[tuple[int, ...], FinishEvent]:
    """Return the token ids and the finish of one generation."""
    tokens: list[int] = []
    finish: FinishEvent | None = None
    async with aclosing(head.generate(asked)) as items:
        async for item in items:
            if isinstance(item, TokenEvent):
                tokens.append(item.token.token_id)
            else:
                finish = item
    assert finish is not None
    return tuple(tokens), finish


def expected(asked: GenerationRequest) -> tuple[int, ...]:
    """What the unsplit model draws."""
    return oracle(asked.prompt, asked.sampling, asked.tokens_max, LAYERS_TOTAL, asked.stop_ids)


def hang_at(cluster: Cluster, node: NodeId) -> asyncio.Event:
    """Let `node` never answer a step; the event tells that one has reached it."""
    reached = asyncio.Event()

    async def hang(hop: NodeId, sent: ForwardRequest) -> None:
        if hop == node:
            reached.set()
            await asyncio.get_running_loop().create_future()

    cluster.before_forward = hang
    return reached
