"""Keep a generation's places on its hops while steps take long, and hear who is alive.

A node lets go of a session that nobody touched for some seconds (ADR-0029), and a step or a queue
on one slow hop may take longer: so, while an answer is awaited, every hop not heard from for
`every_s` is asked to reserve again. A head that died tells nobody anything, and its places fall
free; so do those of a client that takes no tokens. A hop that says that a step of the session runs
there is alive: it computes, or has others' steps before ours. (Where nothing is cached, any word
is taken for a sign of life.)

A generation that some hop refused keeps no place elsewhere until a step has passed every hop: two
that wait for room would each hold what the other needs, for ever.

Nothing depends on a word arriving: a place that was lost costs one refill.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager

from meshnet.core.generation.transcript import Forward, Lost, Replied
from meshnet.core.protocol.messages import Mode, Refusal, Reserved, ReserveRequest
from meshnet.core.vocabulary import Hop, HopLost, ModelId, SessionId
from meshnet.head.client import HopClient

Heard = Callable[[Hop], None]


class PlaceKeeper:
    """For one head. `every_s` must be well below the time for which nodes keep a place."""

    def __init__(self, client: HopClient, tasks: asyncio.TaskGroup, *, every_s: float) -> None:
        self.client, self.every_s = client, every_s
        self._tasks = tasks
        self._telling: set[asyncio.Task[None]] = set()
        self._stopped = False

    def stop(self) -> None:
        """Tell nobody any more: the task group is closing."""
        self._stopped = True
        for task in self._telling:
            task.cancel()

    def start(
        self, telling: Callable[[], Coroutine[None, None, None]]
    ) -> asyncio.Task[None] | None:
        """Run `telling` until it is cancelled; None: nobody is told any more."""
        if self._stopped:
            return None
        task = self._tasks.create_task(telling())
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)
        return task

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
        self._refused = False

    def told(self, asked: Forward, event: Replied | Lost, *, is_last: bool) -> None:
        """Note what became of a question; `is_last`: of the route's last hop."""
        self._heard_at |= dict.fromkeys(asked.hops, self._loop.time())
        if isinstance(event, Replied) and isinstance(event.reply, Refusal):
            self._refused = True
        elif isinstance(event, Replied) and is_last:
            self._refused = False

    @contextmanager
    def kept(
        self, mode: Mode, asked: Callable[[], Sequence[Hop]], hops: Sequence[Hop], heard: Heard
    ) -> Iterator[None]:
        """Hold the places until the block ends, in which the hops `asked()` are waited for."""
        over = False

        def heard_in_time(hop: Hop) -> None:
            if not over:
                heard(hop)

        def kept_now() -> Sequence[Hop]:
            return asked() if mode is Mode.STATELESS or self._refused else hops

        # Most steps are answered long before: a timer costs them a microsecond, a task more.
        timer = self._loop.call_at(
            self._due_at(kept_now(), asked()), self._start, mode, kept_now, heard_in_time
        )
        try:
            yield
        finally:
            over = True
            timer.cancel()
            if self._telling is not None:
                self._telling.cancel()
                self._telling = None

    def _due_at(self, hops: Sequence[Hop], asked: Sequence[Hop]) -> float:
        if all(hop in asked for hop in hops):
            return self._loop.time() + self._keeper.every_s
        longest = min(self._heard_at.get(hop, self._began_at) for hop in hops)
        return longest + self._keeper.every_s

    def _start(self, mode: Mode, hops: Callable[[], Sequence[Hop]], heard: Heard) -> None:
        self._telling = self._keeper.start(lambda: self._tell(mode, hops, heard))

    async def _tell(self, mode: Mode, hops: Callable[[], Sequence[Hop]], heard: Heard) -> None:
        every_s = self._keeper.every_s
        while True:
            async with asyncio.TaskGroup() as telling:
                for hop in hops():
                    self._heard_at[hop] = self._loop.time()
                    if hop.wire:  # an ADR-0022 node knows no reservations
                        telling.create_task(self._tell_one(mode, hop, heard))
                telling.create_task(asyncio.sleep(every_s))

    async def _tell_one(self, mode: Mode, hop: Hop, heard: Heard) -> None:
        client, every_s = self._keeper.client, self._keeper.every_s
        try:
            async with asyncio.timeout(every_s):
                if mode is Mode.STATELESS:
                    await client.describe(hop.node, every_s)
                    heard(hop)
                    return
                answer = await client.reserve(hop.node, self._request(hop), every_s)
        except (HopLost, TimeoutError):
            return
        if isinstance(answer, Reserved) and answer.running:
            heard(hop)

    def _request(self, hop: Hop) -> ReserveRequest:
        return ReserveRequest(self._session, self._tokens, self._model, hop.layers)
