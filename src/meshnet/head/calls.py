"""Carry out one question of a machine and word what happened as its event."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from meshnet.core.generation.moves import FindMove, MoveFound, TakenOver, TakeOver
from meshnet.core.generation.transcript import (
    Answered,
    Forward,
    Locate,
    Located,
    Lost,
    NoRoute,
    Replied,
    Reroute,
    Rerouted,
    Reserve,
    Tick,
    Unanswered,
)
from meshnet.core.protocol.messages import Refusal
from meshnet.core.protocol.moving import TakeRequest
from meshnet.core.vocabulary import (
    Hop,
    HopLost,
    ModelId,
    NodeId,
    Route,
    SamplingParams,
    SessionDescription,
)
from meshnet.head.client import HopClient
from meshnet.head.directory import PLAIN, Directory

E = TypeVar("E")


class Calls:
    def __init__(
        self,
        client: HopClient,
        directory: Directory,
        *,
        model: ModelId,
        clock: Callable[[], float],
        sampling: SamplingParams = PLAIN,
    ) -> None:
        """`sampling`: how those draw for whom routes are looked for."""
        self._client, self._directory = client, directory
        self._model, self._clock, self._sampling = model, clock, sampling

    def drawing(self, sampling: SamplingParams) -> Calls:
        """Return the same for a generation that draws so."""
        return Calls(
            self._client,
            self._directory,
            model=self._model,
            clock=self._clock,
            sampling=sampling,
        )

    async def by(self, deadline: float | None, work: Awaitable[E]) -> E | Tick:
        """Await `work`, or cancel it at `deadline` and tell that time passed."""
        delay_s = None if deadline is None else max(deadline - self._clock(), 0.0)
        try:
            async with asyncio.timeout(delay_s):
                return await work
        except TimeoutError:
            return Tick()

    async def forward(self, asked: Forward) -> Replied | Lost:
        if asked.chain:
            return await self._chain(asked)
        try:
            reply = await self._client.forward(asked.hop.node, asked.request, asked.timeout_s)
        except HopLost as lost:
            return Lost(asked.ref, str(lost))
        return Replied(asked.ref, reply)

    async def _chain(self, asked: Forward) -> Replied | Lost:
        nodes = [hop.node for hop in asked.hops]
        node, end = await self._client.chain(nodes, asked.request, asked.timeout_s)
        hop = next((hop for hop in asked.hops if hop.node == node), None)
        if isinstance(end, HopLost):
            return Lost(asked.ref, str(end), hop)
        return Replied(asked.ref, end, hop)

    async def locate(self, asked: Locate) -> Located:
        """Ask all hops at the same time."""

        async def found(hop: Hop) -> SessionDescription | HopLost | None:
            try:
                return await self._client.session(hop.node, asked.session, asked.timeout_s)
            except HopLost as lost:
                return lost

        async with asyncio.TaskGroup() as asking:
            tasks = [asking.create_task(found(hop)) for hop in asked.hops]
        return Located(tuple(task.result() for task in tasks))

    async def reserve(self, asked: Reserve) -> Answered | Unanswered:
        try:
            answer = await self._client.reserve(asked.hop.node, asked.request, asked.timeout_s)
        except HopLost as lost:
            return Unanswered(asked.ref, str(lost))
        return Answered(asked.ref, answer)

    async def reroute(self, asked: Reroute) -> Rerouted | NoRoute:
        """Ask every node what it serves now; a lost one comes last, and only if it answers."""
        avoid = () if asked.avoid is None else (asked.avoid.node,)
        for node in avoid if asked.lost else ():
            self._directory.suspect(node)
        await self._directory.refresh()
        found = self._directory.route(
            self._model, avoid, asked.fingerprint, asked.keep, self._sampling
        )
        if isinstance(found, Route):
            return Rerouted(found)
        return NoRoute(f"{asked.reason}; {found}")

    def leaving(self, route: Route) -> bool:
        """Whether some hop would like to be rid of its sessions."""
        return any(self._directory.draining(hop.node) for hop in route.hops)

    async def find_move(self, asked: FindMove) -> MoveFound | NoRoute:
        """Ask every node what it serves now; hops that do not drain stay where that is possible."""
        await self._directory.refresh()
        old = asked.route
        if (move := self._directory.move(old, asked.length, self._sampling)) is not None:
            return MoveFound(*move)
        keep = [hop for hop in old.hops if not self._directory.draining(hop.node)]
        fingerprint = old.fingerprint or None
        found = self._directory.route(self._model, (), fingerprint, keep, self._sampling)
        return MoveFound(found, None) if isinstance(found, Route) else NoRoute(str(found))

    async def take_over(self, asked: TakeOver) -> TakenOver:
        """Tell all hops at the same time."""

        async with asyncio.TaskGroup() as taking:
            tasks = [
                taking.create_task(self._taken(hop.node, order, asked))
                for hop, order in asked.orders
            ]
        return TakenOver(tuple(task.result() for task in tasks))

    async def _taken(
        self, node: NodeId, order: TakeRequest, asked: TakeOver
    ) -> SessionDescription | HopLost:
        """Let one node take the session over, for as long as it gives signs of life."""

        async def taken() -> SessionDescription | HopLost:
            try:
                answer = await self._client.take(node, order, asked.timeout_s)
            except HopLost as lost:
                return lost
            return HopLost(answer.message) if isinstance(answer, Refusal) else answer

        async def silent() -> HopLost:
            while True:
                await asyncio.sleep(asked.alive_s)
                try:
                    await self._client.session(node, order.session, asked.alive_s)
                except HopLost as lost:
                    return lost

        async with asyncio.TaskGroup() as group:
            tasks = (group.create_task(taken()), group.create_task(silent()))
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
        return next(task.result() for task in tasks if task in ended)

    async def nothing(self) -> Tick:
        """Wait for whatever ends the wait from outside."""
        await asyncio.get_running_loop().create_future()
        return Tick()
