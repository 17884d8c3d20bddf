"""Threads share a step and change nothing of it."""

from __future__ import annotations

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


def test_callers_that_come_at_once_get_their_own_results(threads: Any):
    threads(3)
    product, generator = _product(), torch.Generator().manual_seed(2)
    rows = [torch.randn(ROWS, INPUTS, generator=generator) for _ in range(8)]
    expected = [product.linear(x_MK, None, 2) for x_MK in rows]

    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda x_MK: product.linear(x_MK, None, 2), rows * 4))

    assert all(torch.equal(*pair) for pair in zip(got, expected * 4, strict=True))
