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
from collections.abc import Callable, Sequence

from meshnet.core.generation.transcript import Forward, Lost, Replied
from meshnet.core.protocol.messages import Mode, Refusal, Reserved, ReserveRequest
from meshnet.core.vocabulary import Hop, HopLost, ModelId, SessionId
from meshnet.head.background import Background
from meshnet.head.client import HopClient

Heard = Callable[[Hop], None]


class PlaceKeeper:
    """For one head. `every_s` must be well below the time for which nodes keep a place."""

    def __init__(self, client: HopClient, background: Background, *, every_s: float) -> None:
        self.client, self.every_s = client, every_s
        self.start = background.start

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
        self._refused = self._alone = False
        self._awaited: _Wait | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_hops: Sequence[Hop] = ()

    @property
    def refused(self) -> bool:
        """Whether some hop refused since a step last passed every hop."""
        return self._refused

    def told(self, asked: Forward, event: Replied | Lost, *, is_last: bool) -> None:
        """Note what became of a question; `is_last`: of the route's last hop."""
        now = self._loop.time()
        self._heard_at[asked.hop] = now
        for hop in asked.chain:
            self._heard_at[hop] = now
        if isinstance(event, Replied) and isinstance(event.reply, Refusal):
            self._refused = True
        elif isinstance(event, Replied) and is_last:
            self._refused = False

    def kept(
        self, mode: Mode, asked: Callable[[], Sequence[Hop]], hops: Sequence[Hop], heard: Heard
    ) -> _Wait:
        """Hold the places until the block ends, in which the hops `asked()` are waited for."""
        return _Wait(self, mode, asked, hops, heard, self._loop.time())

    def close(self) -> None:
        """Nothing will be waited for any more."""
        self._awaited = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def begin(self, wait: _Wait) -> None:
        """Most waits end long before a hop is to be told: they leave the timer as it is.

        It is never too late for the next one, as long as that is for the same hops: what was heard
        meanwhile only puts off when they are due.
        """
        self._awaited = wait
        alone = wait.mode is Mode.STATELESS or self._refused
        if self._timer is None or alone != self._alone or self._timer_hops is not wait.hops:
            self._alone, self._timer_hops = alone, wait.hops
            self._look_at(self._due_at(wait))

    def end(self, wait: _Wait) -> None:
        if self._awaited is wait:
            self._awaited = None
        if self._telling is not None:
            self._telling.cancel()
            self._telling = None

    def _look_at(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._look)

    def _look(self) -> None:
        self._timer, wait = None, self._awaited
        if wait is None:
            return
        due_at = self._due_at(wait)
        if due_at > self._loop.time():
            self._look_at(due_at)
        else:
            self._telling = self._keeper.start(lambda: self._tell(wait.mode, wait.told, wait.heard))

    def _due_at(self, wait: _Wait) -> float:
        hops, asked = wait.told(), wait.asked()
        if all(hop in asked for hop in hops):
            return max(wait.since, self._heard(hops)) + self._keeper.every_s
        return self._heard(hops) + self._keeper.every_s

    def _heard(self, hops: Sequence[Hop]) -> float:
        """Return when the hop was heard of that was not heard of for the longest."""
        return min((self._heard_at.get(hop, self._began_at) for hop in hops), default=0.0)

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


class _Wait:
    """One wait for answers, as a context."""

    __slots__ = ("_heard", "_over", "_places", "asked", "hops", "mode", "since")

    def __init__(
        self,
        places: Places,
        mode: Mode,
        asked: Callable[[], Sequence[Hop]],
        hops: Sequence[Hop],
        heard: Heard,
        since: float,
    ) -> None:
        self._places, self.mode, self.asked, self.hops = places, mode, asked, hops
        self._heard, self._over = heard, False
        self.since = since

    def __enter__(self) -> None:
        self._places.begin(self)

    def __exit__(self, *_: object) -> None:
        self._over = True
        self._places.end(self)

    def told(self) -> Sequence[Hop]:
        """Return whose places are kept."""
        if self.mode is Mode.STATELESS or self._places.refused:
            return self.asked()
        return self.hops

    def heard(self, hop: Hop) -> None:
        if not self._over:
            self._heard(hop)
