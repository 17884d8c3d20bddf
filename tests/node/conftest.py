"""Nodes on one compute thread: all layers, those of the middle, those of the tail."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.node.bench import (
    LAYERS,
    Bench,
    BenchThread,
)

from meshnet.core.vocabulary import (
    LayerRange,
)


@pytest.fixture
def thread() -> Iterator[BenchThread]:
    compute = BenchThread(jobs_max=4)
    yield compute
    assert compute.close(deadline_s=30.0)


@pytest.fixture
def whole(thread: BenchThread) -> Bench:
    """A node that holds every layer: head and tail in one."""
    return Bench(thread, LayerRange(0, LAYERS))


@pytest.fixture
def middle(thread: BenchThread) -> Bench:
    return Bench(thread, LayerRange(1, 3))


@pytest.fixture
def tail(thread: BenchThread) -> Bench:
    return Bench(thread, LayerRange(2, LAYERS))
