"""A whole cluster under a fake clock, from its plan to its verdict; one seed, one history.

    0 s            nodes and heads start; clients come
    HEAL_AT_S      whatever was broken works again: from here on everything must finish
    LIMIT_S        whoever is not done by now is unfinished
    the end        of all chats: the last messages arrive within STRAGGLERS_S, and TTL_S later
                   every node must have forgotten every session

The nodes, the heads and all below them are the real ones; the shard, the network, the machines
and the clock are not.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from unittest.mock import patch

from meshnet.core.generation import machine as generation
from meshnet.core.generation.limits import (
    AdmissionLimits,
    Backoff,
    GenerationLimits,
    StepTimeout,
)
from meshnet.core.generation.machine import Generation
from meshnet.core.generation.questions import Questions
from meshnet.core.generation.relocating import RelocatingGeneration
from meshnet.core.sessions.store import SessionCacheStore
from meshnet.core.vocabulary import LayerRange, NodeId, SessionId
from meshnet.head import Directory, Head, HeadLimits
from meshnet.head import driver as head_driver
from meshnet.head.directory import DirectoryLimits
from meshnet.head.lingering import LingeringSessions, PrefixLimits
from meshnet.node import shards as node_shards
from meshnet.node import steps as node_steps
from meshnet.node.leaving import LeavingRows
from meshnet.node.service import NodeService
from meshnet.node.shards import NodeLimits
from meshnet.simulation.audit import Store, audited
from meshnet.simulation.chaos import Chaos
from meshnet.simulation.clients import Ending, Outcome, converse
from meshnet.simulation.faults import Faults
from meshnet.simulation.history import Costs, History, broken
from meshnet.simulation.loop import VirtualLoop, run
from meshnet.simulation.machine import Machine, SimCompute
from meshnet.simulation.network import Network
from meshnet.simulation.old_node import NodeBeforeReplays, OldNode
from meshnet.simulation.peers import SimPeers
from meshnet.simulation.plan import LAYERS_TOTAL, ClusterPlan, Kind, NodePlan, plan
from meshnet.simulation.toy_shard import CACHING, SUMMING, TOY_MODEL, ToyShard, ToyState
from meshnet.simulation.wire import Service, SimHopClient
from meshnet.wire.handing import Handing

HEAL_AT_S = 15.0
LIMIT_S = 300.0
DEADLINE_S = 250.0
TTL_S = 400.0
STRAGGLERS_S = 30.0

HEAD_LIMITS = HeadLimits(
    generation=GenerationLimits(
        prefill_chunk=4,
        chunk_grain=4,
        step_price=1,
        opening=1,
        step=StepTimeout(base_s=1.0, per_token_s=0.01),
        refills_without_progress=10_000,
        refills_base=10_000,
        recover_s=LIMIT_S,
        busy=Backoff(first_s=0.05, most_s=0.5),
        reroute=Backoff(first_s=0.05, most_s=0.5),
    ),
    admission=AdmissionLimits(reserve_timeout_s=1.0, route_wait_s=LIMIT_S),
    prefixes=PrefixLimits(seconds=10.0, sessions_max=3, tokens_min=1),
)
DIRECTORY_LIMITS = DirectoryLimits(describe_timeout_s=0.5, refresh_s=2.0)


@dataclass(frozen=True, slots=True)
class Parts:
    """What a cluster is built from; a mutant replaces one of them."""

    store: type[Store] = SessionCacheStore
    shard: type[ToyShard] = ToyShard
    generation: type[Generation] = RelocatingGeneration
    handing: type[Handing] = Handing
    lingering: type[LingeringSessions] = LingeringSessions
    leaving: type[LeavingRows] = LeavingRows
    questions: type[Questions] = Questions


REAL_PARTS = Parts()


@dataclass(slots=True)
class SimHead:
    """A head's process: its driver, its line to the network and the chats it serves."""

    name: str
    client: SimHopClient
    head: Head
    directory: Directory
    chats: list[tuple[Outcome, asyncio.Task[None]]] = field(default_factory=list)

    def crash(self) -> None:
        """End it as SIGKILL does: nothing it would still say is heard."""
        self.client.crash()
        for outcome, chat in self.chats:
            if outcome.ending is Ending.OPEN:
                outcome.ending = Ending.CRASHED
                chat.cancel()


