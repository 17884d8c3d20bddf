"""One timer ends many waits at a time that may move, and takes no cancellation for its own."""

from __future__ import annotations

import asyncio

import pytest

from meshnet.head.limit import WaitLimit
from meshnet.simulation.loop import run


class Wait:
    """Waits of this task, each ended by `event` or at `deadline`."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.deadline: float | None = 10.0
        self.limit = WaitLimit(lambda: self.deadline, self._loop.time)
        self.event = asyncio.Event()

    @property
    def now(self) -> float:
        return self._loop.time()

    async def over(self, at_least_s: float = 0.0) -> bool:
        """Wait; True: the limit ended it."""
        self.limit.begin(at_least_s)
        try:
            await self.event.wait()
        except asyncio.CancelledError:
            if self.limit.end():
                return True
            raise
        finally:
            self.limit.end()
        return False


def test_a_wait_ends_at_its_deadline():
    async def main():
        wait = Wait()

        assert await wait.over()
        assert wait.now == 10.0

    run(main, 0)


def test_a_deadline_that_moves_is_kept():
    async def main():
        wait = Wait()
        loop = asyncio.get_running_loop()
        loop.call_at(9.0, setattr, wait, "deadline", 25.0)

        assert await wait.over()
        assert wait.now == 25.0

    run(main, 0)


def test_a_wait_may_end_sooner_than_the_timer_of_the_one_before():
    async def main():
        wait = Wait()
        wait.event.set()
        assert not await wait.over(at_least_s=10.0)
        wait.event.clear()
        wait.deadline = 4.0

        assert await wait.over(at_least_s=4.0)
        assert wait.now == 4.0

    run(main, 0)


def test_time_between_waits_ends_none():
    async def main():
        wait = Wait()
        wait.event.set()
        assert not await wait.over()
        await asyncio.sleep(50.0)
        wait.event.clear()
        wait.deadline = 60.0

        assert await wait.over()
        assert wait.now == 60.0

    run(main, 0)


def test_a_task_that_is_cancelled_ends_as_cancelled_also_at_the_deadline():
    async def main():
        wait = Wait()
        task = asyncio.create_task(wait.over())
        loop = asyncio.get_running_loop()
        loop.call_at(10.0, task.cancel)

        with pytest.raises(asyncio.CancelledError):
            await task

    run(main, 0)


def test_after_a_wait_that_was_ended_the_task_is_as_if_it_had_never_been_cancelled():
    async def main():
        wait = Wait()
        assert await wait.over()
        task = asyncio.current_task()
        assert task is not None

        assert task.cancelling() == 0
        await asyncio.sleep(1.0)

    run(main, 0)


def test_many_waits_share_a_timer():
    async def main():
        wait = Wait()
        wait.event.set()
        wait.deadline = 100.0
        loop = asyncio.get_running_loop()
        armed = len(loop._scheduled)

        for _ in range(50):
            assert not await wait.over(at_least_s=100.0)
        assert len(loop._scheduled) == armed + 1

        wait.limit.close()

    run(main, 0)


def test_a_limit_that_is_closed_leaves_no_timer_behind():
    async def main():
        wait = Wait()
        wait.event.set()
        assert not await wait.over(at_least_s=1.0)

        wait.limit.close()

        loop = asyncio.get_running_loop()
        assert all(handle.cancelled() for handle in loop._scheduled)

    run(main, 0)
