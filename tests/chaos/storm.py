"""A schedule of faults under a crowd of streaming chats, and what came of both.

calm: each chat once, undisturbed ──▶ storm: events, while workers chat on and on
    ──▶ settle: weather clears, everybody runs, every chat that was begun ends
    ──▶ after: nodes hold nothing, each chat once more by every head

Two events at most are under way at once, and at most one process is away because of them: what
is tried is whether the mesh gets over a fault, not whether it runs without nodes.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from tests.chaos.chats import Answer, Ask, Leaving, Verdict, judge, stream
from tests.chaos.fault_proxy import CLEAR, Link, Weather
from tests.chaos.lab import ASK, CONTINUE, KILL, READY_DEADLINE_S, STOP, Lab
from tests.chaos.schedule import OF_LINKS, Event, Fault
from tests.cluster.api import Told

WORKERS = 8
EVENTS_AT_ONCE = 2
BETWEEN_CHATS_S = 0.05
SLOW_TURN_S = 0.1
FILES_SPARE = 16
"""Files that a process may have open more than before: connections that were not closed yet."""


@dataclass
class Record:
    """What happened in one storm."""

    events: list[Event] = field(default_factory=list)
    struck: Counter[str] = field(default_factory=Counter)
    """Faults of links that met open connections, by fault."""
    verdicts: Counter[Verdict] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    """What must not happen, each with where and why."""
    failures: Counter[str] = field(default_factory=Counter)
    """Clear errors that clients were told."""
    tokens: int = 0
    gaps_s: list[float] = field(default_factory=list)
    worst_gap: tuple[float, str] = (0.0, "")
    """And when it ended, in whose stream."""
    next_head_s: list[float] = field(default_factory=list)
    """From a head's death until another head's next chat had its first token."""
    refills: Counter[str] = field(default_factory=Counter)
    partial_refills: int = 0
    moved_bytes: list[int] = field(default_factory=list)
    """Of each session that a node took over from another."""
    move_s: list[float] = field(default_factory=list)
    began_at: float = 0.0
    ended_at: float = 0.0


class Storm:
    """One run of a schedule against a lab; `run` may be called once."""

    def __init__(
        self,
        lab: Lab,
        asks: Sequence[Ask],
        *,
        seed: int,
        squeeze_bytes: int,
        chats_by: Sequence[str] = (),
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        """`chats_by`: the heads that the crowd asks; all of them if empty."""
        self.lab, self.asks, self.seed = lab, tuple(asks), seed
        self._chats_by = tuple(chats_by) or tuple(lab.mesh.heads)
        self._tell = tell
        self.record = Record()
        self._squeeze_bytes = squeeze_bytes
        self._calm: dict[Ask, Told] = {}
        self._down: set[str] = set()
        self._leaving: set[str] = set()
        self._over = asyncio.Event()
        self._read = 0
        self._awaited: tuple[int, asyncio.Event] | None = None
        self._process_away = asyncio.Lock()

    async def run(self, events: Sequence[Event], *, workers: int = WORKERS) -> Record:
        """Run it all; what must not happen is in `faults` of the record, never raised."""
        self.record.began_at = time.monotonic()
        await self._learn_calm()
        files = {name: self.lab.files_open(name) for name in self._names()}
        async with asyncio.TaskGroup() as group:
            for worker in range(workers):
                group.create_task(self._chat_on(random.Random(f"{self.seed} {worker}")))
            await self._let_loose(events)
            self._over.set()
        self._leaving.clear()
        await self._settle(files)
        self.record.ended_at = time.monotonic()
        return self.record

    # Chats

    async def _learn_calm(self) -> None:
        """Ask each chat alone, by every head in turn; the answers are the oracle."""
        heads = self.lab.mesh.heads
        for number, ask in enumerate(self.asks):
            answer = await self._stream(ask, heads[number % len(heads)])
            told = answer.told
            ended = (told.errors, told.finishes, told.ended)
            assert ended == ([], ["length"], 1), f"a calm chat failed: {answer}"
            self._calm[ask] = told

    async def _chat_on(self, drawn: random.Random) -> None:
        while not self._over.is_set():
            heads = [head for head in self._chats_by if head not in self._down]
            ask = drawn.choice(self.asks)
            if heads:
                await self._judged(ask, drawn.choice(heads))
            await asyncio.sleep(BETWEEN_CHATS_S)

    async def _judged(self, ask: Ask, head: str) -> Answer:
        life = self.lab.life(head)
        answer = await self._stream(ask, head)
        died = head in self._down or self.lab.life(head) != life
        verdict, why = judge(answer, self._calm[ask], head_died=died)
        self.record.verdicts[verdict] += 1
        self._note_gaps(answer)
        if verdict in (Verdict.WRONG, Verdict.HANG):
            self.record.faults.append(f"{verdict.value}: {why}; {ask.prompt[:20]!r} by {head}")
        if verdict is Verdict.FAILED:
            self.record.failures[why] += 1
        return answer

    def _note_gaps(self, answer: Answer) -> None:
        self.record.gaps_s += answer.gaps_s
        for gap_s, at in zip(answer.gaps_s, answer.told.arrivals[1:], strict=True):
            if gap_s > self.record.worst_gap[0]:
                where = f"until {at - self.record.began_at:.1f} s by {answer.head}"
                self.record.worst_gap = (gap_s, where)

    async def _stream(self, ask: Ask, head: str) -> Answer:
        return await stream(
            self.lab.client,
            ask,
            head=head,
            url=self.lab.front(head),
            deadline_s=self.lab.mesh.request_deadline_s,
            seen=lambda count: self._seen(head),
        )

    def _seen(self, head: str) -> None:
        self._read += 1
        self.record.tokens += 1
        if self._awaited is not None and self._read >= self._awaited[0]:
            self._awaited[1].set()
        if head in self._leaving:
            self._leaving.discard(head)
            raise Leaving

    async def _tokens(self, more: int) -> None:
        """Wait until so many more tokens were read, or for as long as a request may take."""
        reached = asyncio.Event()
        self._awaited = (self._read + more, reached)
        try:
            async with asyncio.timeout(self.lab.mesh.request_deadline_s):
                await reached.wait()
        except TimeoutError:
            pass  # whoever hangs is found by its own deadline
        finally:
            self._awaited = None

    # Events

    async def _let_loose(self, events: Sequence[Event]) -> None:
        room = asyncio.Semaphore(EVENTS_AT_ONCE)
        async with asyncio.TaskGroup() as group:
            for event in events:
                await self._tokens(event.after_tokens)
                await room.acquire()
                self.record.events.append(event)
                self._told_of(event)
                doing = group.create_task(self._do(event))
                doing.add_done_callback(lambda _: room.release())

    def _told_of(self, event: Event) -> None:
        self._tell(f"{time.monotonic() - self.record.began_at:.1f} s: event {event}")

    async def _do(self, event: Event) -> None:
        if event.fault is Fault.HANG_UP:
            self._leaving.add(event.target)
        elif event.fault in OF_LINKS or event.fault is Fault.PARTITION:
            await self._break(event)
        else:
            async with self._process_away:
                await self._strike(event)

    async def _break(self, event: Event) -> None:
        network = self.lab.network
        links = (
            [network.link(event.source, event.target)]
            if event.source is not None
            else network.links_of(event.target)
        )
        if any(link.connections for link in links):
            self.record.struck[event.fault.name] += 1
        if event.fault is Fault.RESET:
            for link in links:
                link.reset()
            return
        assert event.weather is not None, f"{event}: what weather?"
        await _weather_for(links, event.weather, event.lasts_s)

    async def _strike(self, event: Event) -> None:
        """Do something to a process, and make it serve again."""
        name = event.target
        match event.fault:
            case Fault.STOP_NODE | Fault.STOP_HEAD:
                self.lab.send(name, STOP)
                await asyncio.sleep(event.lasts_s)
                self.lab.send(name, CONTINUE)
            case Fault.SLOW_NODE:
                await self._slow(name, event.lasts_s)
            case Fault.KILL_NODE:
                await self.lab.end(name, KILL)
                await asyncio.sleep(event.lasts_s)
                await self.lab.start(name)
            case Fault.RESTART_NODE:
                await self.lab.end(name, ASK)
                await self.lab.start(name)
            case Fault.DRAIN_NODE:
                if (refused := await self._drain(name)) is not None:
                    self.record.failures[refused] += 1
                await self.lab.end(name, ASK)
                await self.lab.start(name)
            case Fault.SQUEEZE_NODE:
                await self.lab.end(name, ASK)
                await self.lab.start(name, MESHNET_KV_MAX_BYTES=str(self._squeeze_bytes))
            case Fault.KILL_HEAD:
                await self._end_head(name, KILL)
            case Fault.RESTART_HEAD:
                await self._end_head(name, ASK)
            case _:
                raise AssertionError(f"{event}: nobody knows how")

    async def _drain(self, name: str) -> str | None:
        """Drain a node by a head that is there; None if it has left."""
        heads = [head for head in self.lab.mesh.heads if head not in self._down]
        return await self.lab.drain(name, heads[0])

    async def _slow(self, name: str, lasts_s: float) -> None:
        """Let the process run for half of the time, in turns."""
        for _ in range(max(1, round(lasts_s / (2 * SLOW_TURN_S)))):
            self.lab.send(name, STOP)
            await asyncio.sleep(SLOW_TURN_S)
            self.lab.send(name, CONTINUE)
            await asyncio.sleep(SLOW_TURN_S)

    async def _end_head(self, name: str, number: int) -> None:
        self._down.add(name)
        await self.lab.end(name, number)
        others = [head for head in self.lab.mesh.heads if head not in self._down]
        died_at = time.monotonic()
        if others:
            await self._next_head(others[0], died_at)
        await self.lab.start(name)
        await self.lab.until_ready(name)
        self._down.discard(name)
        if not others:
            await self._next_head(name, time.monotonic())

    async def _next_head(self, head: str, since: float) -> None:
        """Measure how soon the nodes serve another head after one has died."""
        answer = await self._judged(self.asks[0], head)
        if answer.told.arrivals:
            self.record.next_head_s.append(answer.told.arrivals[0] - since)

    # Afterwards

    async def _settle(self, files: dict[str, int]) -> None:
        """Check what is left once everything is well again."""
        for head in self.lab.mesh.heads:
            await self._check(self.lab.until_ready(head))
        for node in self.lab.mesh.nodes:
            await self._check(self._until_empty(node))
        for head in self.lab.mesh.heads:
            for ask in self.asks:
                answer = await self._stream(ask, head)
                verdict, why = judge(answer, self._calm[ask], head_died=False)
                if verdict is not Verdict.RIGHT:
                    self.record.faults.append(f"after the storm: {verdict.value}: {why}")
        for name, before in files.items():
            if (now := self.lab.files_open(name)) > before + FILES_SPARE:
                self.record.faults.append(f"{name}: {now} open files, {before} before")
        self.record.faults += [f"a bug was caught: {line}" for line in self.lab.told("fault")]
        for event in self.lab.told("refilled"):
            self.record.refills[event["reason"]] += 1
            self.record.partial_refills += bool(event.get("partial"))
        for event in self.lab.told("session_taken"):
            self.record.moved_bytes.append(event["bytes"])
            self.record.move_s.append(event["duration_s"])

    async def _until_empty(self, node: str) -> None:
        async def is_empty() -> bool:
            told = await self.lab.node(node)
            return bool(told["sessions"] == 0 and told["kv_bytes"] == 0)

        deadline_s = self.lab.mesh.session_ttl_s + READY_DEADLINE_S
        await self.lab.until(is_empty, f"{node} holds nothing", deadline_s)

    async def _check(self, holds: Awaitable[None]) -> None:
        try:
            await holds
        except AssertionError as error:
            self.record.faults.append(str(error))

    def _names(self) -> list[str]:
        return [*self.lab.mesh.nodes, *self.lab.mesh.heads]


async def _weather_for(links: Sequence[Link], weather: Weather, lasts_s: float) -> None:
    for link in links:
        link.turn(weather)
    try:
        await asyncio.sleep(lasts_s)
    finally:
        for link in links:
            link.turn(CLEAR)
