"""Virtual time: the loop jumps, repeats itself exactly, and notices a wait without end."""

import asyncio

import pytest

from meshnet.simulation.loop import Deadlock, Unhandled, run


def test_an_hour_of_waiting_takes_the_clock_to_one_hour():
    async def main() -> float:
        await asyncio.sleep(3600.0)
        return asyncio.get_running_loop().time()

    assert run(main, seed=0) == pytest.approx(3600.0)


def test_a_timeout_fires_at_its_virtual_time_and_not_later():
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5.0):
                await asyncio.sleep(50.0)
        return asyncio.get_running_loop().time()

    assert run(main, seed=0) == pytest.approx(5.0)


def test_a_wait_that_nothing_can_end_is_a_deadlock_that_names_the_seed():
    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Deadlock, match="seed 17"):
        run(main, seed=17)


def test_tasks_of_a_group_are_cancelled_in_the_order_they_were_started():
    """asyncio keeps them in a set; without numbered hashes the order follows addresses."""
    cancelled: list[int] = []

    async def wait(number: int) -> None:
        try:
            await asyncio.sleep(100.0)
        finally:
            cancelled.append(number)

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(20):
                group.create_task(wait(number))
            await asyncio.sleep(1.0)
            raise ValueError("stop")

    with pytest.raises(ExceptionGroup):
        run(main, seed=0)

    assert cancelled == list(range(20))


def test_a_callback_that_fails_where_nobody_looks_fails_the_run():
    async def main() -> None:
        asyncio.get_running_loop().call_later(1.0, lambda: {}["absent"])
        await asyncio.sleep(2.0)

    with pytest.raises(Unhandled, match="seed 3: KeyError"):
        run(main, seed=3)
