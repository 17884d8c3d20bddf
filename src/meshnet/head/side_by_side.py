"""Carry out several questions of one generation at the same time: chunks of a prompt, windows.

    start ──▶ open ──answer──▶ told, if the machine still asks
               ├─ closed by a failure: cancelled at once, lest it hold up what follows
               └─ overtaken: left to end by itself, and ignored

Calls go on while the consumer is slow; their answers wait here. Answers are told in the order in
which they ended, since what a refused step closes is not lost.

Invariant: no call outlives `close`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass

from meshnet.core.generation.machine import Generation
from meshnet.core.generation.transcript import (
    Alive,
    Forward,
    GenerationEvent,
    Lost,
    Replied,
    StepRef,
    Tick,
)
from meshnet.core.protocol.messages import Mode
from meshnet.core.vocabulary import Hop
from meshnet.head.background import Background
from meshnet.head.keeping import Places

Ask = Callable[[Forward], Coroutine[None, None, Replied | Lost]]


@dataclass(frozen=True, slots=True)
class _Call:
    hops: tuple[Hop, ...]
    task: asyncio.Task[None] | None


class SideBySide:
    def __init__(
        self, machine: Generation, places: Places, ask: Ask, background: Background
    ) -> None:
        self._machine, self._places, self._ask = machine, places, ask
        self._background = background
        self._calls: dict[StepRef, _Call] = {}
        self._overtaken: set[StepRef] = set()
        self._ended: asyncio.Queue[Replied | Lost | Exception] = asyncio.Queue()

    @property
    def waiting(self) -> bool:
        """Whether the answer to one of these calls is waited for, or waits to be told."""
        return any(map(self._machine.asks, self._calls))

    @property
    def busy(self) -> bool:
        """Whether there is any call, waited for or not, whose end has not been told."""
        return bool(self._calls)

    @property
    def void(self) -> int:
        """How many overtaken calls have not ended."""
        tasks = (self._calls[ref].task for ref in self._overtaken)
        return sum(task is not None and not task.done() for task in tasks)

    def overtake(self, refs: Iterable[StepRef]) -> None:
        """Leave these calls alone, whatever comes of them."""
        self._overtaken.update(ref for ref in refs if ref in self._calls)

    def tidy(self) -> None:
        """Cancel the calls that nobody waits for, but for those that were overtaken and go on."""
        for ref in [ref for ref in self._calls if not self._machine.asks(ref)]:
            task = self._calls[ref].task
            if ref not in self._overtaken or task is None or task.done():
                self._cancel(ref)

    def close(self) -> None:
        """Cancel all calls."""
        for ref in [*self._calls]:
            self._cancel(ref)

    async def next(self, asked: Sequence[Forward], clock: Callable[[], float]) -> GenerationEvent:
        """Start `asked` beside what is open, and return what ends first, or that time passed."""
        for each in asked:
            self._start(each)
        hops = self._machine.route.hops

        def heard(hop: Hop) -> None:
            for ref in [ref for ref, call in self._calls.items() if hop in call.hops]:
                self._machine.handle(Alive(ref), clock())

        try:
            with self._places.kept(Mode.DECODE, self._hops, hops, heard):
                return await self._event(clock)
        except TimeoutError:
            return Tick()

    async def _event(self, clock: Callable[[], float]) -> GenerationEvent:
        """Wait for an answer that counts. Raises TimeoutError at the machine's deadline."""
        while True:
            async with asyncio.timeout(self._left_s(clock)):
                ended = await self._ended.get()
            if isinstance(ended, Exception):
                raise ended
            self._calls.pop(ended.ref, None)
            self._overtaken.discard(ended.ref)
            if self._machine.asks(ended.ref):
                return ended

    def _left_s(self, clock: Callable[[], float]) -> float | None:
        deadline = self._machine.deadline()
        return None if deadline is None else deadline - clock()

    def _start(self, asked: Forward) -> None:
        task = self._background.start(lambda: self._call(asked))
        self._calls[asked.ref] = _Call(asked.hops, task)
        if task is None:
            self._ended.put_nowait(Lost(asked.ref, "this head is closing"))

    async def _call(self, asked: Forward) -> None:
        try:
            ended: Replied | Lost | Exception = await self._ask(asked)
        except Exception as error:  # noqa: BLE001  # boundary: it is raised in the generation's task
            ended = error
        self._ended.put_nowait(ended)

    def _cancel(self, ref: StepRef) -> None:
        call = self._calls.pop(ref)
        self._overtaken.discard(ref)
        if call.task is not None:
            call.task.cancel()

    def _hops(self) -> list[Hop]:
        asked = (call for ref, call in self._calls.items() if ref not in self._overtaken)
        return [hop for call in asked for hop in call.hops]
