"""Where model work runs: one thread per device, fed by a scheduler.

    step ──▶ waiting ──in a batch that the thread takes──▶ running ──▶ ended
                └──caller cancelled, deadline passed──▶ never run

The thread takes the next batch the moment it is free, so that whoever came meanwhile is in it.
Functions (loading a shard) run between batches, before those that wait.

Invariants
    * when `run` or `step` has returned or raised, the work has ended or will never start;
    * at most `jobs_max` steps and as many functions wait; nothing here keeps work or its result
      once its call is over, so that the memory of a session is free when the store forgets it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

from meshnet.core.scheduling.scheduler import RETRY_AFTER_S, StepScheduler
from meshnet.core.scheduling.steps import Batch, BatchLimits, StepId
from meshnet.core.vocabulary import NoRoom
from meshnet.node.steps import StepJob, run_alone, run_together

T = TypeVar("T")
W = TypeVar("W")
REST_S = 1.0


class Compute(Protocol):
    """Runs blocking work for one device: steps in batches, each function by itself."""

    async def run(self, fn: Callable[[], T]) -> T:
        """Return what `fn` returns.

        A caller cancelled before `fn` started is rid of it at once, and it never runs; one
        cancelled later waits until `fn` has ended.

        Raises:
            NoRoom: too much waits already; `fn` will not run.
        """
        ...

    async def step(self, job: StepJob[Any]) -> None:
        """Run a step in its turn, perhaps with others; its outcome says how it ended.

        Cancelling is as with `run`; the outcome of a step that never ran is None.

        Raises:
            NoRoom: too many steps wait already; this one will not run.
        """
        ...


class _Call(Generic[W]):
    """Work that somebody waits for, and how it ended. `ended` is set on the event loop."""

    __slots__ = ("ended", "error", "loop", "result", "wake", "work")

    def __init__(self, work: W, loop: asyncio.AbstractEventLoop) -> None:
        self.work = work
        self.loop = loop
        self.wake: asyncio.Future[None] = loop.create_future()
        self.ended = False
        self.result: Any = None
        self.error: BaseException | None = None

    def let_go(self) -> None:
        """Keep nothing: the thread holds its last call, and an error's frames hold theirs."""
        del self.work, self.wake, self.result, self.error


_FunctionCall = _Call[Callable[[], Any]]
_StepCall = _Call[StepJob[Any]]


