"""Where model work runs: one thread per device, in the order it was asked for.

    run ──▶ waiting ──claimed by the thread──▶ running ──▶ ended
               └──caller cancelled──▶ skipped, never run

Invariants
    * when `run` has returned or raised, its function has ended or will never start;
    * at most `jobs_max` wait; nothing here keeps a function or its result once `run` is over, so
      that the memory of a session is free when the store forgets it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from enum import Enum
from queue import SimpleQueue
from typing import Generic, Protocol, TypeVar

from meshnet.core.vocabulary import NoRoom

T = TypeVar("T")

RETRY_AFTER_S = 0.5


class Compute(Protocol):
    """Runs blocking work for one device, first come, first served."""

    async def run(self, fn: Callable[[], T]) -> T:
        """Return what `fn` returns.

        A caller cancelled before `fn` started is rid of it at once, and it never runs; one
        cancelled later waits until `fn` has ended.

        Raises:
            NoRoom: too much waits already; `fn` will not run.
        """
        ...


class _Phase(Enum):
    WAITING = "waiting"
    CLAIMED = "claimed"
    SKIPPED = "skipped"


class _Job(Generic[T]):
    """One function, its reply, and who got hold of it first: the thread or a cancelled caller."""

    def __init__(self, fn: Callable[[], T], loop: asyncio.AbstractEventLoop) -> None:
        self._fn = fn
        self._loop = loop
        self._lock = threading.Lock()
        self._phase = _Phase.WAITING
        self.reply: asyncio.Future[T] = loop.create_future()

    def claim(self) -> bool:
        return self._turn(_Phase.CLAIMED)

    def skip(self) -> bool:
        return self._turn(_Phase.SKIPPED)

    def _turn(self, phase: _Phase) -> bool:
        with self._lock:
            if self._phase is not _Phase.WAITING:
                return False
            self._phase = phase
            return True

    def work(self) -> None:
        try:
            result = self._fn()
        except BaseException as error:  # noqa: BLE001  # boundary: the caller gets it, the thread lives on
            self._answer(self.reply.set_exception, error)
        else:
            self._answer(self.reply.set_result, result)

    def refuse(self, error: Exception) -> None:
        self._answer(self.reply.set_exception, error)

    def let_go(self) -> None:
        """Keep nothing: the thread holds its last job, and an error's frames hold theirs."""
        del self._fn, self.reply

    def _answer(self, setter: Callable[..., None], value: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(setter, value)


class ComputeThread:
    """The one compute thread of a device.

    `on_start` is the first thing the thread does (torch's thread count is set per thread);
    what it raises, the constructor raises.
    """

    def __init__(
        self, *, name: str, jobs_max: int = 64, on_start: Callable[[], object] | None = None
    ) -> None:
        if jobs_max < 1:
            raise ValueError(f"jobs_max: expected at least 1, got {jobs_max}")
        self._jobs: SimpleQueue[_Job[object] | None] = SimpleQueue()
        self._jobs_max = jobs_max
        self._waiting = 0
        self._lock = threading.Lock()
        self._closed = False
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
        """Jobs that have not started."""
        return self._waiting

    async def run(self, fn: Callable[[], T]) -> T:
        job = self._enqueue(fn)
        try:
            await asyncio.wait((job.reply,))
        except asyncio.CancelledError:
            if job.skip():
                self._count(-1)
            else:
                await _ended(job.reply)
            raise
        else:
            return job.reply.result()
        finally:
            job.let_go()

    def close(self, deadline_s: float) -> bool:
        """Refuse what waits and stop after the running job. False: it still runs then."""
        self._closed = True
        self._jobs.put(None)
        self._thread.join(deadline_s)
        return not self._thread.is_alive()

    def _enqueue(self, fn: Callable[[], T]) -> _Job[T]:
        if self._closed:
            raise NoRoom("this node is stopping", RETRY_AFTER_S)
        if not self._count(1):
            raise NoRoom(f"{self._jobs_max} steps wait already", RETRY_AFTER_S)
        job = _Job(fn, asyncio.get_running_loop())
        self._jobs.put(job)  # type: ignore[arg-type]  # the thread never looks at T
        return job

    def _count(self, change: int) -> bool:
        with self._lock:
            if self._waiting + change > self._jobs_max:
                return False
            self._waiting += change
            return True

    def _main(self, on_start: Callable[[], object] | None, started: threading.Event) -> None:
        try:
            if on_start is not None:
                on_start()
        except BaseException as error:  # noqa: BLE001  # boundary: the constructor raises it
            self._failed_start = error
            return
        finally:
            started.set()
        while (job := self._jobs.get()) is not None:
            if job.claim():
                self._count(-1)
                if self._closed:
                    job.refuse(NoRoom("this node is stopping", RETRY_AFTER_S))
                else:
                    job.work()


async def _ended(reply: asyncio.Future[T]) -> None:
    """Wait for a job that runs, however often its caller is cancelled meanwhile."""
    while not reply.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait((reply,))
    reply.exception()  # retrieved, so that asyncio does not report it as forgotten
