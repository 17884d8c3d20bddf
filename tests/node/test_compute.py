"""The compute thread: order, bounds, and what becomes of a caller that leaves."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import weakref
from collections.abc import Iterator
from functools import partial

import pytest

from meshnet.core.vocabulary import NoRoom
from meshnet.node.compute import ComputeThread


@pytest.fixture
def thread() -> Iterator[ComputeThread]:
    compute = ComputeThread(name="test-compute", jobs_max=2)
    yield compute
    assert compute.close(deadline_s=30.0)


class Block:
    """Occupies the thread until it is let go."""

    def __init__(self) -> None:
        self.running = asyncio.Event()
        self._free = threading.Event()
        self._loop = asyncio.get_running_loop()

    def __call__(self) -> str:
        self._loop.call_soon_threadsafe(self.running.set)
        assert self._free.wait(60)
        return "block"

    def free(self) -> None:
        self._free.set()


async def test_a_result_and_an_error_reach_the_caller(thread: ComputeThread) -> None:
    def fail() -> None:
        raise ZeroDivisionError("by zero")

    assert await thread.run(lambda: 6 * 7) == 42
    with pytest.raises(ZeroDivisionError, match="by zero"):
        await thread.run(fail)
    assert await thread.run(lambda: "alive") == "alive"


async def test_every_job_runs_on_the_one_thread_that_was_prepared() -> None:
    prepared: list[int] = []
    thread = ComputeThread(name="c", on_start=lambda: prepared.append(threading.get_ident()))

    seen = [await thread.run(threading.get_ident) for _ in range(3)]

    assert seen == prepared * 3
    assert threading.get_ident() not in seen
    assert thread.close(deadline_s=30.0)


def test_a_thread_that_cannot_be_prepared_is_not_there() -> None:
    def fail() -> None:
        raise OSError("no device")

    with pytest.raises(OSError, match="no device"):
        ComputeThread(name="c", on_start=fail)


def test_a_queue_holds_at_least_one_job() -> None:
    with pytest.raises(ValueError, match="jobs_max"):
        ComputeThread(name="c", jobs_max=0)


async def test_jobs_run_in_the_order_they_came(thread: ComputeThread) -> None:
    order: list[int] = []
    block = Block()
    async with asyncio.TaskGroup() as group:
        group.create_task(thread.run(block))
        await block.running.wait()
        for number in range(2):
            group.create_task(thread.run(partial(order.append, number)))
        await asyncio.sleep(0)
        block.free()

    assert order == [0, 1]


async def test_a_full_queue_refuses_and_empties_again(thread: ComputeThread) -> None:
    block = Block()
    async with asyncio.TaskGroup() as group:
        group.create_task(thread.run(block))
        await block.running.wait()
        for _ in range(2):
            group.create_task(thread.run(lambda: None))
        await asyncio.sleep(0)
        with pytest.raises(NoRoom):
            await thread.run(lambda: None)
        block.free()

    assert thread.waiting == 0
    assert await thread.run(lambda: 1) == 1


async def test_a_caller_cancelled_while_it_waits_leaves_at_once_and_gives_its_place_back(
    thread: ComputeThread,
) -> None:
    ran: list[str] = []
    block = Block()
    async with asyncio.TaskGroup() as group:
        group.create_task(thread.run(block))
        await block.running.wait()
        gone = group.create_task(thread.run(lambda: ran.append("gone")))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.wait([gone])
        assert thread.waiting == 0
        block.free()
    await thread.run(lambda: ran.append("next"))

    assert ran == ["next"]


async def test_a_caller_cancelled_while_its_job_runs_leaves_when_it_has_ended(
    thread: ComputeThread,
) -> None:
    block = Block()
    gone = asyncio.ensure_future(thread.run(block))
    await block.running.wait()
    for _ in range(3):  # an impatient caller changes nothing
        gone.cancel()
        await asyncio.sleep(0)
        assert not gone.done()

    block.free()
    with pytest.raises(asyncio.CancelledError):
        await gone


async def test_a_failed_job_whose_caller_has_left_is_no_unretrieved_error(
    thread: ComputeThread,
) -> None:
    block = Block()

    def fail() -> None:
        block()
        raise ZeroDivisionError

    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    gone = asyncio.ensure_future(thread.run(fail))
    await block.running.wait()
    gone.cancel()
    block.free()
    with contextlib.suppress(asyncio.CancelledError):
        await gone
    del gone
    gc.collect()

    assert complaints == []


async def test_a_stopping_thread_refuses_what_waits_and_ends_what_runs() -> None:
    thread = ComputeThread(name="c")
    block = Block()
    running = asyncio.ensure_future(thread.run(block))
    await block.running.wait()
    waiting = asyncio.ensure_future(thread.run(lambda: None))
    await asyncio.sleep(0)

    assert not thread.close(deadline_s=0.0)
    block.free()

    assert await running == "block"
    with pytest.raises(NoRoom):
        await waiting
    with pytest.raises(NoRoom):
        await thread.run(lambda: None)
    assert thread.close(deadline_s=30.0)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("fails", [False, True])
async def test_an_ended_job_leaves_nothing_behind(thread: ComputeThread, fails: bool) -> None:
    """Without the garbage collector: a session's tensors must not wait for it."""

    class State:
        """Stands for tensors."""

    state: State | None = State()
    watched = weakref.ref(state)

    def job(held: State | None = state) -> None:
        if fails:
            raise ZeroDivisionError(str(held))

    state = None
    gc.disable()
    try:
        with contextlib.suppress(ZeroDivisionError):
            await thread.run(job)
        del job
        while watched() is not None:  # noqa: ASYNC110  # the thread lets go just after it replied
            await asyncio.sleep(0)
    finally:
        gc.enable()


def test_a_job_may_end_after_its_loop_is_gone() -> None:
    thread = ComputeThread(name="c")
    free = threading.Event()

    async def leave() -> None:
        task = asyncio.ensure_future(thread.run(free.wait))
        while thread.waiting:  # noqa: ASYNC110  # the thread sets no event
            await asyncio.sleep(0)
        del task

    loop = asyncio.new_event_loop()
    loop.run_until_complete(leave())
    loop.close()
    free.set()

    assert thread.close(deadline_s=30.0)


async def test_a_thread_rests_once_after_work() -> None:
    loop = asyncio.get_running_loop()
    rested: asyncio.Queue[int] = asyncio.Queue()
    resting = ComputeThread(
        name="c",
        rest_s=0.0,
        on_rest=lambda: loop.call_soon_threadsafe(rested.put_nowait, threading.get_ident()),
    )

    ident = await resting.run(threading.get_ident)
    first = await rested.get()
    again = await resting.run(threading.get_ident)
    second = await rested.get()

    assert (first, second) == (ident, again)
    assert resting.close(deadline_s=30.0)
    assert rested.empty()


async def test_a_thread_that_never_worked_does_not_rest() -> None:
    rests: list[str] = []
    resting = ComputeThread(name="c", rest_s=0.0, on_rest=lambda: rests.append("rest"))

    assert resting.close(deadline_s=30.0)
    assert rests == []
