"""Threads share a step and change nothing of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from meshnet.engine.compiled.product import SHARED_MIN, CompiledProduct
from meshnet.engine.compiled.team import Team

INPUTS, OUTPUTS = 576, 1536
ROWS = SHARED_MIN // (INPUTS * OUTPUTS) + 3


@pytest.fixture
def threads() -> Iterator[Any]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def _product() -> CompiledProduct:
    generator = torch.Generator().manual_seed(0)
    weights_NK = torch.randint(-127, 128, (OUTPUTS, INPUTS), generator=generator, dtype=torch.int8)
    return CompiledProduct(weights_NK, torch.rand(OUTPUTS, generator=generator))


@pytest.mark.parametrize("rows", [1, ROWS])
def test_a_layer_shared_by_threads_has_the_bits_of_one(threads: Any, rows: int):
    x_MK = torch.randn(rows, INPUTS, generator=torch.Generator().manual_seed(1))
    threads(1)
    expected = _product().linear(x_MK, None, 2)

    for count in (2, 3, 5):
        threads(count)
        assert torch.equal(_product().linear(x_MK, None, 2), expected)


def test_every_part_runs_once_before_a_step_returns():
    team, seen = Team(4), []

    team.run(lambda *arguments: seen.append(arguments), 7)

    assert sorted(seen) == [(7, part, 4) for part in range(4)]


@pytest.mark.parametrize("failing", [{0}, {1}, {0, 1, 2}], ids=str)
def test_a_step_that_fails_in_some_parts_raises_and_the_next_one_is_whole(failing: set[int]):
    """Else a step would return while others still write to its memory."""
    team, seen = Team(3), []

    def fail(part: int, parts: int) -> None:
        if part in failing:
            raise ArithmeticError(part)

    for _ in range(2):
        with pytest.raises(ArithmeticError):
            team.run(fail)
        team.run(lambda *arguments: seen.append(arguments))

    assert sorted(seen) == sorted((part, 3) for part in (0, 1, 2) * 2)


FORKED = """
import os
from meshnet.engine.compiled.team import Team
team, seen = Team(3), []
team.run(lambda *arguments: None)
child = os.fork()
team.run(lambda *arguments: seen.append(arguments))
if child:
    os.waitpid(child, 0)
print(sorted(seen))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")
def test_a_forked_process_has_helpers_of_its_own():
    output = subprocess.run(
        [sys.executable, "-c", FORKED], capture_output=True, text=True, check=True, timeout=60
    ).stdout

    assert output == "[(0, 3), (1, 3), (2, 3)]\n" * 2


def test_callers_that_come_at_once_get_their_own_results(threads: Any):
    threads(3)
    product, generator = _product(), torch.Generator().manual_seed(2)
    rows = [torch.randn(ROWS, INPUTS, generator=generator) for _ in range(8)]
    expected = [product.linear(x_MK, None, 2) for x_MK in rows]

    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda x_MK: product.linear(x_MK, None, 2), rows * 4))

    assert all(torch.equal(*pair) for pair in zip(got, expected * 4, strict=True))
