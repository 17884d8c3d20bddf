"""One node with one toy shard on a real compute thread, and everything that a test turns."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from meshnet.core.protocol.messages import (
    Code,
    ForwardRequest,
    Mode,
    Refusal,
    Reply,
)
from meshnet.core.vocabulary import (
    HIDDEN,
    Activation,
    Capabilities,
    Drawn,
    DType,
    LayerRange,
    MeshnetError,
    MissReason,
    NodeId,
    SessionId,
    ShardDescription,
    ShardStep,
    TensorSpec,
)
from meshnet.node.compute import ComputeThread
from meshnet.node.service import NodeService
from meshnet.node.shards import NodeLimits
from meshnet.simulation.toy_shard import (
    ToyShard,
    ToyState,
    embed,
    pack_rows,
)
from meshnet.telemetry.events import Event, SessionEvicted

LAYERS = 4
SESSION = SessionId("s")
PROMPT = (3, 1, 4)


Answer = Activation | Drawn | MeshnetError | None


class Clock:
    """Seconds that pass only when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class BenchThread(ComputeThread):
    """A compute thread that reads the clock of its bench."""

    def __init__(self, *, jobs_max: int) -> None:
        self.clock = Clock()
        super().__init__(name="test-compute", jobs_max=jobs_max, clock=self.clock)


class ShardWithHook(ToyShard):
    """A toy shard that calls `hook` on the compute thread before (and `after`) each step.

    `answers` may change what a batch gives.
    """

    def __init__(self, layers: LayerRange) -> None:
        super().__init__(layers, layers_total=LAYERS)
        self.hook: Callable[[ShardStep, ToyState | None], None] = lambda step, state: None
        self.after: Callable[[], None] = lambda: None
        self.answers: Callable[[list[Answer]], list[Answer]] = lambda results: results
        self.capabilities = super().description.capabilities
        self.steps: list[ShardStep] = []
        self.batches: list[list[ShardStep]] = []

    @property
    def description(self) -> ShardDescription:
        return replace(super().description, capabilities=self.capabilities)

    def run(self, step: ShardStep, state: ToyState | None) -> Activation | Drawn | None:
        self.steps.append(step)
        self.hook(step, state)
        result = super().run(step, state)
        self.after()
        return result

    def run_batch(self, work: Sequence[tuple[ShardStep, ToyState]]) -> list[Answer]:
        self.batches.append([step for step, _ in work])
        for step, state in work:
            self.steps.append(step)
            self.hook(step, state)
        return self.answers(super().run_batch(work))


class Bench:
    """One node with one shard, and everything that a test turns."""

    def __init__(self, thread: BenchThread, layers: LayerRange) -> None:
        self.clock = thread.clock
        self.events: list[Event] = []
        self.shard = ShardWithHook(layers)
        self.thread = thread
        self.service = self.serve(NodeLimits(kv_bytes_max=2**20))

    def serve(self, limits: NodeLimits, *more: ToyShard) -> NodeService[ToyState]:
        return NodeService(
            node=NodeId("n"),
            pid=1,
            shards=[self.shard, *more],
            compute=self.thread,
            limits=limits,
            clock=self.clock,
            record=self.events.append,
        )

    async def ask(self, request: ForwardRequest) -> Reply:
        reply = await self.service.forward(request)
        self.service.check_integrity()
        return reply

    async def prefilled(self, **fields: object) -> Reply:
        return await self.ask(replace(prefill(), **fields))  # type: ignore[arg-type]

    def evicted(self) -> list[str]:
        return [event.reason for event in self.events if isinstance(event, SessionEvicted)]


def prefill(tokens: tuple[int, ...] = PROMPT, *, attempt: int | None = 1) -> ForwardRequest:
    return ForwardRequest(Mode.PREFILL, SESSION, attempt=attempt, wire=1, tokens=tokens)


def decode(past: int, *tokens: int, attempt: int | None = 1) -> ForwardRequest:
    return ForwardRequest(
        Mode.DECODE, SESSION, past_length=past, attempt=attempt, wire=1, tokens=tokens
    )


def rows(count: int) -> Activation:
    return pack_rows([embed(row) for row in range(count)])


def refused(reply: object, code: Code) -> Refusal:
    assert isinstance(reply, Refusal), reply
    assert reply.code is code, reply
    return reply


def missed(reply: object) -> MissReason | None:
    return refused(reply, Code.CACHE_MISS).reason


def hidden(dtype: DType, *shape: int) -> Activation:
    spec = TensorSpec(HIDDEN, dtype, shape)
    return Activation((spec,), bytes(spec.nbytes))


def turn_caching_off(shard: ShardWithHook) -> Callable[[], None]:
    def turn() -> None:
        shard.capabilities = Capabilities(kv_cache=False, multi_token=False)

    return turn


def failing(error: Callable[[], Exception]) -> Callable[[ShardStep, ToyState | None], None]:
    def fail(step: ShardStep, state: ToyState | None) -> None:
        raise error()

    return fail


class Gate:
    """Holds the compute thread inside a step until the test lets it go on."""

    def __init__(self, bench: Bench) -> None:
        self.entered = asyncio.Event()
        self._open = threading.Event()
        self._loop = asyncio.get_running_loop()
        bench.shard.hook = self._hold

    def _hold(self, step: ShardStep, state: ToyState | None) -> None:
        self._loop.call_soon_threadsafe(self.entered.set)
        assert self._open.wait(60)

    def open(self) -> None:
        self._open.set()


async def waiting(thread: ComputeThread, jobs: int) -> None:
    while thread.waiting < jobs:  # noqa: ASYNC110  # another thread counts; it sets no event
        await asyncio.sleep(0)


def other_session(name: str) -> ForwardRequest:
    return replace(prefill(), session=SessionId(name))
