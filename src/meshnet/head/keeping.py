"""Keep a generation's places on its hops while steps take long.

A node lets go of a session that nobody touched for some seconds (ADR-0029), and a step or a queue
on one slow hop may take longer: so, while an answer is awaited, every hop not heard from for
`every_s` is asked to reserve again. A head that died tells nobody anything, and its places fall
free; so do those of a client that takes no tokens.

Nothing depends on a word arriving: a place that was lost costs one refill.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from meshnet.core.generation.transcript import Forward
from meshnet.core.protocol.messages import Mode, ReserveRequest
from meshnet.core.vocabulary import Hop, HopLost, ModelId, SessionId
from meshnet.head.client import HopClient


class PlaceKeeper:
    """For one head. `every_s` must be well below the time for which nodes keep a place."""

    def __init__(self, client: HopClient, tasks: asyncio.TaskGroup, *, every_s: float) -> None:
        self.client, self.tasks, self.every_s = client, tasks, every_s
        self.stopped = False

    def stop(self) -> None:
        """Tell nobody any more: the task group is closing."""
        self.stopped = True

    def places(self, session: SessionId, model: ModelId, tokens: int) -> Places:
        return Places(self, session, model, tokens)


class Places:
    """Those of one generation, with room for `tokens` positions each."""

    def __init__(
        self, keeper: PlaceKeeper, session: SessionId, model: ModelId, tokens: int
    ) -> None:
        self._keeper, self._session, self._model, self._tokens = keeper, session, model, tokens
        self._loop = asyncio.get_running_loop()
        self._began_at = self._loop.time()
        self._heard_at: dict[Hop, float] = {}
        self._telling: asyncio.Task[None] | None = None

    @contextmanager
    def kept(self, asked: Forward, hops: Sequence[Hop]) -> Iterator[None]:
        """Hold the places until the block ends, in which `asked` is carried out."""
        if asked.request.mode is Mode.STATELESS:
            yield
            return
        # Most steps are answered long before: a timer costs them a microsecond, a task more.
        timer = self._loop.call_at(self._due_at(hops), self._start, hops)
        try:
            yield
            self._heard_at[asked.hop] = self._loop.time()
        finally:
            timer.cancel()
            if self._telling is not None:
                self._telling.cancel()
                self._telling = None

    def _due_at(self, hops: Sequence[Hop]) -> float:
        longest = min(self._heard_at.get(hop, self._began_at) for hop in hops)
        return longest + self._keeper.every_s

    def _start(self, hops: Sequence[Hop]) -> None:
        if not self._keeper.stopped:
            self._telling = self._keeper.tasks.create_task(self._tell(hops))

    async def _tell(self, hops: Sequence[Hop]) -> None:
        every_s = self._keeper.every_s
        while True:
            async with asyncio.TaskGroup() as telling:
                for hop in hops:
                    self._heard_at[hop] = self._loop.time()
                    if hop.wire:  # an ADR-0022 node knows no reservations
                        telling.create_task(self._tell_one(hop))
                telling.create_task(asyncio.sleep(every_s))

    async def _tell_one(self, hop: Hop) -> None:
        request = ReserveRequest(self._session, self._tokens, self._model, hop.layers)
        every_s = self._keeper.every_s
        with suppress(HopLost, TimeoutError):
            async with asyncio.timeout(every_s):
                await self._keeper.client.reserve(hop.node, request, every_s)
