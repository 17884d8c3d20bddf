"""A node's machine: its process is booted, killed, stopped and continued; its device computes.

    running --kill--> down --boot--> running (a new service, an empty store)
    running --stop--> stopped --continue--> running (the same service, the same store)

What was asked of a stopped process waits; what it answers waits too. A killed
process answers nothing: its callers see a reset or silence.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeVar

from meshnet.core.scheduling.scheduler import StepScheduler
from meshnet.core.scheduling.steps import StepId
from meshnet.core.vocabulary import HopLost, NodeId
from meshnet.node.steps import StepJob, run_together
from meshnet.wire.handing import Handing

T = TypeVar("T")
S = TypeVar("S")


class _Function:
    """One function and whoever waits for it. It takes effect when it starts, and ends later."""

    def __init__(self, fn: Callable[[], Any], reply: asyncio.Future[Any]) -> None:
        self._fn, self.reply = fn, reply
        self._value: Any = None
        self._error: Exception | None = None

    def start(self) -> None:
        try:
            self._value = self._fn()
        except Exception as error:  # noqa: BLE001 - the device's boundary: the caller gets it
            self._error = error

    def end(self) -> None:
        if self._error is not None:
            self.reply.set_exception(self._error)
        else:
            self.reply.set_result(self._value)


class SimCompute:
    """One device: runs functions and batches of steps, each after virtual seconds.

    As on a thread, what has started runs to its end even if its caller was cancelled,
    and the caller waits for that end. Between an effect and its end others may act. A batch costs
    `1 + 0.06 (M - 1)` times as much as one of its M steps.
    """

    def __init__(self, rng: random.Random, *, step_max_s: float) -> None:
        self.step_s: Callable[[], float] = lambda: rng.uniform(0.0005, step_max_s)
        """Draws what one step takes."""
        self._loop = asyncio.get_running_loop()
        self._functions: deque[_Function] = deque()
        self._scheduler = StepScheduler()
        self._steps: dict[StepId, tuple[StepJob[Any], asyncio.Future[None]]] = {}
        self._working = self._stopped = self._killed = False
        self.batches: Counter[int] = Counter()
        """How many batches of each size ran."""

    async def run(self, fn: Callable[[], T]) -> T:
        function = _Function(fn, self._loop.create_future())
        self._functions.append(function)

        def withdraw() -> bool:
            waits = function in self._functions
            if waits:
                self._functions.remove(function)
            return waits

        await self._ended(function.reply, withdraw)
        result: T = function.reply.result()
        return result

    async def step(self, job: StepJob[Any]) -> None:
        step_id = self._scheduler.add(job.waiting)
        reply: asyncio.Future[None] = self._loop.create_future()
        self._steps[step_id] = (job, reply)

        def withdraw() -> bool:
            self._steps.pop(step_id, None)
            return self._scheduler.remove(step_id)

        await self._ended(reply, withdraw)

    async def _ended(self, reply: asyncio.Future[Any], withdraw: Callable[[], bool]) -> None:
        self._start_next()
        try:
            await asyncio.wait((reply,))
        except asyncio.CancelledError:
            if not withdraw() and not self._killed:
                await asyncio.wait((reply,))
            raise

    def stop(self) -> None:
        self._stopped = True

    def resume(self) -> None:
        self._stopped = False
        self._start_next()

    def kill(self) -> None:
        self._killed = True
        self._functions.clear()
        self._scheduler.clear()

    def _start_next(self) -> None:
        if self._working or self._stopped or self._killed:
            return
        if self._functions:
            function = self._functions.popleft()
            function.start()
            self._work(function.end, steps=1)
            return
        batch = self._scheduler.next_batch(self._loop.time())
        for step_id in batch.spent:
            job, reply = self._steps.pop(step_id)
            job.expire()
            reply.set_result(None)
        if not batch.run:
            return
        jobs, replies = zip(*(self._steps.pop(step_id) for step_id in batch.run), strict=True)
        run_together(list(jobs))
        self.batches[len(jobs)] += 1

        def end() -> None:
            for reply in replies:
                reply.set_result(None)

        self._work(end, steps=len(jobs))

    def _work(self, end: Callable[[], None], *, steps: int) -> None:
        """Be busy with what has begun; `end` tells those who wait for it."""
        self._working = True
        seconds = self.step_s() * (1.0 + 0.06 * (steps - 1))
        self._loop.call_later(seconds, self._finish, end)

    def _finish(self, end: Callable[[], None]) -> None:
        if self._killed:
            return
        if self._stopped:
            self._loop.call_later(0.01, self._finish, end)
            return
        self._working = False
        end()
        self._start_next()


class Machine(Generic[S]):
    """Runs a service `S` that `boot` makes anew at each start of the process."""

    def __init__(
        self,
        node: NodeId,
        boot: Callable[[SimCompute], S],
        *,
        tasks: asyncio.TaskGroup,
        rng: random.Random,
        step_max_s: float,
        handing: Callable[[], Handing],
    ) -> None:
        self.node = node
        self._handing = handing
        self.boots = 0
        self._boot, self._tasks, self._rng, self._step_max_s = boot, tasks, rng, step_max_s
        self._loop = asyncio.get_running_loop()
        self._handlers: dict[asyncio.Task[None], None] = {}
        self._going = asyncio.Event()
        self._stops = 0
        self._beside: asyncio.Task[None] | None = None
        self.up = False
        self.boot()

    def boot(self) -> None:
        if self.up:
            return
        self.compute = SimCompute(self._rng, step_max_s=self._step_max_s)
        self.service = self._boot(self.compute)
        self.handing = self._handing()
        self.boots += 1
        self._stops = 0
        self._going.set()
        self.up = True

    def kill(self, down_s: float) -> None:
        """End the process at once, as SIGKILL does; it starts again after `down_s`, if ever."""
        if not self.up:
            return
        self.up = False
        self.compute.kill()
        for handler in tuple(self._handlers):
            handler.cancel()
        if math.isfinite(down_s):
            self._loop.call_later(down_s, self.boot)

    def stop(self, seconds: float) -> None:
        """Stop the process, as SIGSTOP does, and continue it after `seconds`."""
        if not self.up:
            return
        self._stops += 1
        self._going.clear()
        self.compute.stop()
        self._loop.call_later(seconds, self._continue, self.boots)

    def _continue(self, boots: int) -> None:
        if boots != self.boots or not self.up:
            return
        self._stops -= 1
        if self._stops == 0:
            self._going.set()
            self.compute.resume()

    async def going(self) -> None:
        """Return once the process is not stopped."""
        await self._going.wait()

    def beside(self, work: Coroutine[None, None, None]) -> None:
        """Do something until it ends, `end_beside`, or the process is killed."""
        task = self._tasks.create_task(work)
        self._handlers[task] = None
        task.add_done_callback(self._handlers.pop)
        self._beside = task

    def end_beside(self) -> None:
        if self._beside is not None:
            self._beside.cancel()

    def accept(
        self, call: Callable[[S], Awaitable[T]], answer: Callable[[T | HopLost], None]
    ) -> None:
        """Serve one request that arrived; `answer` gets the reply or the loss the caller sees."""
        if not self.up:
            if self._rng.random() < 0.7:
                answer(HopLost(f"{self.node}: connection refused"))
            return
        serving = self._serve(call, answer)
        try:
            handler = self._tasks.create_task(serving)
        except RuntimeError:  # the world is ending on an error; do not add a warning to it
            serving.close()
            return
        self._handlers[handler] = None
        handler.add_done_callback(self._handlers.pop)

    async def _serve(
        self, call: Callable[[S], Awaitable[T]], answer: Callable[[T | HopLost], None]
    ) -> None:
        try:
            await self._going.wait()
            reply: T | HopLost = await self._called(call)
            await self._going.wait()
        except asyncio.CancelledError:
            if not self.up and self._rng.random() < 0.7:
                answer(HopLost(f"{self.node}: connection reset"))
            raise
        answer(reply)

    async def _called(self, call: Callable[[S], Awaitable[T]]) -> T | HopLost:
        try:
            return await call(self.service)
        except HopLost as lost:
            return lost