class World:
    """The running cluster of one plan. Make it inside a loop; `live` takes it from start to end."""

    def __init__(
        self,
        seed: int,
        cluster: ClusterPlan,
        faults: Faults,
        parts: Parts = REAL_PARTS,
        watch: Callable[[World], Coroutine[None, None, None]] | None = None,
    ) -> None:
        self._watch = watch
        self.seed, self.cluster, self.faults, self.parts = seed, cluster, faults, parts
        self.rng = random.Random(f"world {seed}")
        self.complaints: list[str] = []
        self.outcomes = [Outcome(chat) for chat in cluster.chats]
        self.machines: dict[NodeId, Machine[Service]] = {}
        self.heads: list[SimHead] = []
        self.network = Network(self.rng, faults)
        self._sessions = 0

    heal_at_s, limit_s = HEAL_AT_S, LIMIT_S

    def generation(self) -> type[Generation]:
        """What heads run for each request."""
        return self.parts.generation

    def costs(self) -> Costs:
        """What churn cost; here nobody comes or goes for good."""
        return Costs()

    async def live(self) -> None:
        """Start everything, let the clients chat, heal, wait out the TTL, judge what is left."""
        async with asyncio.TaskGroup() as tasks:
            for node in self.cluster.nodes:
                self.machines[node.node] = self._machine(node, tasks)
            async with AsyncExitStack() as processes:
                for index in range(self.cluster.heads):
                    self.heads.append(await self._head(index, processes))
                await self._chat()
            self._judge_heads()
            await asyncio.sleep(STRAGGLERS_S + TTL_S)
            self._judge_leftovers()

    async def _chat(self) -> None:
        if self._watch is None:
            await self._chat_unwatched()
            return
        async with asyncio.TaskGroup() as beside:
            watching = beside.create_task(self._watch(self))
            await self._chat_unwatched()
            watching.cancel()

    async def _chat_unwatched(self) -> None:
        """Return when every client is done and everything is healed, at `limit_s` at the latest."""
        names = [*(each.name for each in self.heads), *self.machines]
        by_name = {outcome.plan.name: outcome for outcome in self.outcomes}
        chaos = Chaos(self.rng, self.network, list(self.machines.values()), names)
        with suppress(TimeoutError):
            async with asyncio.timeout(self.limit_s), asyncio.TaskGroup() as group:
                group.create_task(chaos.until_healed(self.faults, self.heal_at_s))
                for outcome in self.outcomes:
                    home = self.heads[outcome.plan.head]
                    after = by_name.get(outcome.plan.follows or "")
                    chat = group.create_task(converse(home.head, outcome, DEADLINE_S, after))
                    home.chats.append((outcome, chat))
                self._plan_crashes()
                self._plan_drains()

    def _plan_drains(self) -> None:
        loop = asyncio.get_running_loop()
        for node, at_s in self.cluster.drains:
            loop.call_later(at_s, self._drain, node)
            loop.call_later(self.heal_at_s, partial(self._drain, undo=True), node)

    def _drain(self, node: NodeId, *, undo: bool = False) -> None:
        service = self.machines[node].service
        if isinstance(service, NodeService):
            service.moves.drain(undo=undo)

    def _plan_crashes(self) -> None:
        loop = asyncio.get_running_loop()
        for index in sorted(self.cluster.crashing_heads):
            loop.call_later(self.rng.uniform(0.5, self.heal_at_s), self.heads[index].crash)

    def _machine(self, node: NodePlan, tasks: asyncio.TaskGroup) -> Machine[Service]:
        boot = partial(self._boot, node)
        clock = asyncio.get_running_loop().time
        return Machine(
            node.node,
            boot,
            tasks=tasks,
            rng=self.rng,
            step_max_s=self.cluster.step_max_s,
            handing=lambda: self.parts.handing(
                SimPeers(node.node, self.network, self.machines), clock
            ),
        )

    def _boot(self, node: NodePlan, compute: SimCompute) -> Service:
        shard = self.parts.shard(
            node.layers,
            layers_total=LAYERS_TOTAL,
            capabilities=replace(
                SUMMING if node.sums_up else CACHING,
                kv_cache=node.kind is not Kind.CACHELESS,
                batch=node.batches,
            ),
            fail_after=partial(self._fails_after, node.layers),
        )
        if node.kind is Kind.OLD:
            return OldNode(node.node, shard, compute)
        service = NodeService[ToyState] if node.replays else NodeBeforeReplays
        return service(
            node=node.node,
            pid=1,
            shards=[shard],
            compute=compute,
            limits=NodeLimits(
                kv_bytes_max=node.kv_bytes_max,
                sessions_max=node.sessions_max,
                ttl_s=TTL_S,
                keep_activations=node.replays,
            ),
            clock=asyncio.get_running_loop().time,
            givers=SimHopClient(node.node, self.network, self.machines),
        )

    def _fails_after(self, layers: LayerRange) -> int | None:
        if self.rng.random() < self.network.faults.out_of_memory:
            return self.rng.randrange(len(layers))
        return None

    async def _head(self, index: int, stack: AsyncExitStack) -> SimHead:
        name = f"h{index}"
        clock = asyncio.get_running_loop().time
        legacy = index in self.cluster.legacy_heads
        client = SimHopClient(
            name,
            self.network,
            self.machines,
            legacy=legacy,
            streams=index in self.cluster.streaming_heads,
        )
        nodes = self._listed()
        if index % 2:
            nodes.reverse()
        directory = Directory(client, nodes, clock=clock, limits=DIRECTORY_LIMITS)
        head = Head(
            client,
            directory,
            model=TOY_MODEL,
            encode_text=lambda text: (int(text.strip("<>")),),
            new_session_id=self._new_session_id,
            clock=clock,
            jitter=self.rng.random,
            limits=self._head_limits(index),
        )
        await stack.enter_async_context(directory)
        await stack.enter_async_context(head)
        return SimHead(name, client, head, directory)

    def _listed(self) -> list[NodeId]:
        """The nodes that heads know from the start."""
        return [node.node for node in self.cluster.nodes]

    def _head_limits(self, index: int) -> HeadLimits:
        """A head of ADR-0022 sends no digest, and so no guesses, and goes on with nothing."""
        legacy = index in self.cluster.legacy_heads
        chains = index in self.cluster.streaming_heads and self.cluster.chains
        drafts = 0 if legacy else self.cluster.drafts
        windows = self.cluster.windows
        generation = replace(HEAD_LIMITS.generation, drafts=drafts, chains=chains, windows=windows)
        tokens = self.cluster.reserved_tokens_max
        prefixes = replace(HEAD_LIMITS.prefixes, sessions_max=0) if legacy else HEAD_LIMITS.prefixes
        return replace(
            HEAD_LIMITS, reserved_tokens_max=tokens, generation=generation, prefixes=prefixes
        )

    def _new_session_id(self) -> SessionId:
        self._sessions += 1
        return SessionId(f"session{self._sessions:04}-{self.rng.getrandbits(64):016x}")

    def _judge_leftovers(self) -> None:
        for machine in self.machines.values():
            service = machine.service
            if machine.up and isinstance(service, NodeService):
                service.check_integrity()
                left = service.describe()
                if left.sessions or left.kv_bytes:
                    what = f"{left.sessions} sessions and {left.kv_bytes} bytes"
                    self.complaints.append(f"{machine.node}: {what} left after the TTL")
                if service.pinned:
                    what = f"{service.pinned} sessions pinned by streams that are over"
                    self.complaints.append(f"{machine.node}: {what}")

    def _judge_heads(self) -> None:
        for each in self.heads:
            if each.client.asking:
                self.complaints.append(f"{each.name}: {each.client.asking} steps asked for nobody")
            counters = each.head.counters
            ended = counters.finished + counters.failed + counters.cancelled
            if ended != counters.started:
                self.complaints.append(f"{each.name}: {counters.started} started, {ended} ended")
            if counters.releases != counters.holds:
                counted = f"{counters.holds} holds, {counters.releases} releases"
                self.complaints.append(f"{each.name}: {counted}")

    def history(self, events: int, virtual_s: float) -> History:
        outcomes = self.outcomes
        violations = [each.violation() for each in outcomes]
        violations += [each.borrowed(outcomes) for each in outcomes]
        return History(
            seed=self.seed,
            generations=len(outcomes),
            tokens=sum(len(each.tokens) for each in outcomes),
            refills=sum(each.head.counters.refills.total() for each in self.heads),
            partial_refills=sum(each.head.counters.partial_refills for each in self.heads),
            refilled_positions=sum(each.head.counters.refilled_positions for each in self.heads),
            events=events,
            virtual_s=virtual_s,
            wrong=_said(each.wrong() for each in outcomes),
            unfinished=_said(each.unfinished() for each in outcomes),
            violations=(*_said(violations), *self.complaints),
            costs=self.costs(),
        )