class ComputeThread:
    """The one compute thread of a device.

    `on_start` is the first thing the thread does (torch's thread count is set per thread);
    what it raises, the constructor raises. `clock` is the one that steps' deadlines are read from.
    `on_rest` is called on the thread, once, when nothing has come for `rest_s` after work.
    """

    def __init__(
        self,
        *,
        name: str,
        jobs_max: int = 64,
        on_start: Callable[[], object] | None = None,
        on_rest: Callable[[], object] = lambda: None,
        rest_s: float = REST_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if jobs_max < 1:
            raise ValueError(f"jobs_max: expected at least 1, got {jobs_max}")
        self._jobs_max = jobs_max
        self._on_rest, self._rest_s = on_rest, rest_s
        self._clock = clock
        self._lock = threading.Lock()
        self._closed = False
        self._functions: deque[_FunctionCall] = deque()
        self._scheduler = StepScheduler(BatchLimits(waiting_max=jobs_max))
        self._steps: dict[StepId, _StepCall] = {}
        self._arrivals: SimpleQueue[bool] = SimpleQueue()
        """One entry for whatever arrived; False ends the thread."""
        self._failed_start: BaseException | None = None
        started = threading.Event()
        self._thread = threading.Thread(
            target=self._main, args=(on_start, started), name=name, daemon=True
        )
        self._thread.start()
        started.wait()
        if self._failed_start is not None:
            raise self._failed_start

    @property
    def waiting(self) -> int:
        """Functions and steps that have not started."""
        return len(self._functions) + len(self._steps)

    async def run(self, fn: Callable[[], T]) -> T:
        call: _FunctionCall = _Call(fn, asyncio.get_running_loop())
        with self._lock:
            self._check_room(len(self._functions))
            self._functions.append(call)
        self._arrivals.put(True)

        def withdraw() -> bool:
            if call not in self._functions:
                return False
            self._functions.remove(call)
            return True

        result: T = await self._end_of(call, withdraw)
        return result

    async def step(self, job: StepJob[Any]) -> None:
        call: _StepCall = _Call(job, asyncio.get_running_loop())
        with self._lock:
            self._check_room(len(self._steps))
            step_id = self._scheduler.add(job.waiting)
            self._steps[step_id] = call
        self._arrivals.put(True)

        def withdraw() -> bool:
            self._steps.pop(step_id, None)
            return self._scheduler.remove(step_id)

        await self._end_of(call, withdraw)

    def close(self, deadline_s: float) -> bool:
        """Refuse what waits and stop after the running work. False: it still runs then."""
        with self._lock:
            self._closed = True
        self._arrivals.put(False)
        self._thread.join(deadline_s)
        return not self._thread.is_alive()

    def _check_room(self, waiting: int) -> None:
        if self._closed:
            raise _stopping()
        if waiting >= self._jobs_max:
            raise NoRoom(f"{waiting} steps wait already", RETRY_AFTER_S)

    async def _end_of(self, call: _Call[Any], withdraw: Callable[[], bool]) -> Any:
        """Wait for the end of work, and return or raise it."""
        try:
            try:
                await call.wake
            except asyncio.CancelledError:
                await self._given_up(call, withdraw)
                raise
            if call.error is not None:
                raise call.error
            return call.result
        finally:
            call.let_go()

    async def _given_up(self, call: _Call[Any], withdraw: Callable[[], bool]) -> None:
        """Withdraw work whose caller was cancelled, or wait for its end if it has started."""
        with self._lock:
            withdrawn = withdraw()
        while not withdrawn and not call.ended:  # however often it is cancelled meanwhile
            call.wake = call.loop.create_future()
            with contextlib.suppress(asyncio.CancelledError):
                await call.wake

    def _main(self, on_start: Callable[[], object] | None, started: threading.Event) -> None:
        try:
            if on_start is not None:
                on_start()
        except BaseException as error:  # noqa: BLE001  # boundary: the constructor raises it
            self._failed_start = error
            return
        finally:
            started.set()
        arrived = self._arrivals.get()
        while arrived:
            while self._functions or self._steps:
                if not self._run_next():
                    break
            arrived = self._arrived()
        self._refuse_all()

    def _arrived(self) -> bool:
        """Wait for more; False is the end."""
        try:
            return self._arrivals.get(timeout=self._rest_s)
        except Empty:
            self._on_rest()
            return self._arrivals.get()

    def _run_next(self) -> bool:
        """Run a function or a batch. False: nothing waits, or the thread is to stop."""
        with self._lock:
            if self._closed:
                return False
            function = self._functions.popleft() if self._functions else None
            batch = Batch() if function else self._scheduler.next_batch(self._clock())
            steps = list(map(self._steps.pop, batch.run))
            spent = list(map(self._steps.pop, batch.spent))
        if function is not None:
            _run_function(function)
        if spent:
            for call in spent:
                call.work.expire()
            _answer(spent)
        if steps:
            _run_steps(steps)
        return function is not None or bool(steps or spent)

    def _refuse_all(self) -> None:
        with self._lock:
            self._scheduler.clear()
            left: list[_Call[Any]] = [*self._functions, *self._steps.values()]
            self._functions.clear()
            self._steps.clear()
        for call in left:
            call.error = _stopping()
        _answer(left)


def _run_function(call: _FunctionCall) -> None:
    try:
        call.result = call.work()
    except BaseException as error:  # noqa: BLE001  # boundary: the caller gets it, the thread lives on
        call.error = error
    _answer([call])


def _run_steps(calls: Sequence[_StepCall]) -> None:
    try:
        if len(calls) == 1:
            run_alone(calls[0].work)
        else:
            run_together([call.work for call in calls])
    except BaseException as error:  # noqa: BLE001  # boundary: the callers get it, the thread lives on
        for call in calls:
            call.error = error
    _answer(calls)


def _answer(calls: Sequence[_Call[Any]]) -> None:
    """Wake all callers, with one visit to each event loop."""
    if len(calls) == 1:
        _visit(calls[0].loop, calls)
        return
    by_loop: dict[asyncio.AbstractEventLoop, list[_Call[Any]]] = {}
    for call in calls:
        by_loop.setdefault(call.loop, []).append(call)
    for loop, those in by_loop.items():
        _visit(loop, those)


def _visit(loop: asyncio.AbstractEventLoop, calls: Sequence[_Call[Any]]) -> None:
    try:  # noqa: SIM105  # once a token: `suppress` is three calls more
        loop.call_soon_threadsafe(_settle, calls)
    except RuntimeError:
        pass  # the loop is closed: nobody waits any more


def _settle(calls: Sequence[_Call[Any]]) -> None:
    for call in calls:
        call.ended = True
        if not call.wake.done():  # a caller that was cancelled waits anew
            call.wake.set_result(None)


def _stopping() -> NoRoom:
    return NoRoom("this node is stopping", RETRY_AFTER_S)
