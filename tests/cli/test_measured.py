"""Nodes of one machine measure in turn."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from filelock import FileLock, Timeout

from meshnet.cli import measured
from meshnet.cli.measured import turn


async def test_nodes_of_one_machine_measure_one_after_the_other(tmp_path: Path):
    measuring: list[int] = []
    most = 0

    async def measure(node: int) -> None:
        nonlocal most
        async with turn(tmp_path / "cache"):
            measuring.append(node)
            most = max(most, len(measuring))
            await asyncio.sleep(0)
            measuring.remove(node)

    await asyncio.gather(*map(measure, range(3)))

    assert most == 1


async def test_a_turn_that_does_not_come_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(measured, "TURN_S", 0.0)

    async with turn(tmp_path):
        with pytest.raises(Timeout):
            FileLock(tmp_path / ".measuring").acquire(blocking=False)
        async with asyncio.timeout(60), turn(tmp_path):
            pass


async def test_a_failure_gives_the_turn_back(tmp_path: Path):
    with pytest.raises(ZeroDivisionError):
        async with turn(tmp_path):
            raise ZeroDivisionError

    async with asyncio.timeout(60), turn(tmp_path):
        pass