def _said(complaints: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(each for each in complaints if each is not None)


def simulate(seed: int, faults: Faults, parts: Parts = REAL_PARTS) -> History:
    """Run the history of one seed."""
    return simulate_plan(seed, plan(seed, faults), faults, parts)


def simulate_plan(
    seed: int,
    cluster: ClusterPlan,
    faults: Faults,
    parts: Parts = REAL_PARTS,
    watch: Callable[[World], Coroutine[None, None, None]] | None = None,
    build: Callable[..., World] | None = None,
) -> History:
    """Run one cluster. What the seed decides besides the plan: faults, delays and waits.

    `watch` runs beside the clients until they are done; it may look and break things. `build` is
    called with what a `World` is made from.
    """

    async def main() -> History:
        world = (build or World)(seed, cluster, faults, parts, watch)
        store = audited(parts.store, world.complaints)
        with ExitStack() as patches:
            patches.enter_context(patch.object(node_shards, "SessionCacheStore", store))
            patches.enter_context(
                patch.object(head_driver, "RelocatingGeneration", world.generation())
            )
            patches.enter_context(patch.object(head_driver, "LingeringSessions", parts.lingering))
            patches.enter_context(patch.object(node_steps, "LeavingRows", parts.leaving))
            patches.enter_context(patch.object(generation, "Questions", parts.questions))
            await world.live()
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        return world.history(world.network.delivered + loop.tasks_started, loop.time())

    try:
        return run(main, seed)
    except Exception as error:  # noqa: BLE001 - a campaign reports a seed that broke and goes on
        return broken(seed, error)
